"""`konsil join`: a late joiner's specialist against going alone, with the bits of the machinery."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from konsil import api
from konsil.config import PLAIN
from konsil.data import images as images_module
from konsil.data import open_federation, training_data
from konsil.evaluation import columns_of
from konsil.evaluation.comparison import compare
from konsil.evaluation.scores import FILE, read_scores
from konsil.ingredients.site import Site
from konsil.joining import Joining, Wanted, experiment_of
from konsil.networks import NetworkSpec, build_network
from konsil.report.joining import ALONE, AS_IS, PULLED, SHORT, START, TUNED, Choices, Joined, words
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks.segmentation import Segmentation
from konsil.testing import write_shades, write_squares
from konsil.weights import BoundNetwork, Weights
from tests.cli.test_experiments import called

EPOCHS, ROUNDS = 3, 4
KINDS = {
    "masks": (write_squares, "structures: {square: [255]}",
              "{images: SITE/images/*.png, labels: SITE/masks/*.png}",
              {"network": {"name": "unet", "width": 2}}),
    "classes": (write_shades, "task: classification\nclasses: [healthy, ill]",
                "{images: SITE/*/*.png, labels: folder}",
                {"network": {"name": "small"}, "task": {"name": "classification"}}),
}  # fmt: skip


def file_of(root: Path, kind: str, name: str, sites: list[str]) -> Path:
    _, head, block, _ = KINDS[kind]
    lines = "".join(f"  {site}: {block.replace('SITE', site)}\n" for site in sites)
    (root / name).write_text(f"{head}\nchannels: 1\nsites:\n{lines}")
    return root / name


def make(root: Path, kind: str) -> Path:
    """A consortium's super model, and the federation file of a hospital called Klinikum."""
    write, _, _, blocks = KINDS[kind]
    write(root, {"north": 8, "south": 12, "west": 20})
    for path in sorted((root / "west").rglob("*.png")):
        path.rename(path.with_name(f"Mueller_{path.name}"))
    file_of(root, kind, "west.yaml", ["west"])
    ours = file_of(root, kind, "ours.yaml", ["north", "south"])
    experiment = {
        "name": "tiny",
        "federation": {"file": str(ours), "image_size": 32},
        "training": {**PLAIN, "batch_size": 3},
        "methods": ["fedsm"],
        "rounds": ROUNDS,
        **blocks,
    }
    (root / "tiny.yaml").write_text(yaml.safe_dump(experiment))
    done = called("run", root / "tiny.yaml", "--out", root / "run")
    assert done.code == 0, done.err
    return root


def joined(root: Path, out: Path, *more: object) -> str:
    done = called("join", root / "run", "--data", root / "west.yaml", "--out", out,
                  "--epochs", EPOCHS, *more)  # fmt: skip
    assert done.code == 0, done.err
    return done.out


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("masks"), "masks")


@pytest.fixture(scope="module")
def trial(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trials") / "west"
    joined(root, out)
    return out


def rows_of(folder: Path, **wanted: object) -> list[dict]:
    return [row for row in read_scores(folder / FILE).to_pylist() if row.items() >= wanted.items()]


def model_of(root: Path) -> SuperModel:
    return SuperModel.load(root / "run" / "fedsm" / "seed0" / "supermodel")


def val_scores(root: Path, candidates: dict[str, Weights]) -> dict[str, float]:
    model = model_of(root)
    config = {"file": root / "west.yaml", "image_size": 32, "channels": 1}
    federation = open_federation_of(config)
    data = training_data(federation.folder, ["west"])
    bound = BoundNetwork(build_network(NetworkSpec.from_json(model.facts.network)))
    task = Segmentation(["square"])
    return {
        name: float(columns_of(bound, weights, data.val, task)["dice"].mean())
        for name, weights in candidates.items()
    }


def open_federation_of(config: dict):
    from konsil.config import FederationConfig, TaskConfig

    return open_federation(FederationConfig(**config), TaskConfig())


def test_alone_is_the_local_method_of_a_run_bit_for_bit(root, trial, tmp_path):
    """The control is what `konsil run` trains with `local` at that hospital, so long and short."""
    raw = yaml.safe_load((root / "tiny.yaml").read_text())
    raw |= {"methods": ["local"]}
    raw["federation"] = {"file": str(root / "west.yaml"), "image_size": 32}
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump(raw))
    for name, rounds in ((ALONE, ROUNDS), (SHORT, EPOCHS)):
        out = tmp_path / f"run{rounds}"
        done = called("run", tmp_path / "alone.yaml", "--set", f"rounds={rounds}", "--out", out)
        assert done.code == 0, done.err
        own = Weights.load(out / "local/seed0/sites/west/best/local.safetensors")
        step = name.replace(", ", "-").replace(" ", "-")
        assert Weights.load(trial / "steps/seed0" / f"{step}.safetensors").equals(own)
        values = [(r["image"], r["patient"], r["dice"], r["hd95"]) for r in rows_of(out)]
        found = [(r["image"], r["patient"], r["dice"], r["hd95"])
                 for r in rows_of(trial, method=name)]  # fmt: skip
        assert found == values


