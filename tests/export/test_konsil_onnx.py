"""The script of an ONNX folder: routing by hand, and everything as Konsil itself does it."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from konsil.data import readers
from konsil.data.findings import BadFile
from konsil.data.image_file import open_image
from konsil.data.reading import ImageReading
from konsil.export import konsil_onnx
from konsil.export.konsil_onnx import Pipeline, Refused, shares_of
from konsil.export.onnx_pipeline import write_onnx
from konsil.networks import NetworkSpec, build_network, outputs
from konsil.supermodel import NOVELTY, SuperModel
from konsil.supermodel.novelty import novelty, novelty_layout
from konsil.supermodel.rules import (
    Argmax,
    Blend,
    Ensemble,
    Even,
    Fixed,
    Rule,
    Threshold,
    Utility,
    to_json,
)
from konsil.weights import Weights
from tests.cli.test_experiments import called
from tests.supermodel.test_rules import ALONE, TABLE, images, super_model

SAID = [log(0.2), log(0.3), log(0.5)]  # of the global model and two sites


@pytest.mark.parametrize(
    ("rule", "probabilities", "expected"),
    [
        (Threshold(0.5), (0.7, 0.3), [0, 1, 0]),
        (Threshold(0.75), (0.75, 0.25), [1, 0, 0]),  # strictly surer
        (Threshold(0.0), (0.5, 0.5), [0, 1, 0]),  # of equals the first
        (Threshold(1.0), (1.0, 0.0), [1, 0, 0]),
        (Utility(ALONE), (0.9, 0.1), [0, 1, 0]),  # .5, .73, .24
        (Utility(TABLE), (0.1, 0.9), [0.5, 0, 0.5]),  # .5, .17, .56, .42, .66
        (Utility([[0.5, 0.5, 0.5]] * 2), (0.5, 0.5), [1, 0, 0]),
        (Blend(0.75), (0.25, 0.75), [0.25, 0, 0.75]),
        (Blend(0.8, 2), (0.25, 0.75), [0.2, 0.2, 0.6]),
        (Argmax(), (0.2, 0.5, 0.3), [0, 1, 0]),
        (Argmax(), (0.4, 0.4, 0.2), [1, 0, 0]),
        (Ensemble(), (0.2, 0.5, 0.3), [0.2, 0.5, 0.3]),
        (Fixed(2), (0.9, 0.1), [0, 0, 1]),
        (Fixed(0), (0.9, 0.1), [1, 0, 0]),
        (Even(), (0.9, 0.1), [0, 0.5, 0.5]),
    ],
)
def test_shares_by_hand(rule: Rule, probabilities, expected):
    given = np.array([probabilities], np.float32)
    assert shares_of(to_json(rule), given)[0].tolist() == pytest.approx(expected)


RULES = [
    Threshold(0.4), Threshold(0.9), Utility(ALONE), Utility(TABLE), Blend(0.3), Blend(0.6, 2),
    Fixed(1), Even(),
]  # fmt: skip


@given(arrays(np.float32, (4, 2), elements=st.floats(-8, 8, width=32)))
def test_shares_are_those_of_the_rules(logits):
    probabilities = konsil_onnx.softmax(logits)
    for rule in RULES:
        expected = rule.shares(torch.from_numpy(probabilities)).numpy()
        assert np.allclose(shares_of(to_json(rule), probabilities), expected, atol=1e-6)


def wider(model: SuperModel) -> SuperModel:
    """The same with what tells images of no site."""
    known = Weights.zeros(novelty_layout(2, 128))
    torch.manual_seed(3)
    known.flat.normal_()
    return SuperModel(model.facts, model.models | {NOVELTY: known})


MODELS = {
    "threshold": super_model([0.0, 1.0], Threshold(0.6)),
    "unsure": super_model([0.0, 1.0], Threshold(0.9)),
    "utility": super_model([0.0, 1.0], Utility(TABLE), temperature=2.0),
    "blend": super_model([0.0, 1.0], Blend(0.75)),
    "argmax": super_model(SAID, Argmax()),
    "ensemble": super_model(SAID, Ensemble()),
    "fixed": super_model([0.0, 1.0], Fixed(1)),
    "withheld": super_model([0.0, 1.0], Blend(0.75), withheld=["south"]),
    "novel": wider(super_model([0.0, 1.0], Blend(0.75), limit=-1e9)),
    "familiar": wider(super_model([0.0, 1.0], Blend(0.75), limit=1e9)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One export, and for every model of the same networks a copy with its own facts."""
    made = {}
    for outputs_, names in ((2, [n for n in MODELS if n not in ("argmax", "ensemble")]),
                            (3, ["argmax", "ensemble"])):  # fmt: skip
        first = tmp_path_factory.mktemp("onnx") / f"{outputs_}"
        write_onnx(MODELS[names[0]], first)
        for name in names:
            made[name] = first.with_name(name)
            shutil.copytree(first, made[name])
            retell(made[name], MODELS[name])
    return made


