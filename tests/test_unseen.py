"""`konsil unseen`: folds with the bits of ordinary runs, and what is said of a foreign hospital."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from konsil.config import check_experiment
from konsil.data import test_images as test_images_of
from konsil.errors import ConfigError
from konsil.evaluation import columns_of
from konsil.evaluation.foreign import asked_about
from konsil.evaluation.scores import FILE, read_scores
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.networks import NetworkSpec, build_network
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks.segmentation import Segmentation
from konsil.testing import write_squares
from konsil.unseen import folds
from konsil.weights import BoundNetwork
from tests.cli.test_experiments import called

SITES = ["east", "north", "south"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("experiment")
    write_squares(root / "images", {"north": 8, "south": 12, "east": 8})
    content = {
        "name": "tiny",
        "federation": {"folder": str(root / "images"), "image_size": 32},
        "network": {"name": "unet", "width": 2},
        "methods": ["local", "fedavg", "fedsm"],
        "rounds": 2,
    }
    (root / "tiny.yaml").write_text(yaml.safe_dump(content))
    return root / "tiny.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unseen"
    done = called("unseen", file, "--out", folder)
    assert done.code == 0, done.err
    return folder


def rows_of(folder, **wanted):
    rows = read_scores(folder / FILE).to_pylist()
    return [row for row in rows if row.items() >= wanted.items()]


def test_a_fold_has_the_bits_of_a_run_without_the_site(finished, file, tmp_path):
    plain = tmp_path / "plain"
    done = called("run", file, "--set", "federation.sites=[east,south]", "--out", plain)
    assert done.code == 0, done.err
    fold = finished / "without-north"
    names = ["results.csv", "splits.csv", *(p.relative_to(plain) for p in _weights(plain))]
    assert len(names) > 10
    for name in names:
        assert (fold / name).read_bytes() == (plain / name).read_bytes(), name


def _weights(folder):
    return sorted(folder.rglob("*.safetensors"))


def test_every_site_is_left_out_once_with_its_own_test_images(finished):
    plan = Plan.from_json(read_plan(finished))
    assert sorted(plan.sites) == SITES
    for site in SITES:
        assert read_plan(finished / f"without-{site}")["sites"] == [s for s in SITES if s != site]
        for role in ("local", "global", "super", "personal"):
            method = {"local": "local", "global": "fedavg"}.get(role, "fedsm")
            found = rows_of(finished, method=method, role=role, site=site)
            assert [row["image"] for row in found] == list(range(plan.images(site, "test")))
            assert len({row["patient"] for row in found}) == plan.images(site, "test")


def test_scores_are_those_of_the_folds_models(finished):
    """The global model's, asked by hand; a site's own in the mean of the others' own."""
    plan = Plan.from_json(read_plan(finished))
    images, task = test_images_of(plan.data_folder, "north"), Segmentation(["mask"])
    model = SuperModel.load(finished / "without-north" / "fedsm" / "seed0" / "supermodel")
    network = build_network(NetworkSpec.from_json(model.facts.network))
    alone = {
        name: columns_of(BoundNetwork(network), model.models[name], images, task)["dice"]
        for name in (GLOBAL, "east", "south")
    }
    fedsm = {
        role: [row["dice"] for row in rows_of(finished, method="fedsm", role=role, site="north")]
        for role in ("global", "personal", "super")
    }
    assert fedsm["global"] == pytest.approx(alone[GLOBAL], abs=1e-9)
    assert fedsm["personal"] == pytest.approx((alone["east"] + alone["south"]) / 2, abs=1e-9)
    fedavg = rows_of(finished, method="fedavg", role="global", site="north")
    assert [row["dice"] for row in fedavg] == fedsm["global"]  # FedSM's global model is FedAvg's
    for row in rows_of(finished, method="fedsm", role="super", site="north"):
        assert row["like_east"] + row["like_south"] == pytest.approx(1)
        assert row["like_north"] is None  # there was none
        assert row["score_of_east"] == pytest.approx(alone["east"][row["image"]], abs=1e-9)
        assert "selector_accuracy" not in row  # nobody can be right


def test_what_is_printed(finished, file):
    done = called("unseen", file, "--out", finished, "--resume")
    assert done.code == 0, done.err
    out = " ".join(done.out.split())
    assert "round 2/2" not in out  # nothing is trained twice
    for words in ("left out", "of the oracle", "like no site", "no difference found", *SITES):
        assert words in out
    assert (finished / "figures" / "gamma-fedsm.png").exists()
    assert called("compare", finished, "--metric", "surface_dice").code == 0