def test_alone_is_the_best_epoch_and_not_the_last(root, monkeypatch):
    """Validation prefers the second of four epochs: that is what two epochs would have left."""
    model, wanted = model_of(root), Wanted(EPOCHS, None, "none", (0,))
    e = experiment_of(model, root / "west.yaml", None, wanted, [], "cpu")
    joining = Joining(model, e, api.open_federation(e.federation, e.task, quiet=True), wanted)
    told = iter([0.1, 0.2, 0.9, 0.3, 0.4, *(0.1, 0.2, 0.9)])
    monkeypatch.setattr(Site, "score", lambda site, weights: next(told))
    best, said = joining.from_scratch(0, 4, "alone")
    assert said["scores"] == [0.1, 0.2, 0.9, 0.3, 0.4]
    assert best.equals(joining.from_scratch(0, 2, "alone")[0])


def test_the_start_is_the_best_model_on_validation_images(root, trial):
    said = json.loads((trial / "report.json").read_text())["choices"]
    model = model_of(root)
    expected = val_scores(root, {name: model.models[name] for name in model.answerers})
    assert said["starts"] == pytest.approx(expected, abs=1e-9)
    assert list(said["starts"]) == [GLOBAL, "north", "south"]
    assert said["start"] == max(expected, key=expected.__getitem__)
    scores = said["seeds"]["0"][TUNED]["scores"]
    assert scores[0] == said["starts"][said["start"]]  # no epoch yet
    assert len(scores) == EPOCHS + 1
    tuned = Weights.load(trial / "steps/seed0/specialist.safetensors")
    assert val_scores(root, {"tuned": tuned})["tuned"] == pytest.approx(max(scores), abs=1e-9)


def test_the_pull_is_the_best_on_validation_images(root, trial):
    """lambda w + (1 - lambda) mean of the others' specialists, the weaker pull of equals."""
    model = model_of(root)
    tuned = Weights.load(trial / "steps/seed0/specialist.safetensors")
    mean = (model.models["north"].flat + model.models["south"].flat) / 2
    candidates = {}
    for share in (0.88, 0.64, 0.4, 0.16, 0.0):
        weights = tuned.clone()
        weights.flat.copy_(share * tuned.flat + (1 - share) * mean)
        candidates[share] = weights
    expected = val_scores(root, candidates)
    said = json.loads((trial / "report.json").read_text())["choices"]["seeds"]["0"]
    assert said[PULLED]["score"] == pytest.approx(max(expected.values()), abs=1e-6)
    assert expected[said[PULLED]["lambda"]] == pytest.approx(max(expected.values()), abs=1e-6)
    wins = said[PULLED]["score"] > max(said[TUNED]["scores"])
    assert said["chosen"] == (said[PULLED]["lambda"] if wins else 1)
    final = SuperModel.load(trial / "model").models["west"]
    best = candidates[said["chosen"]] if wins else tuned
    assert torch.allclose(final.flat, best.flat, atol=1e-6)
    assert final.equals(tuned) is not wins


def test_lambda_by_hand(root, tmp_path):
    joined(root, tmp_path / "one", "--lambda", 1, "--alone", 1)  # no pull at all
    pulled, tuned = (rows_of(tmp_path / "one", method=name) for name in (PULLED, TUNED))
    assert [r["dice"] for r in pulled] == [r["dice"] for r in tuned]
    joined(root, tmp_path / "none", "--lambda", "none", "--alone", 1)
    assert rows_of(tmp_path / "none", method=PULLED) == []
    assert rows_of(tmp_path / "none", method=TUNED) == tuned


