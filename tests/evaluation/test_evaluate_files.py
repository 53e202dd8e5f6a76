"""A super model measured on labelled files: the run's own numbers, and those at the files' size."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from konsil.config import FederationConfig, TaskConfig
from konsil.data import Images, training_data
from konsil.data import test_images as test_images_of
from konsil.data.detail import best_dice
from konsil.data.manifest import read_manifest
from konsil.data.origin import FileSource
from konsil.errors import DataError
from konsil.evaluation.files import score_files
from konsil.networks import NetworkSpec
from konsil.supermodel import SuperModel
from konsil.tasks import make_task
from konsil.testing import SIZE, plan_of
from tests.cli.test_experiments import called
from tests.supermodel.test_segment_volume import super_model

ONE = NetworkSpec("unet", 1, 1, SIZE, width=2)


def described(folder: Path, root: Path, labels: str = "masks/*.png", top: str = "") -> Path:
    """A federation file in `folder` over the sites of another."""
    blocks = ""
    for site in sorted(one for one in root.iterdir() if one.is_dir()):
        (folder / site.name).symlink_to(site)
        blocks += f"  {site.name}: {{images: {site.name}/images/*.png, labels: "
        blocks += f"{site.name}/{labels}}}\n"
    (folder / "federation.yaml").write_text(f"{top}\nsites:\n{blocks}")
    return folder


def source_of(folder: Path, **task) -> FileSource:
    manifest = read_manifest(folder)
    config = FederationConfig(file=manifest.path, image_size=SIZE, channels=1)
    return FileSource(manifest, config, TaskConfig(**task))


def of_foreground(kind=SuperModel) -> SuperModel:
    model = super_model(network=ONE).changed(labels=["foreground"])
    return kind(model.facts, model.models)


def test_the_scores_are_those_of_the_runs_own_images(squares, tmp_path):
    """On all of a site's images, whichever split they are in; at this size there is one size."""
    plan = plan_of(squares, federation={"folder": str(squares), "image_size": SIZE, "channels": 1})
    model = of_foreground()
    source = source_of(described(tmp_path, squares, top="structures: {foreground: [255]}"))
    task = make_task(TaskConfig(), ["foreground"])
    for found in score_files(model, source):
        data = training_data(plan.data_folder, [found.site])
        images = Images.pooled([data.train, data.val, test_images_of(plan.data_folder, found.site)])
        x, y = images.batch(torch.arange(len(images)))
        expected = float(task.columns(model.answer(x).logits, y)["dice"].mean())
        assert found.images == len(images)
        assert found.scores["dice"] == pytest.approx(expected, abs=1e-3)
        assert found.own_size["dice"] == pytest.approx(found.scores["dice"], abs=1e-6)
        assert sum(found.asked.values()) == len(images)


class Bright(SuperModel):
    """Finds what is brighter than a half: with a mask as its image it is perfect."""

    def logits_for(self, shares: Tensor, images: Tensor) -> Tensor:
        return images - 0.5


@pytest.fixture
def fine(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """Images that are their own masks: boxes on the network's grid, and a hair between."""
    mask = np.zeros((4 * SIZE, 4 * SIZE), bool)
    mask[16:48, 32:96] = True
    mask[80:82, 8:120] = True
    root = tmp_path / "root"
    for kind in ("images", "masks"):
        for number in range(5):
            path = root / "north" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).convert("L").save(path)
    (tmp_path / "fed").mkdir()
    return described(tmp_path / "fed", root, top="structures: {foreground: [255]}"), mask


def test_a_perfect_model_reaches_what_its_size_leaves(fine):
    folder, mask = fine
    [found] = score_files(of_foreground(Bright), source_of(folder))
    assert found.images == 5
    assert found.scores["dice"] > 0.9
    assert found.own_size["dice"] == pytest.approx(best_dice(mask, SIZE), abs=0.06)
    assert found.own_size["dice"] < found.scores["dice"]


def test_other_names_of_structures_are_refused(squares, tmp_path):
    source = source_of(described(tmp_path, squares, top="structures: {liver: [255]}"))
    with pytest.raises(DataError, match="the model answers foreground, these images are labelled"):
        score_files(of_foreground(), source)


def test_structures_are_told_by_name_and_not_by_order(squares, tmp_path):
    top = "structures: {rest: [7], foreground: [255]}"
    source = source_of(described(tmp_path, squares, top=top))
    plain = source_of(
        described(_made(tmp_path / "plain"), squares, top="structures: {foreground: [255]}")
    )
    model = of_foreground()
    assert score_files(model, source) == score_files(model, plain)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_command_prints_a_table_and_json(squares, tmp_path):
    of_foreground().save(tmp_path / "model")
    folder = described(_made(tmp_path / "fed"), squares, top="structures: {foreground: [255]}")
    done = called("evaluate", tmp_path / "model", "--data", folder)
    assert done.code == 0
    for words in (
        "north",
        "south",
        f"on labelled images, at {SIZE} px",
        "Dice, own size",
        "surface Dice",
        "8 labelled images of 8 patients",
        "does not tell what it scores at its own",
    ):
        assert words in " ".join(done.out.split())  # fmt: skip
    text = called("evaluate", tmp_path / "model", "--data", folder, "--json").out
    said = json.loads(text)["sites"]
    assert [one["site"] for one in said] == ["north", "south"]
    assert [one["images"] for one in said] == [8, 12]
    assert "000.png" not in json.dumps(said)
    refused = called("evaluate", tmp_path / "model", "--data", folder, "--ask", "west")
    assert (refused.code, "west: nobody of that name" in refused.err) == (1, True)


def test_a_model_of_another_kind_is_refused(shades, tmp_path):
    of_foreground().save(tmp_path / "model")
    folder = _made(tmp_path / "fed")
    (folder / "north").symlink_to(shades / "north")
    (folder / "federation.yaml").write_text(
        "task: classification\nsites:\n  north: {images: 'north/*/*.png', labels: folder}\n"
    )
    done = called("evaluate", tmp_path / "model", "--data", folder)
    assert done.code == 1
    assert "describes a classification, and the model is for segmentation" in done.err
