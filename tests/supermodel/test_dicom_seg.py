"""Masks of DICOM series as DICOM SEG: where they lie, what validators say of them."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread

from konsil.data.volumes import read_mask_volume, read_volume
from konsil.errors import DataError
from konsil.supermodel.predict import mask_name, predict_file, write_mask
from tests.data.volume_files import grid, noise, write_multiframe, write_series
from tests.supermodel.test_segment_volume import AXES, Thresholding, super_model

WHOLE = {"StudyDate": "20240102", "StudyTime": "101112", "SeriesNumber": 3}


@pytest.fixture
def series(tmp_path: Path) -> Path:
    array = np.zeros((40, 48, 9), np.int16)
    array[5:30, 10:40, 2:8] = 500
    array[12:20, 20:30, 3:5] = 1000
    return write_series(tmp_path / "T2", array, grid((0, 1, 2), (-1, -1, 1))[1], **WHOLE)


def predicted(source: Path, tmp_path: Path, view="axial"):
    model = super_model(kind=Thresholding)
    model = Thresholding(model.facts, model.models)
    reading = model.reading().__class__(window=(0.0, 1000.0), view=view)
    prediction = predict_file(model, source, reading=reading)
    path = tmp_path / "out" / mask_name(source)
    write_mask(prediction, path, source)
    return prediction, path


@pytest.mark.parametrize("view", ["axial", "sagittal"])
def test_a_segment_for_each_structure_on_the_very_slices(tmp_path, series, view):
    prediction, path = predicted(series, tmp_path, view)
    assert path.name == "T2.dcm"
    found = dcmread(path)
    assert [s.SegmentLabel for s in found.SegmentSequence] == ["disc", "cup"]
    assert found.PatientID == dcmread(next(series.iterdir())).PatientID
    assert found.SOPInstanceUID != dcmread(next(series.iterdir())).SOPInstanceUID
    # Konsil's own reader paints the smaller over the larger, as the values do
    values = read_mask_volume(path, series, read_volume(series))
    np.testing.assert_array_equal(values, prediction.mask_volume().array)
    inner = values[14:18, 22:28, 3:5] if view == "axial" else values[14:18, 23:27, 4]
    assert (inner == 2).all()


def test_frames_of_one_file_in_any_order(tmp_path):
    array = np.zeros((40, 48, 5), np.int16)
    array[5:30, 10:40, 3] = 1000  # the file's first frame
    source = write_multiframe(tmp_path / "t2.dcm", array, grid()[1], order=[3, 1, 4, 0, 2])
    whole = dcmread(source)
    for name, value in WHOLE.items():
        setattr(whole, name, value)
    whole.FrameOfReferenceUID = whole.StudyInstanceUID
    whole.save_as(source)
    prediction, path = predicted(source, tmp_path)
    assert path.name == "t2.dcm"
    values = read_mask_volume(path, source, read_volume(source))
    np.testing.assert_array_equal(values, prediction.mask_volume().array)
    assert values[:, :, 3].any()
    assert not values[:, :, [0, 1, 2, 4]].any()


def test_an_empty_answer_is_an_object_too(tmp_path):
    array = noise((40, 48, 4)) // 100  # nothing is bright enough
    source = write_series(tmp_path / "T2", array, grid()[1], **WHOLE)
    _, path = predicted(source, tmp_path)
    assert not read_mask_volume(path, source, read_volume(source)).any()


def test_without_a_frame_of_reference_it_is_said(tmp_path):
    array = noise((40, 48, 4))

    def forget(k, data):
        del data.FrameOfReferenceUID

    source = write_series(tmp_path / "T2", array, grid()[1], change=forget, **WHOLE)
    with pytest.raises(DataError, match="without a frame of reference"):
        predicted(source, tmp_path)
    assert not (tmp_path / "out" / "T2.dcm").exists()


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="needs dicom3tools of Debian")
def test_dciodvfy_finds_no_error(tmp_path, series):
    _, path = predicted(series, tmp_path)
    done = subprocess.run(["dciodvfy", path], capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    assert not [line for line in said if line.startswith("Error")], said


def test_a_series_stored_in_an_odd_way(tmp_path):
    """Voxel axes that run neither as the view's nor to the same sides."""
    array = np.zeros((12, 40, 48), np.int16)
    array[3:7, 10:30, 8:30] = 1000
    source = write_series(tmp_path / "T2", array, grid(*AXES)[1], **WHOLE)
    prediction, path = predicted(source, tmp_path)
    values = read_mask_volume(path, source, read_volume(source))
    np.testing.assert_array_equal(values, prediction.mask_volume().array)
    assert values.any()
