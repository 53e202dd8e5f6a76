"""What 16 bit cost on real images: minutes, and only where they lie."""

import shutil
from pathlib import Path

import pytest

from konsil.cli.predict import labelled
from konsil.export.writing import export
from konsil.supermodel import SuperModel
from tests.cli.test_experiments import called

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT.parent / "shared" / "data" / "prostate_mri"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IMAGES.exists(), reason="the prostate images are not here"),
]


def test_the_mean_dice_stays_within_a_thousandth(tmp_path):
    """A short run of the prostate recipe's FedSM, and all of its images with their masks."""
    shutil.copytree(IMAGES, tmp_path / "data")
    assert called("data", "init", tmp_path / "data").code == 0
    file = tmp_path / "data" / "federation.yaml"
    file.write_text(file.read_text().replace("foreground:", "prostate:"))
    settings = {
        "methods": "[fedsm]", "rounds": 12, "seeds": "[0]", "engine.name": "inprocess",
        "federation.folder": IMAGES,
    }  # fmt: skip
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    recipe = ROOT / "recipes" / "prostate.yaml"
    assert called("run", recipe, *flags, "--out", tmp_path / "run").code == 0
    model = SuperModel.load(tmp_path / "run" / "fedsm" / "seed0" / "supermodel")
    source = labelled(file, model)
    for kind in ("folder", "onnx"):
        done = export(model, kind, tmp_path / kind, half=True, source=source)
        assert done.loss.images == 1171
        assert done.loss.before > 0.6  # of a model that has learned something
        assert abs(done.loss.after - done.loss.before) < 0.001
