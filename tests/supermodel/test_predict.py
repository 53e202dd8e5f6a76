"""What a super model says of files: at their own size, in their own format, each alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from konsil.data import test_images as test_images_of
from konsil.data.image_file import ImageFile
from konsil.data.reading import ImageReading
from konsil.data.volumes import Volume, read_volume, write_volume
from konsil.errors import DataError
from konsil.supermodel import GLOBAL, Route, SuperModel
from konsil.supermodel.overlay import edge, most_marked, overlay, sheet_of_answers, sheet_of_planes
from konsil.supermodel.predict import Prediction, mask_name, painted, predict_file, write_mask
from konsil.testing import plan_of
from tests.data.volume_files import grid, noise, write_nifti, write_series
from tests.supermodel.test_segment_volume import AXES, SITES, SIZE, Thresholding, super_model


def picture(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    """Twice the network's size, so that what it sees is exact: a box in a box."""
    pixels = np.zeros((2 * SIZE, 2 * SIZE), np.uint8)
    pixels[8:48, 16:56] = 128
    pixels[16:32, 24:40] = 255
    return picture(tmp_path / "boxes.png", pixels)


def answer(logits: torch.Tensor, size: tuple[int, int], targets: str = "masks") -> Prediction:
    """A prediction with these logits of a black picture."""
    model = super_model(task="segmentation" if targets == "masks" else "classification")
    count = len(logits)
    route = Route(*(torch.zeros(count, 2) for _ in range(6)))
    black = [Image.new("L", size[::-1]) for _ in range(count)]
    opened = ImageFile("PNG", np.zeros((count, *size), np.uint8), black)
    return Prediction(model.facts, opened, "axial", [GLOBAL] * count, route, logits)


# From the network's size to the file's


def test_probabilities_come_back_by_interpolation():
    """A row of two at .2 and .8 becomes four: ends as they are, between them a quarter of the way.

    Half a pixel outside is the edge's own value.
    """
    maps = torch.logit(torch.tensor([[0.2, 0.8], [0.2, 0.8]]))[None, None]
    found = answer(maps, (4, 4)).at_own_size(0)
    np.testing.assert_allclose(found[0], [[0.2, 0.35, 0.65, 0.8]] * 4, atol=1e-6)
    same = answer(maps, (2, 2)).at_own_size(0)
    np.testing.assert_allclose(same[0], [[0.2, 0.8]] * 2, atol=1e-6)


def test_the_later_structure_is_painted_over_the_earlier():
    disc = np.array([[True, True, False]])
    cup = np.array([[False, True, False]])
    assert painted(np.stack([disc, cup])).tolist() == [[1, 2, 0]]


def test_a_pixel_is_as_sure_as_its_least_sure_structure():
    maps = torch.logit(torch.tensor([[[0.9, 0.1]], [[0.6, 0.01]]]))[None]
    np.testing.assert_allclose(answer(maps, (1, 2)).confidence(), [[[0.6, 0.9]]], atol=1e-6)


def test_a_picture_is_answered_at_its_own_size(boxes):
    model = super_model(kind=Thresholding)
    found = model.predict(boxes)[0]
    pixels = np.asarray(Image.open(boxes))
    assert found.values().shape == (1, 2 * SIZE, 2 * SIZE)
    expected = (pixels > 63).astype(int) + (pixels > 191)
    assert (found.values()[0] != expected).mean() < 0.04  # half a pixel of the network at edges
    masks = found.masks()[0]
    assert masks[0][24:44, 20:52].all()  # the disc is whole beneath the cup
    assert masks[1][18:30, 26:38].all()
    assert not masks[1][34:].any()


# The same as training, alone or among others


def test_a_file_is_what_the_run_saw_of_it(squares):
    """Bit by bit, whether its pixels come from the run's test images or from the file."""
    plan = plan_of(squares, federation={"folder": str(squares), "image_size": SIZE, "channels": 1})
    images, model = test_images_of(plan.data_folder, "south"), super_model()
    files = sorted((squares / "south" / "images").iterdir())
    seen = {model.read(file).numpy().tobytes(): file for file in files}
    assert len(images) > 1
    for number in range(len(images)):
        x = images.batch(torch.tensor([number]))[0]
        [found] = model.predict(seen[x.numpy().tobytes()])
        assert torch.equal(found.logits, model.answer(x).logits)
        assert torch.equal(found.route.probabilities, model.route(x).probabilities)


