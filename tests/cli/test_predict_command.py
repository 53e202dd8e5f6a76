"""`konsil predict`, as it is called."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from konsil.data.volumes import read_volume
from konsil.networks import NetworkSpec
from konsil.supermodel import SuperModel
from tests.cli.test_experiments import called
from tests.data.volume_files import grid, noise, write_nifti, write_series
from tests.supermodel.test_segment_volume import SITES, SIZE, super_model
from tests.supermodel.test_supermodel import weights_of

WHO = ["auto", "global", *SITES]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    super_model().save(folder)
    return folder


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    root = tmp_path / "ward"
    root.mkdir()
    Image.fromarray(noise((40, 60)).astype(np.uint8)).save(root / "photo.jpg")
    write_nifti(root / "case 1" / "v.nii.gz", noise((20, 24, 3)), grid()[1])
    write_series(root / "T2", noise((20, 24, 4)), grid()[1], SeriesNumber=1)
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return root


def table(out: Path) -> list[dict[str, str]]:
    with open(out / "answers.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_everything_in_a_folder_and_one_bad_file(model, ward, tmp_path):
    out = tmp_path / "out"
    done = called("predict", model, ward, "-o", out)
    assert done.code == 1
    assert "not answered: broken.png: image that cannot be read" in " ".join(done.err.split())
    assert "3 files, 8 planes; asked: " in done.out
    assert Image.open(out / "masks" / "photo.png").size == (60, 40)
    mask, image = (read_volume(f / "case 1" / "v.nii.gz") for f in (out / "masks", ward))
    assert mask.shape == image.shape
    np.testing.assert_array_equal(mask.affine, image.affine)
    assert dcmread(out / "masks" / "T2.dcm").Modality == "SEG"
    drawn = {str(p.relative_to(out / "overlays")) for p in (out / "overlays").rglob("*.png")}
    assert drawn == {"photo.png", "case 1/v.png", "T2.png"}
    rows = table(out)
    assert [(r["file"], r["plane"]) for r in rows] == [
        ("photo.jpg", ""),
        *(("T2", str(n)) for n in (1, 2, 3, 4)),
        *(("case 1/v.nii.gz", str(n)) for n in (1, 2, 3)),
    ]
    for row in rows:
        assert row["asked"] in ("global", *SITES)
        assert sum(float(row[f"like_{site}"]) for site in SITES) == pytest.approx(1, abs=1e-3)
        assert float(row["confidence"]) == max(float(row[f"like_{site}"]) for site in SITES)
        assert row["unfamiliar"] == "no"
    photo = np.asarray(Image.open(out / "masks" / "photo.png"))
    assert float(rows[0]["share_cup"]) == pytest.approx((photo == 2).mean(), abs=1e-4)


def test_all_answers_side_by_side(model, ward, tmp_path):
    out = tmp_path / "out"
    done = called("predict", model, ward / "photo.jpg", "-o", out, "--ask", "south", "--compare")
    assert done.code == 0
    assert "1 file; asked: south 1" in done.out
    assert [row["ask"] for row in table(out)] == ["south", "auto", "global", "north"]
    masks = {who: out / "compare" / who / "photo.png" for who in WHO if who != "south"}
    masks["south"] = out / "masks" / "photo.png"
    loaded = SuperModel.load(model)
    for who, path in masks.items():
        [expected] = loaded.predict(ward / "photo.jpg", ask=who)
        np.testing.assert_array_equal(np.asarray(Image.open(path)), expected.values()[0])
    assert (out / "compare" / "photo.png").exists()


def test_answers_are_not_replaced_unless_it_is_said(model, ward, tmp_path):
    arguments = ("predict", model, ward / "photo.jpg", "-o", tmp_path / "out")
    assert called(*arguments, "--no-overlays").code == 0
    assert not (tmp_path / "out" / "overlays").exists()
    again = called(*arguments)
    assert again.code == 1
    assert "has answers already; choose another folder, or --overwrite" in again.err
    assert called(*arguments, "--overwrite").code == 0
    assert (tmp_path / "out" / "overlays" / "photo.png").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ask", "west"], "west: nobody of that name can be asked; there are auto, global"),
        (["--window", "9,3"], "--window = [9.0, 3.0]: the smaller number first"),
        (["--window", "bright"], "--window = 'bright': two numbers, percentiles, or full"),
        (["--view", "oblique"], "--view = 'oblique': one of axial, coronal, sagittal"),
        (["--site", "west"], "west: no site of this model; it has north, south"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(model, ward, tmp_path, options, said):
    done = called("predict", model, ward, "-o", tmp_path / "out", *options)
    assert done.code == 1
    assert said in done.err
    assert not (tmp_path / "out" / "masks").exists()


def test_words_of_the_command_line_win_over_training(model, ward, tmp_path):
    """Percentiles and a view other than training's: said, and done."""
    out = tmp_path / "out"
    volume = ward / "case 1" / "v.nii.gz"
    arguments = ("--window", "5%,95%", "--view", "coronal")
    done = called("predict", model, volume, "-o", out, *arguments)
    assert done.code == 0
    assert len(table(out)) == 24
    assert read_volume(out / "masks" / "v.nii.gz").shape == (20, 24, 3)


def test_classes_go_into_the_table(ward, tmp_path):
    network = NetworkSpec("small", 1, 2, SIZE)
    drawn = super_model(task="classification", network=network).changed(labels=["well", "ill"])
    drawn.save(tmp_path / "model")
    assert weights_of(network, 0).layout.key == drawn.models["north"].layout.key
    done = called("predict", tmp_path / "model", ward / "photo.jpg", "-o", tmp_path / "out")
    assert done.code == 0
    [row] = table(tmp_path / "out")
    likeliest = max(("well", "ill"), key=lambda name: float(row[f"class_{name}"]))
    assert row["class"] == likeliest
    assert row["sure"] == row[f"class_{likeliest}"]
    assert not (tmp_path / "out" / "masks").exists()
