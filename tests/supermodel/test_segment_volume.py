"""A super model on volumes: the right planes go in, and the answers lie on the same voxels."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from konsil.data.image_with_masks import open_with_masks
from konsil.data.readers import Percentiles
from konsil.data.recipe import Reading
from konsil.data.sources import Item
from konsil.data.volumes import planes, read_volume
from konsil.errors import DataError
from konsil.networks import NetworkSpec, build_network
from konsil.supermodel import ALL, GLOBAL, SELECTOR, Answer, Facts, Route, SuperModel
from konsil.supermodel.rules import chosen
from konsil.supermodel.volumes import segment_volume
from konsil.weights import Weights
from tests.data.volume_files import grid, noise, write_itk, write_nifti, write_series

SITES = ["north", "south"]
SIZE = 32
NETWORK = NetworkSpec("unet", 1, 2, SIZE, width=2)
AXES = (2, 0, 1), (1, -1, 1)  # an odd way to store a volume


def weights_of(spec: NetworkSpec, seed: int) -> Weights:
    torch.manual_seed(seed)
    return Weights.of(build_network(spec))


def super_model(
    routing: str = "threshold", task: str = "segmentation", kind=SuperModel, network=NETWORK
):
    outputs = 2 if routing == "threshold" else 3
    selecting = NetworkSpec("small", 1, outputs, SIZE)
    models = {name: weights_of(network, n) for n, name in enumerate((GLOBAL, *SITES))}
    models[SELECTOR] = weights_of(selecting, 7)
    facts = Facts(
        task,
        ["disc", "cup"],
        SITES,
        network.to_json(),
        selecting.to_json(),
        {"rule": "threshold", "gamma": 0.5} if routing == "threshold" else {"rule": routing},
    )
    return kind(facts, models)


class Thresholding(SuperModel):
    """Answers by brightness, so that one can say by hand what must come out: the disc is what is
    brighter than a quarter, the cup what is brighter than three quarters. Even planes go to
    south, odd ones to the global model.
    """

    seen: Tensor | None = None

    def answer(self, images: Tensor) -> Answer:
        self.seen = images if self.seen is None else torch.cat([self.seen, images])
        logits = torch.cat([images - 0.25, images - 0.75], dim=1)
        even = torch.arange(len(images)) % 2 == 0
        confidence = torch.where(even, 0.875, 0.5)
        shares = chosen(torch.where(even, 2, 0), len(SITES))
        nothing = torch.zeros(len(images))
        known = confidence[:, None], confidence, even.long()
        return Answer(logits, Route(*known, shares, nothing, nothing.bool()))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Dark, with a brighter box and a bright box inside it, larger than the network's size."""
    _, affine = grid(*AXES, turn=10)
    array = np.zeros((40, 48, 36), np.int16)
    array[5:30, 10:40, 6:30] = 500
    array[12:20, 20:30, 12:24] = 1000
    return write_nifti(tmp_path / "v.nii.gz", array, affine)


@pytest.mark.parametrize("view", ["axial", "coronal", "sagittal"])
def test_what_is_bright_is_found_where_it_lies(tmp_path, volume, view):
    model = super_model(kind=Thresholding)
    found = segment_volume(model, volume, tmp_path / "out.nii.gz", view=view, window=(0, 1000))
    image = read_volume(volume)
    expected = (image.array >= 500).astype(int) + (image.array >= 1000)
    assert found.volume.array.shape == image.array.shape
    assert (found.volume.array != expected).mean() < 0.04  # edges: 48 pixels became 32
    for value, box in ((1, np.s_[5:30, 10:40, 6:30]), (2, np.s_[12:20, 20:30, 12:24])):
        inner = tuple(slice(s.start + 2, s.stop - 2) for s in box)
        assert (found.volume.array[inner] >= value).all()


def test_at_the_networks_size_every_voxel_is_right(tmp_path):
    _, affine = grid(*AXES)
    array = noise((8, SIZE, SIZE))
    path = write_nifti(tmp_path / "v.nii", array, affine)
    found = segment_volume(
        super_model(kind=Thresholding), path, tmp_path / "out.mha", window=(0, 1000)
    )
    eight_bit = np.rint(array / 1000 * 255)
    expected = (eight_bit / 255 > 0.25).astype(int) + (eight_bit / 255 > 0.75)
    stored = read_volume(tmp_path / "out.mha")
    np.testing.assert_array_equal(stored.array, expected)
    np.testing.assert_array_equal(found.volume.array, expected)
    np.testing.assert_allclose(stored.affine, affine, atol=1e-6)


def test_the_affine_of_a_nifti_file_comes_back_exactly(tmp_path, volume):
    segment_volume(super_model(), volume, tmp_path / "out.nii.gz")
    again = read_volume(volume).affine
    np.testing.assert_array_equal(_affine(tmp_path / "out.nii.gz"), again)


def _affine(path: Path) -> np.ndarray:
    import nibabel

    return nibabel.load(path).affine