def test_who_else_is_asked_about_changes_no_bit(boxes, tmp_path):
    model = super_model()
    dark = picture(tmp_path / "dark.png", np.asarray(Image.open(boxes)) // 3)
    together = model.predict(dark, boxes)[1]
    alone = model.predict(boxes)[0]
    assert torch.equal(together.logits, alone.logits)
    assert torch.equal(together.route.probabilities, alone.route.probabilities)


def test_an_array_is_the_picture_of_its_pixels(boxes):
    model = super_model()
    from_file, from_array = model.predict(boxes, np.asarray(Image.open(boxes)))
    assert torch.equal(from_file.logits, from_array.logits)
    with pytest.raises(DataError, match="an array of 2 x 3 x 4: a picture is rows x columns"):
        model.predict(np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(DataError, match="an array: pixels that are no whole numbers"):
        model.predict(np.zeros((8, 8), np.float32))


# Whom one asks


@pytest.mark.parametrize("who", [GLOBAL, *SITES])
def test_one_model_is_asked_and_the_selector_is_still_told(boxes, who):
    model = super_model()
    usual, found = model.predict(boxes)[0], model.predict(boxes, ask=who)[0]
    assert torch.equal(found.logits, model.logits_of(who, model.read(boxes)))
    assert found.asked == [who]
    assert torch.equal(found.route.probabilities, usual.route.probabilities)
    assert found.route.shares.tolist() == [[float(who == name) for name in (GLOBAL, *SITES)]]


def test_nobody_of_that_name(boxes):
    with pytest.raises(DataError, match=r"boxes.png: west: no model of that name here"):
        super_model().predict(boxes, ask="west")


# Windows


def windowed(low: float, high: float) -> SuperModel:
    words = ImageReading((low, high)).to_json()
    return super_model().changed(reading=dict.fromkeys(SITES, words))


def test_a_window_that_shows_nothing_is_refused(tmp_path):
    """Percentages where training had thousands: all would be black."""
    path = write_nifti(tmp_path / "v.nii.gz", noise((40, 48, 4)), grid(*AXES)[1])
    for low, high in ((2000, 4000), (-500, -100)):
        with pytest.raises(DataError, match=r"the window does not fit: its intensities go from"):
            predict_file(windowed(low, high), path)


def test_a_window_that_hardly_fits_is_said(tmp_path):
    path = write_nifti(tmp_path / "v.nii.gz", noise((40, 48, 4)), grid(*AXES)[1])
    [note] = predict_file(windowed(990, 4000), path).notes
    assert note.startswith("the window hardly fits: its intensities go from 0 to 999")
    assert not predict_file(windowed(0, 1000), path).notes


def test_another_reading_than_in_training_is_said(tmp_path):
    path = write_nifti(tmp_path / "v.nii.gz", noise((40, 48, 36)), grid(*AXES)[1])
    model = windowed(0, 1000)
    [note] = predict_file(model, path, reading=replace(model.reading(), view="coronal")).notes
    assert "view coronal" in note
    assert "training read its images with window [0.0, 1000.0], view axial" in note


# Files of masks


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a.png", "a.png"), ("a.JPG", "a.png"), ("b.c.jpeg", "b.c.png"), ("a.tif", "a.tif"),
        ("a.bmp", "a.bmp"), ("v.nii", "v.nii"), ("v.nii.gz", "v.nii.gz"), ("v.mha", "v.mha"),
        ("v.mhd", "v.mha"), ("v.nrrd", "v.nrrd"), ("v.nhdr", "v.nrrd"), ("v.dcm", "v.dcm"),
        ("v.IMA", "v.dcm"), ("1.2.840.7", "1.2.840.7.dcm"), ("IM0001", "IM0001.dcm"),
    ],
)  # fmt: skip
def test_the_name_of_a_mask(source, expected):
    assert mask_name(Path(source)) == expected


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif"])
def test_a_pictures_mask_has_values_for_programs_and_colours_for_people(boxes, tmp_path, suffix):
    source = tmp_path / f"p{suffix}"
    Image.open(boxes).save(source)
    found = super_model(kind=Thresholding).predict(source)[0]
    path = tmp_path / mask_name(source)
    write_mask(found, tmp_path / "out" / path.name, source)
    mask = Image.open(tmp_path / "out" / path.name)
    np.testing.assert_array_equal(np.asarray(mask), found.values()[0])
    assert mask.size == Image.open(source).size
    colours = mask.convert("RGB")
    assert [colours.getpixel(at) for at in ((0, 0), (20, 44), (30, 20))] == [
        (0, 0, 0),
        (0, 0xE5, 0xFF),
        (0xFF, 0xE8, 0),
    ]


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mha", ".nrrd"])
def test_a_volumes_mask_lies_on_its_voxels_in_its_format(tmp_path, suffix):
    _, affine = grid(*AXES)
    array = np.zeros((40, 48, 36), np.int16)
    array[5:30, 10:40, 6:30] = 1000
    source = tmp_path / f"v{suffix}"
    write_volume(source, Volume(array, affine))
    found = predict_file(Thresholding(*parts(0, 1000)), source)
    write_mask(found, tmp_path / "out" / mask_name(source), source)
    mask = read_volume(tmp_path / "out" / source.name)
    np.testing.assert_allclose(mask.affine, affine, atol=1e-5)
    assert (mask.array[7:28, 12:38, 8:28] == 2).all()
    assert not mask.array[:, :, 33:].any()


