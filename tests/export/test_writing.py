"""`konsil export`: what is written is whole, and what cannot be is said in a sentence."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch

from konsil.errors import ConfigError, RunError, StateError
from konsil.export import konsil_onnx
from konsil.export import onnx_pipeline as pipelines
from konsil.export.writing import export
from konsil.supermodel.rules import Blend
from tests.cli.test_experiments import called
from tests.supermodel.test_rules import images, super_model

MODEL = super_model([0.0, 1.0], Blend(0.75))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    MODEL.save(folder)
    return folder


@pytest.fixture(scope="module")
def labelled(squares: Path) -> Path:
    """The federation file of two sites of squares."""
    assert called("data", "init", squares, "--overwrite").code == 0
    path = squares / "federation.yaml"
    found = path.read_text()
    path.write_text(found.replace("foreground:", "disc:").replace("square:", "disc:"))
    return path


def test_onnx_by_the_command(model, tmp_path):
    done = called("export", model, "--to", "onnx", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "ONNX differs from torch by " in done.out
    pipeline = konsil_onnx.Pipeline(tmp_path / "out")
    logits, route = pipeline.answer(images().numpy())
    assert logits.shape == (3, 1, 32, 32)
    assert pipeline.asked(route) == MODEL.asked(MODEL.route(images()))
    assert (tmp_path / "out" / "MODEL_CARD.md").read_text().startswith("# Model card")
    assert not list(tmp_path.glob(".*"))


def test_the_loss_is_measured_on_labelled_images(model, labelled, tmp_path):
    done = called(
        "export", model, "--to", "folder", "-o", tmp_path / "out", "--half", "--data", labelled
    )
    assert done.code == 0, done.err
    assert "16 bit: dice 0." in done.out
    assert "the mean over sites of 20 labelled images" in done.out
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "stored | in 16 bit: mean Dice 0." in card


def test_onnx_in_16_bit_is_compared_on_real_images_too(labelled, tmp_path, monkeypatch):
    from konsil.cli.predict import labelled as opened

    seen = []
    check = pipelines.check_pipeline
    monkeypatch.setattr(
        pipelines, "check_pipeline", lambda m, f, x: seen.append(len(x)) or check(m, f, x)
    )
    source = opened(labelled, MODEL)
    done = export(MODEL, "onnx", tmp_path / "out", half=True, source=source)
    assert seen == [pipelines.CHECKED + 8]
    assert done.loss.images == 20
    assert done.difference < 1e-4
    for path in (tmp_path / "out").glob("*.onnx"):  # the selector alone is whole
        kinds = {one.data_type for one in onnx.load(str(path)).graph.initializer}
        assert (onnx.TensorProto.FLOAT16 in kinds) == ("selector" not in path.name)


def test_a_kind_that_there_is_not(tmp_path):
    with pytest.raises(ConfigError, match="--to coreml: one of onnx, bundle, folder"):
        export(MODEL, "coreml", tmp_path / "out")


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not an empty folder"):
        export(MODEL, "folder", tmp_path)
    with pytest.raises(RunError, match="not an empty folder"):
        export(MODEL, "folder", tmp_path / "thesis.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    export(MODEL, "folder", tmp_path / "empty")
    assert (tmp_path / "empty" / "model.json").exists()


def test_into_the_folder_where_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export(MODEL, "folder", Path())
    assert (tmp_path / "model.json").exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        export(MODEL, "folder", tmp_path / "file" / "out")


def test_what_differs_from_torch_is_not_written(tmp_path):
    """A model of nan: no comparison can hold."""
    spoiled = super_model([0.0, 1.0], Blend(0.75))
    spoiled.models["south"].flat.fill_(torch.nan)
    with pytest.raises(StateError, match="south: its ONNX file answers otherwise"):
        export(spoiled, "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "other",
    [
        {"rule": "fixed", "model": 0},
        {"rule": "blend", "share": 0.7, "top": 1},  # the same models, for other shares
    ],
)
def test_a_script_that_routes_otherwise_is_not_written(tmp_path, monkeypatch, other):
    told = pipelines.pipeline_facts
    monkeypatch.setattr(pipelines, "pipeline_facts", lambda m: told(m) | {"routing": other})
    with pytest.raises(StateError, match="or asks others"):
        export(MODEL, "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_onnx_it_says_what_to_install(tmp_path, package):
    code = (
        "import sys\n"
        "from tests.export.test_writing import MODEL, export\n"
        "from konsil.errors import ConfigError\n"
        f"sys.modules[{package!r}] = None\n"
        "try: export(MODEL, 'onnx', sys.argv[1])\n"
        "except ConfigError as error: print(error)\n"
    ).replace("sys.argv[1]", f"__import__('pathlib').Path({str(tmp_path / 'out')!r})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'konsil[export]'" in done.stdout, done.stderr[-2000:]