def test_the_super_model_as_it_is_answers_as_konsil_evaluate_says(root, trial, tmp_path):
    done = called("evaluate", root / "run", "--data", root / "west.yaml", "--split", "test",
                  "--out", tmp_path / "out")  # fmt: skip
    assert done.code == 0, done.err
    names = ("image", "patient", "dice", "hd95", "asked", "like_north", "score_of_south")
    found, expected = rows_of(trial, method=AS_IS), rows_of(tmp_path / "out")
    assert [[r[n] for n in names] for r in found] == [[r[n] for n in names] for r in expected]
    start = json.loads((trial / "report.json").read_text())["choices"]["start"]
    alone = [row[f"score_of_{start}"] for row in expected]
    assert [row["dice"] for row in rows_of(trial, method=START)] == pytest.approx(alone, abs=1e-9)


def test_test_images_are_opened_when_all_is_chosen(root, tmp_path, monkeypatch):
    out, usual, opened = tmp_path / "out", images_module.test_images, []

    def watched(folder, site):
        opened.append(sorted(p.name for p in out.rglob("*.safetensors")))
        return usual(folder, site)

    monkeypatch.setattr(images_module, "test_images", watched)
    joined(root, out, "--seed", 0, "--seed", 1, "--alone", 1)
    everything = sorted(p.name for p in out.rglob("*.safetensors"))
    assert len(everything) == 2 * 3 + 2  # three trainings a seed; the model's own two
    assert opened
    assert all(names == everything for names in opened)
    assert {row["seed"] for row in rows_of(out, method=ALONE)} == {0, 1}
    assert {row["seed"] for row in rows_of(out, method=AS_IS)} == {0}


def test_what_is_done_is_not_trained_again(root, trial, tmp_path):
    """Killed after any step, it goes on with the same bits."""
    out = tmp_path / "again"
    shutil.copytree(trial, out)
    expected = (out / FILE).read_bytes()
    for name in (FILE, "report.json", "steps/seed0/alone.json"):
        (out / name).unlink()
    (out / "steps/seed0/alone.safetensors").write_bytes(b"half a file")
    kept = (out / "steps/seed0/specialist.safetensors").stat().st_mtime_ns
    refused = called("join", root / "run", "--data", root / "west.yaml", "--out", out,
                     "--epochs", EPOCHS)  # fmt: skip
    assert (refused.code, "add --resume" in refused.err) == (1, True)
    joined(root, out, "--resume")
    assert (out / FILE).read_bytes() == expected
    assert (out / "report.json").read_text() == (trial / "report.json").read_text()
    assert (out / "steps/seed0/specialist.safetensors").stat().st_mtime_ns == kept


def test_what_is_said_and_left(trial, root):
    out = joined(root, trial, "--resume")
    words = " ".join(out.split())
    for text in ("west:", "Alone, from scratch, 4 epochs", "which has never seen it",
                 "A specialist of its own, from", "Against training alone, the specialist",
                 "The selector does not know west", "no difference found"):  # fmt: skip
        assert text in words, text
    left = {p.relative_to(trial).as_posix() for p in trial.rglob("*") if p.is_file()}
    assert {"summary.md", "report.json", FILE, "figures/joining.png", "figures/joining.svg",
            "model/model.json", "join.json"} <= left  # fmt: skip
    assert "What would joining late bring west?" in (trial / "summary.md").read_text()
    found = compare([trial], "surface_dice")  # every metric is in the scores
    assert len(found.candidates) == 6
    for path in trial.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"Mueller" not in content, path
            assert str(root).encode() not in content, path


def test_its_own_model_answers_when_it_is_asked(trial, root, tmp_path):
    picture = next((root / "west" / "images").glob("*.png"))
    for more, who in (([], "west"), (["--ask", "west"], "west"), (["--ask", "global"], "global")):
        out = tmp_path / f"answers{len(list(tmp_path.iterdir()))}"
        done = called("predict", trial / "model", picture, "-o", out, *more)
        assert done.code == 0, done.err
        assert f"asked: {who} 1" in done.out
    done = called("evaluate", trial / "model", "--data", root / "west.yaml", "--split", "test",
                  "--out", tmp_path / "out")  # fmt: skip
    assert done.code == 0, done.err
    said = json.loads((trial / "report.json").read_text())
    final = [row["dice"] for row in rows_of(trial, method=said["final"])]
    assert [row["dice"] for row in rows_of(tmp_path / "out")] == pytest.approx(final, abs=1e-9)


def test_classes(tmp_path):
    root = make(tmp_path, "classes")
    out = joined(root, tmp_path / "out", "--alone", 2, "--lambda", 0.5, "--json")
    said = json.loads(out)
    assert said["metric"] == "accuracy"
    assert [line["who"] for line in said["compared"]] == [AS_IS, START, TUNED, PULLED, SHORT, ALONE]
    assert said["choices"]["seeds"]["0"][PULLED]["lambda"] == 0.5