def parts(low: float, high: float):
    model = windowed(low, high)
    return model.facts, model.models


def test_classes_have_no_mask(boxes, tmp_path):
    found = answer(torch.tensor([[0.0, 1.0]]), (4, 4), "classes")
    assert found.classes() == ["cup"]
    assert found.probabilities[0, 1].item() == pytest.approx(1 / (1 + np.exp(-1)))
    with pytest.raises(DataError, match="is for classification, it draws no masks"):
        write_mask(found, tmp_path / "m.png", boxes)


# Pictures


def test_the_edge_of_a_mask_is_its_own_outermost_pixels():
    mask = np.zeros((5, 5), bool)
    mask[1:4, 1:5] = True  # up to the picture's border on the right
    expected = mask.copy()
    expected[2, 2:5] = False
    np.testing.assert_array_equal(edge(mask), expected)


def test_an_overlay_tints_what_is_marked_and_nothing_else(boxes):
    found = super_model(kind=Thresholding).predict(boxes)[0]
    drawn, plain = np.asarray(overlay(found, fill=0.25)), np.asarray(Image.open(boxes))
    outside = found.values()[0] == 0
    assert (drawn[outside] == plain[outside][:, None]).all()
    assert drawn[44, 20].tolist() == [96, 153, 160]  # a quarter of the way to 0, 229 and 255


def test_sheets_show_marked_planes_and_all_answers(tmp_path):
    array = np.zeros((40, 48, 30), np.int16)
    array[5:30, 10:40, 4:9] = 1000
    array[5:30, 10:40, 6] = 400
    path = write_series(tmp_path / "T2", array, grid()[1])
    model = Thresholding(*parts(0, 1000))
    found = predict_file(model, path)
    marked = found.masks().any(axis=(1, 2, 3)).nonzero()[0]
    assert len(marked) == 5
    assert found.masks()[most_marked(found)].sum() == max(m.sum() for m in found.masks())
    width, height = sheet_of_planes(found).size
    assert width > 5 * 160 > 2 * 192 > height > 192  # five planes of 40 x 48, enlarged four times
    one = sheet_of_answers([("auto", found)]).size
    both = sheet_of_answers([("auto", found), (GLOBAL, predict_file(model, path, GLOBAL))]).size
    assert both[0] > one[0]
    assert both[1] == one[1]
