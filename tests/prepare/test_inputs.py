"""Which files a person means who names files and folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from konsil.errors import DataError
from konsil.prepare.inputs import find_inputs
from tests.data.volume_files import grid, noise, write_multiframe, write_series


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    """Pictures, a volume, two series and things of no interest."""
    root = tmp_path / "ward"
    for name in ("b.png", "a.JPG", "deep/er/c.tif", "v.nii.gz", "notes.txt", ".hidden.png"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    write_series(root / "p1" / "T2", noise((4, 5, 3)), grid()[1])
    write_series(root / "p2", noise((4, 5, 3)), grid()[1], name="IM{:04d}")  # no suffix
    write_multiframe(root / "p3" / "whole.dcm", noise((4, 5, 3)), grid()[1])
    return root


def names(*paths: Path) -> list[str]:
    return [one.name for one in find_inputs(paths)]


def test_a_folder_is_opened_up_and_a_series_is_one_thing(ward):
    expected = ["a.JPG", "b.png", "v.nii.gz", "deep/er/c.tif", "p1/T2", "p2", "p3/whole.dcm"]
    assert names(ward) == expected
    assert all((ward / name).exists() for name in expected)
    assert [one.path for one in find_inputs([ward])] == [ward / name for name in expected]


def test_a_series_and_a_file_by_themselves(ward, tmp_path, monkeypatch):
    assert names(ward / "p1" / "T2") == ["T2"]
    assert names(ward / "b.png", ward / "p2") == ["b.png", "p2"]
    monkeypatch.chdir(ward / "p2")
    assert names(Path()) == ["p2"]


def test_folders_given_together_keep_their_names(ward):
    assert names(ward / "deep", ward / "p1") == ["deep/er/c.tif", "p1/T2"]


def test_the_same_twice_is_asked_once(ward):
    assert names(ward / "b.png", ward / "b.png") == ["b.png"]


def test_two_that_would_have_one_name_are_refused(ward, tmp_path):
    other = tmp_path / "b.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(other)
    with pytest.raises(DataError, match=r"their answers would have the same name, b\.png"):
        names(ward / "b.png", other)


def test_nothing_to_ask_about(tmp_path):
    with pytest.raises(DataError, match=r"gone: no such file or folder"):
        names(tmp_path / "gone")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"no pictures \(PNG, JPEG, BMP, TIFF\), volumes"):
        names(tmp_path)