def retell(folder: Path, model: SuperModel) -> None:
    """The facts of another model of the same networks."""
    from konsil.export.onnx_pipeline import _digest, _write_novelty, pipeline_facts

    path = folder / "pipeline.json"
    files = json.loads(path.read_text())["files"]
    if NOVELTY in model.models:
        _write_novelty(model, folder / "novelty.npz")
        files[NOVELTY] = {"file": "novelty.npz", "sha256": _digest(folder / "novelty.npz")}
    for site in model.facts.withheld:
        (folder / files.pop(site)["file"]).unlink()
    path.write_text(json.dumps(pipeline_facts(model) | {"files": files}))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_route_and_the_same_answer(folders, name):
    model, x = MODELS[name], images()
    logits, route = Pipeline(folders[name]).answer(x.numpy())
    expected = model.answer(x)
    for key, value in vars(expected.route).items():
        found = getattr(route, key)
        assert np.allclose(found, value.numpy(), atol=1e-4, equal_nan=True), key
    assert Pipeline(folders[name]).asked(route) == model.asked(expected.route)
    found = konsil_onnx.to_probabilities("masks", logits)
    assert np.abs(found - expected.logits.sigmoid().numpy()).max() < 1e-4
    if (expected.route.shares == 1).any(dim=1).all():
        assert np.abs(logits - expected.logits.numpy()).max() < 1e-4


def test_every_rule_was_asked():
    assert {model.rule.name for model in MODELS.values()} == set(konsil_onnx.RULES) - {"even"}
    assert MODELS["novel"].route(images()).unfamiliar.all()
    assert MODELS["withheld"].asked(MODELS["withheld"].route(images())) == ["global"] * 3