def test_a_model_whose_folder_does_not_say_how_it_was_trained(root, tmp_path):
    model = model_of(root)
    told = {k: v for k, v in model.facts.provenance.items() if k in ("konsil", "rounds")}
    wanted = Wanted(3, None, "auto", (0,))
    found = experiment_of(model, root / "west.yaml", None, wanted, [], "cpu")
    assert (found.training.batch_size, found.training.augment, found.rounds) == (3, "none", ROUNDS)
    usual = experiment_of(
        model.changed(provenance=told), root / "west.yaml", None, wanted, ["training.lr=0.5"], "cpu"
    )
    assert (usual.training.batch_size, usual.training.lr, usual.rounds) == (8, 0.5, ROUNDS)
    bare = model.changed(provenance={})
    assert experiment_of(bare, root / "west.yaml", None, wanted, [], "cpu").rounds == 40


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--epochs", 2], "holds another trial (epochs differ)"),
        (["--lambda", 2], "--lambda 2: auto, none, or a number from 0 to 1"),
        (["--set", "rounds=3"], "--set rounds=3: keys of training, compute, federation, task"),
        (["--set", "training.lr=2"], "holds another trial (training differ)"),
        (["--site", "east"], "federation.sites names east, which is not there"),
        (["--data", "ours.yaml"], "north, south: one hospital joins at a time"),
        (["--data", "ours.yaml", "--site", "north"], "has a specialist of that name already"),
        (["--data", "other.yaml"], "the model answers square, these images are labelled circle"),
    ],
)
def test_what_is_refused(root, trial, more, why):
    text = (root / "west.yaml").read_text()
    (root / "other.yaml").write_text(text.replace("square", "circle"))
    given = [root / value if str(value).endswith(".yaml") else value for value in more]
    data = [] if "--data" in more else ["--data", root / "west.yaml"]
    epochs = [] if "--epochs" in more else ["--epochs", EPOCHS]
    done = called("join", root / "run", "--out", trial, "--resume", *data, *epochs, *given)
    assert (done.code, why in " ".join(done.err.split())) == (1, True), done.err


def test_structures_in_another_order(tmp_path, root):
    """The model's square is the second structure of the file: targets go by name."""
    text = (root / "west.yaml").read_text()
    (root / "two.yaml").write_text(text.replace("{square", "{rest: [7], square"))
    base = ["join", root / "run", "--epochs", 1, "--alone", 1, "--lambda", "none"]
    for name in ("west", "two"):
        done = called(*base, "--data", root / f"{name}.yaml", "--out", tmp_path / name)
        assert done.code == 0, done.err
    found = [[(r["method"], r["dice"]) for r in rows_of(tmp_path / n)] for n in ("west", "two")]
    assert found[0] == found[1]


# --- words, by hand -------------------------------------------------------------------------------


def test_words_by_hand(tmp_path):
    """Twenty patients: the specialist gains .2 at each, the super model loses at half of them."""
    from konsil.evaluation.scores import Scored, write_scores

    task, patients = Segmentation(["square"]), list(range(20))
    base = np.linspace(0.5, 0.7, 20)
    values = {AS_IS: base + np.where(np.arange(20) % 2, 0.05, -0.05), START: base,
              TUNED: base + 0.2, SHORT: base - 0.1, ALONE: base}  # fmt: skip
    rows = [
        row
        for name, own in values.items()
        for row in Scored(name, 0, name, ["a"], {"west": {"dice": own.tolist()}}).rows(
            task, {"west": patients}
        )
    ]
    write_scores(tmp_path / FILE, rows)
    seed = {TUNED: {"scores": [0.1, 0.4, 0.4]}, ALONE: {"scores": [0.1, 0.3]}, "chosen": 1.0}
    images = {"train": 30, "val": 10, "test": 20}
    choices = Choices("west", "a", {"global": 0.1, "a": 0.2}, 2, 9, images, {"0": seed})
    said = " ".join(words(Joined(choices, compare([tmp_path], "dice"), task)))
    assert "20 test images of 20 patients" in said
    assert "Alone, from scratch, 9 epochs: 0.600" in said
    assert "from a, fine-tuned for 1 of at most 2 epochs: 0.800" in said  # the earlier of equals
    assert "the specialist +0.200 (95 %: +0.200 to +0.200): better" in said
    assert "the super model +0.000" in said
    assert "no difference found" in said
    assert choices.tuned_for == [1]
    assert choices.final == TUNED