@pytest.mark.parametrize(
    ("window", "view"), [(None, "axial"), ((100, 900), "coronal"), (Percentiles(2, 90), "sagittal")]
)
def test_the_network_sees_what_it_saw_in_training(tmp_path, volume, window, view):
    model = super_model(kind=Thresholding)
    segment_volume(model, volume, tmp_path / "out.nii.gz", window=window, view=view)
    item = Item("north", volume.name, "", "p1")
    study = open_with_masks(tmp_path, item, Reading(window=window, view=view))
    trained = np.stack([study.image(plane, 1, SIZE) for plane in range(len(study.raw))])
    assert torch.equal(model.seen, torch.from_numpy(trained).float() / 255)


def test_who_answered(tmp_path, volume):
    found = segment_volume(super_model(kind=Thresholding), volume, tmp_path / "out.nii.gz")
    count = len(planes(found.volume.array, found.volume.affine, "axial"))
    assert found.asked[:4] == ["south", GLOBAL, "south", GLOBAL]
    assert found.confidence[:2] == [0.875, 0.5]
    assert len(found.asked) == len(found.confidence) == count


@pytest.mark.parametrize("routing", ["threshold", "argmax", "ensemble"])
def test_real_networks_answer_plane_by_plane(tmp_path, routing):
    """The whole volume in one go gives what the model says of each plane alone.

    Every plane is of noise: of a plane of one shade, norm layers leave nothing but rounding.
    """
    model = super_model(routing)
    volume = write_nifti(tmp_path / "v.nii.gz", noise((40, 48, 36)), grid(*AXES, turn=10)[1])
    found = segment_volume(model, volume, tmp_path / "out.nii.gz")
    study = open_with_masks(tmp_path, Item("north", volume.name, "", "p1"), Reading())
    stack = planes(found.volume.array, found.volume.affine, "axial")
    for plane in (0, 17, len(stack) - 1):
        images = torch.tensor(study.image(plane, 1, SIZE))[None] / 255
        answer = model.answer(images)
        size = stack[plane].shape[::-1]
        maps = [Image.fromarray(p) for p in answer.logits[0].sigmoid().numpy()]
        disc, cup = (np.asarray(m.resize(size, Image.Resampling.BILINEAR)) > 0.5 for m in maps)
        expected = np.where(cup, 2, disc.astype(int))
        assert (stack[plane] != expected).mean() < 0.005  # sums in another order
        if routing == "ensemble":
            assert found.asked[plane] == ALL
        elif answer.route.specialist[0]:
            assert found.asked[plane] == SITES[int(answer.route.site[0])]
        else:
            assert found.asked[plane] == GLOBAL


@pytest.mark.parametrize("write", [write_itk, write_series])
def test_other_formats(tmp_path, write):
    _, affine = grid((0, 1, 2), (-1, -1, 1))
    path = write(
        tmp_path / ("v.mhd" if write is write_itk else "dicom"), noise((40, 36, 5)), affine
    )
    found = segment_volume(super_model(kind=Thresholding), path, tmp_path / "out/mask.nii.gz")
    stored = read_volume(tmp_path / "out/mask.nii.gz")
    np.testing.assert_array_equal(stored.array, found.volume.array)
    np.testing.assert_allclose(stored.affine, affine, atol=1e-5)


def test_a_channel_and_a_series_can_be_chosen(tmp_path):
    _, affine = grid()
    model = super_model(kind=Thresholding)
    path = write_nifti(tmp_path / "v.nii", noise((SIZE, SIZE, 3, 2)), affine)
    segment_volume(model, path, tmp_path / "out.nii", channel=1)
    with pytest.raises(DataError, match=r"v\.nii: file of several volumes .*2 channels"):
        segment_volume(model, path, tmp_path / "out.nii")
    folder = write_series(tmp_path / "s", noise((SIZE, SIZE, 3)), affine, "T2")
    write_series(folder, noise((8, 8, 3)), affine, "scout", name="x{}.dcm")
    assert len(segment_volume(model, folder, tmp_path / "o.nii", series="T2").asked) == 3


def test_a_bad_volume_leaves_nothing(tmp_path):
    (tmp_path / "v.nii.gz").write_bytes(b"no volume")
    with pytest.raises(DataError, match=r"v\.nii\.gz: volume that cannot be read .*again"):
        segment_volume(super_model(), tmp_path / "v.nii.gz", tmp_path / "out.nii.gz")
    assert not (tmp_path / "out.nii.gz").exists()


def test_a_classifier_draws_nothing(tmp_path, volume):
    with pytest.raises(DataError, match="classification"):
        segment_volume(super_model(task="classification"), volume, tmp_path / "out.nii.gz")


def test_without_the_training_code(tmp_path, volume):
    network = replace(NETWORK, name="unet_classic")
    super_model(network=network).save(tmp_path / "model")
    script = f"""
import sys, torch
from pathlib import Path
from konsil.supermodel import SuperModel
from konsil.supermodel.rules import chosen
from konsil.supermodel.volumes import segment_volume
torch.set_num_threads(1)
folder = Path({str(tmp_path)!r})
segment_volume(SuperModel.load(folder / "model"), folder / "v.nii.gz", folder / "out.nii.gz")
training = ["method", "methods", "server", "site", "host", "engines", "runner", "learner"]
print([name for name in training if "konsil." + name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "out.nii.gz").exists()