def test_models_of_sites_alone_without_a_selector(tmp_path):
    model = super_model([0.0, 1.0], Even())
    alone = {name: model.models[name] for name in ("north", "south")}
    model = SuperModel(replace(model.facts, selector={}), alone)
    write_onnx(model, tmp_path)
    pipeline = Pipeline(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.onnx")) == ["000-north.onnx", "001-south.onnx"]
    assert pipeline.asked(pipeline.route(images().numpy())) == ["north + south"] * 3


def test_novelty_by_the_same_formula():
    known = wider(MODELS["blend"]).models[NOVELTY]
    features = torch.rand(5, 128, generator=torch.Generator().manual_seed(0))
    expected = novelty(known, features.double()).float().numpy()
    plain = {name: known[name].numpy() for name in ("whiten", "centres", "new")}
    assert np.allclose(konsil_onnx.novelty_of(plain, features.numpy()), expected, rtol=1e-4)


def test_probabilities_and_mixtures_are_torchs():
    x = torch.randn(2, 3, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 20
    shares = torch.tensor([[0.25, 0.75, 0], [0, 0, 1], [0.2, 0.3, 0.5]])
    for targets, logits in (("masks", x.transpose(0, 1)[:, 0]), ("classes", x[:, :, :, 0, 0][0])):
        same = [logits, logits * 0.3, -logits]
        found = konsil_onnx.mixed(targets, [one.numpy() for one in same], shares.numpy())
        expected = outputs.mixed(targets, same, shares)
        told = konsil_onnx.to_probabilities(targets, found)
        assert np.allclose(told, outputs.to_probabilities(targets, expected).numpy(), atol=1e-6)
        assert np.array_equal(found[1], same[2][1].numpy())


@pytest.mark.parametrize("size", [(7, 11), (32, 32), (64, 50), (200, 90)])
def test_maps_come_back_as_torch_brings_them(size):
    maps = torch.rand(2, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = outputs.at_size(maps[None], size)[0].numpy()
    assert np.abs(konsil_onnx.at_size(maps.numpy(), size) - expected).max() < 1e-5


# Pictures


def noise(shape: tuple[int, ...], top: int = 255, kind: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, top, shape, endpoint=True).astype(kind)


def saved(path: Path, image: Image.Image) -> Path:
    image.save(path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, Path]:
    grey, colour = Image.fromarray(noise((40, 60))), Image.fromarray(noise((40, 60, 3)))
    smooth = np.linspace(0, 65535, 40 * 60 * 3).reshape(40, 60, 3).astype(np.uint16)
    made = {
        "grey.png": grey,
        "colour.jpg": colour,
        "palette.png": colour.convert("P"),
        "alpha.png": colour.convert("RGBA"),
        "bits.bmp": grey.convert("1"),
        "cmyk.tif": colour.convert("CMYK"),
        "deep.png": Image.fromarray(noise((40, 60), 65535, np.uint16)),
        "deep.tif": Image.fromarray(noise((40, 60), 65535, np.uint16)),
    }
    found = {name: saved(tmp_path / name, image) for name, image in made.items()}
    for name, pixels in (("noisy.png", noise((40, 60, 3), 65535, np.uint16)), ("wide.png", smooth),
                         ("clear.png", noise((40, 60, 4), 65535, np.uint16))):  # fmt: skip
        found[name] = tmp_path / name
        sitk.WriteImage(sitk.GetImageFromArray(pixels, isVector=True), str(found[name]))
    return found


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("window", [None, "full", [20, 180], {"percentiles": [5, 95]}])
def test_a_picture_is_what_training_saw(pictures, window, channels):
    reading = ImageReading.from_json({"window": window})
    for name, path in pictures.items():
        expected = open_image(path, reading).plane(0, channels, 32)
        found = konsil_onnx.fit(konsil_onnx.open_picture(path, window), channels, 32)
        assert np.array_equal(found, expected.astype(np.float32) / np.float32(255)), name


def test_every_filter_of_wide_pngs_is_read(pictures):
    """Rows of the same bytes, filtered in each of the five ways."""
    pixels = readers.read_wide_colour(pictures["noisy.png"])
    line = pixels.astype(">u2").view(np.uint8).reshape(40, -1).astype(np.int64)
    left = np.concatenate([np.zeros((40, 6), np.int64), line[:, :-6]], axis=1)
    above = np.concatenate([np.zeros((1, 360), np.int64), line[:-1]])
    corner = np.concatenate([np.zeros((1, 360), np.int64), left[:-1]])
    paeth = np.vectorize(nearest)(left, above, corner)
    for kind, guess in enumerate((0 * line, left, above, (left + above) // 2, paeth)):
        filtered = ((line - guess) & 255).astype(np.uint8)
        for row in range(40):
            before = above[row].astype(np.uint8)
            found = konsil_onnx._unfiltered(kind, filtered[row], before, 6)
            assert np.array_equal(found, line[row].astype(np.uint8)), kind


def nearest(a: int, b: int, c: int) -> int:
    guess = a + b - c
    return min((abs(guess - a), 0, a), (abs(guess - b), 1, b), (abs(guess - c), 2, c))[2]


def test_what_konsil_refuses_is_refused(tmp_path):
    float_tiff = saved(tmp_path / "f.tif", Image.fromarray(noise((9, 9)).astype(np.float32)))
    frames = tmp_path / "two.tif"
    grey = Image.fromarray(noise((9, 9)))
    grey.save(frames, save_all=True, append_images=[grey])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    gif = saved(tmp_path / "g.gif", grey).rename(tmp_path / "g.png")
    for path in (float_tiff, frames, gif, *tmp_path.glob("*.png"), tmp_path / "gone.png"):
        with pytest.raises(BadFile):
            open_image(path, ImageReading())
        with pytest.raises(Refused):
            konsil_onnx.open_picture(path, None)


# The command


@pytest.fixture
def ward(tmp_path: Path, pictures: dict[str, Path]) -> Path:
    root = tmp_path / "ward"
    (root / "sub").mkdir(parents=True)
    for name in ("grey.png", "colour.jpg", "deep.tif"):
        shutil.copy(pictures[name], root / "sub" / name if name == "deep.tif" else root / name)
    return root


def script(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a Python that cannot find Konsil or torch, as elsewhere."""
    hide = "import sys; sys.modules['konsil'] = sys.modules['torch'] = None; "
    run = f"import runpy; sys.argv = {['x', *map(str, arguments)]!r}; "
    run += f"runpy.run_path({str(folder / 'konsil_onnx.py')!r}, run_name='__main__')"
    return subprocess.run([sys.executable, "-c", hide + run], capture_output=True, text=True)


def test_the_script_leaves_what_predict_leaves(folders, ward, tmp_path):
    MODELS["blend"].save(tmp_path / "model")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert called("predict", tmp_path / "model", ward, "-o", ours, "--no-overlays").code == 0
    done = script(folders["blend"], folders["blend"], ward, "-o", theirs)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 of 3 answered" in done.stdout
    here, there = ({p.relative_to(f) for f in (o,) for p in f.rglob("*")} for o in (ours, theirs))
    assert here == there
    for path in (p for p in ours.rglob("*.*") if p.suffix in (".png", ".tif")):
        mine, other = (
            np.asarray(Image.open(path)),
            np.asarray(Image.open(theirs / path.relative_to(ours))),
        )
        assert (mine != other).mean() < 1e-3  # a pixel on the edge may fall to the other side
        assert Image.open(theirs / path.relative_to(ours)).mode == "P"
    mine, other = ((o / "answers.csv").read_text().splitlines() for o in (ours, theirs))
    assert mine[0] == other[0]
    for one, two in zip(mine[1:], other[1:], strict=True):
        for a, b in zip(one.split(","), two.split(","), strict=True):
            assert a == b or abs(float(a) - float(b)) < 2e-3


def test_a_bad_picture_does_not_stop_the_others(folders, ward, tmp_path, capsys):
    (ward / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code = konsil_onnx.main([str(folders["blend"]), str(ward), "-o", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert code == 1
    assert "not answered: bad.png: image that cannot be read" in said.err
    assert "3 of 4 answered" in said.out
    assert len((tmp_path / "out" / "answers.csv").read_text().splitlines()) == 4


def changed(folder: Path, **facts: object) -> None:
    path = folder / "pipeline.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


SPOILED = {
    "no folder": (lambda f: shutil.rmtree(f), "not a folder of konsil export"),
    "no JSON": (lambda f: (f / "pipeline.json").write_text("{"), "not a folder of konsil export"),
    "a list": (lambda f: (f / "pipeline.json").write_text("[]"), "not a folder of konsil export"),
    "format": (lambda f: changed(f, format=7), "format 7, this script reads 1"),
    "rule": (lambda f: changed(f, routing={"rule": "dice"}), "'dice', which is no rule"),
    "a way out": (lambda f: changed(f, files={"global": {"file": "../x.onnx"}}), "names the file"),
    "damaged": (lambda f: (f / "000-global.onnx").write_bytes(b"x"), "damaged"),
    "gone": (lambda f: (f / "000-global.onnx").unlink(), "not there"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_folder_is_refused_in_a_sentence(folders, tmp_path, capsys, what):
    folder = tmp_path / "copy"
    shutil.copytree(folders["blend"], folder)
    spoil, why = SPOILED[what]
    spoil(folder)
    assert konsil_onnx.main([str(folder), "x.png", "-o", str(tmp_path / "out")]) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_sites_that_read_in_different_ways(folders, ward, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(folders["blend"], folder)
    changed(folder, reading={"north": {"window": [0, 100]}, "south": {"window": None}})
    arguments = [str(folder), str(ward), "-o", str(tmp_path / "out")]
    assert konsil_onnx.main(arguments) == 1
    assert "say as whose (--site)" in capsys.readouterr().err
    assert konsil_onnx.main([*arguments, "--site", "north"]) == 0
    assert konsil_onnx.main([*arguments, "--site", "west"]) == 1
    assert "west: no site of this model" in capsys.readouterr().err


def test_classes_go_into_the_table(tmp_path, ward):
    spec, selecting = NetworkSpec("small", 1, 3, 32), NetworkSpec("small", 1, 2, 32)
    torch.manual_seed(0)
    names = ("global", "north", "south")
    models = {name: Weights.of(build_network(spec)) for name in names}
    models["selector"] = Weights.of(build_network(selecting))
    facts = replace(
        MODELS["blend"].facts, task="classification", targets="classes", labels=["a", "b", "c"],
        network=spec.to_json(), selector=selecting.to_json(), routing=to_json(Blend(0.4)),
    )  # fmt: skip
    model = SuperModel(facts, models)
    write_onnx(model, tmp_path / "onnx")
    said = Pipeline(tmp_path / "onnx").predict(ward / "grey.png")
    (expected,) = model.predict(ward / "grey.png")
    assert np.allclose(said.probabilities, expected.probabilities[0].numpy(), atol=1e-5)
    assert konsil_onnx.main([str(tmp_path / "onnx"), str(ward), "-o", str(tmp_path / "out")]) == 0
    head, *rows = (tmp_path / "out" / "answers.csv").read_text().splitlines()
    assert head.endswith("class,sure,class_a,class_b,class_c")
    assert not (tmp_path / "out" / "masks").exists()
    assert len(rows) == 3