def test_a_fold_that_is_missing_is_made_and_the_rest_is_not(finished, file, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(finished, folder)
    expected = read_scores(finished / FILE).to_pylist()
    shutil.rmtree(folder / "without-south")
    kept = (folder / "without-east" / "events.jsonl").read_text().count("job_started")
    assert called("unseen", file, "--out", folder, "--resume").code == 0
    assert read_scores(folder / FILE).to_pylist() == expected
    assert (folder / "without-east" / "events.jsonl").read_text().count("job_started") == kept


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "not empty; add --resume"),
        (["--resume", "--set", "rounds=3"], "holds folds of another experiment (experiment.rounds"),
        (["--resume", "--site", "west"], "--site west: no site of the federation; east, north"),
    ],
)
def test_what_is_refused(finished, file, arguments, why):
    done = called("unseen", file, "--out", finished, *arguments)
    assert done.code == 1
    assert why in " ".join(done.err.split())


def test_two_sites_are_too_few(squares):
    experiment = check_experiment(
        {"name": "x", "federation": {"folder": str(squares)}, "methods": "fedavg", "rounds": 1}, ""
    )
    with pytest.raises(ConfigError, match="of 2 sites: with one left out 2 or more must train"):
        folds(experiment, ["north", "south"], [], Path("x"))


# --- whom a super model asks, by hand ------------------------------------------------------------


def row(sure: float, scores: tuple[float, float, float], asked: str, **further: float) -> dict:
    of_global, of_a, of_b = scores
    return {
        "dice": further.pop("dice", of_global),
        "asked": asked,
        "unfamiliar": further.pop("unfamiliar", 0.0),
        "like_a": sure,
        "like_b": 1 - sure,
        "score_of_global": of_global,
        "score_of_a": of_a,
        "score_of_b": of_b,
    }


def test_gamma_by_hand():
    rows = [
        row(0.96, (0.5, 0.9, 0.1), "a", dice=0.9),  # sure of a, and right to be
        row(0.60, (0.5, 0.3, 0.9), "global"),  # a specialist would be worse
        row(0.20, (0.6, 0.9, 0.7), "b", dice=0.7, unfamiliar=1.0),  # .8 sure of b
        row(1.00, (0.8, 0.2, 0.9), "global"),  # entirely sure, and wrong
    ]
    found = asked_about(rows, "dice")
    assert found.score == pytest.approx((0.9 + 0.5 + 0.7 + 0.8) / 4)
    assert found.of_global == pytest.approx((0.5 + 0.5 + 0.6 + 0.8) / 4)
    assert found.shares == {"global": 0.5, "a": 0.25, "b": 0.25}
    assert found.unfamiliar == 0.25
    assert found.by_gamma[0] == pytest.approx((0.9 + 0.3 + 0.7 + 0.2) / 4)
    assert found.by_gamma[0.7] == pytest.approx((0.9 + 0.5 + 0.7 + 0.2) / 4)
    assert found.by_gamma[0.85] == pytest.approx((0.9 + 0.5 + 0.6 + 0.2) / 4)
    assert found.by_gamma[0.999] == pytest.approx((0.5 + 0.5 + 0.6 + 0.2) / 4)
    assert found.by_gamma[1.0] == found.of_global  # 1 is never surer than 1
    assert found.oracle == 1.0
    assert found.by_gamma[found.oracle] == max(found.by_gamma.values())


def test_a_specialist_that_stays_with_its_hospital_is_the_global_model():
    rows = [row(0.9, (0.5, 0.9, 0.1), "global")]
    del rows[0]["score_of_a"]
    assert set(asked_about(rows, "dice").by_gamma.values()) == {0.5}


def test_of_equals_the_largest_gamma_is_the_oracles():
    found = asked_about([row(0.96, (0.5, 0.5, 0.5), "a")], "dice")
    assert found.oracle == 1.0


def test_the_curve_is_what_the_model_itself_answers_with_each_gamma(finished):
    """Algorithm 2 on the scores is Algorithm 2 on the images."""
    plan = Plan.from_json(read_plan(finished))
    images, task = test_images_of(plan.data_folder, "east"), Segmentation(["mask"])
    model = SuperModel.load(finished / "without-east" / "fedsm" / "seed0" / "supermodel")
    rows = [
        {name: value for name, value in one.items() if value is not None}
        for one in rows_of(finished, method="fedsm", role="super", site="east")
    ]
    found = asked_about(rows, "dice")
    x, y = images.batch(torch.arange(len(images)))
    for gamma in (0.0, 0.5, 0.9, 1.0):
        asked = model.with_gamma(gamma).changed(limit=None)
        scores = task.columns(asked.answer(x).logits, y)["dice"]
        assert np.mean(scores.tolist()) == pytest.approx(found.by_gamma[gamma], abs=1e-6)
