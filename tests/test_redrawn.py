"""Splits drawn anew: ordinary runs below one folder, and what is compared over them."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from konsil.evaluation.results import CLIENT_AVERAGE, read_results
from tests.cli.test_experiments import called

SEEDS = ("--split-seed", 0, "--split-seed", 3)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, shades: Path) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "tiny.yaml"
    content = {
        "name": "tiny",
        "federation": {"folder": str(shades), "image_size": 32},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 2},
        "methods": ["local", "fedavg"],
        "rounds": 2,
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    """What `konsil compare` has trained itself."""
    folder = tmp_path_factory.mktemp("runs") / "drawn"
    done = called("compare", file, *SEEDS, "--out", folder)
    assert done.code == 0, done.err
    assert "means over 2 draws of who is a test patient (split seeds 0, 3)" in done.out
    assert "corrected by" in done.out
    assert "local in each draw: client average" in " ".join(done.out.split())
    return folder


def as_json(*arguments: object) -> Any:
    done = called("compare", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_draw_has_the_bits_of_a_run_with_its_split_seed(drawn: Path, file: Path, tmp_path: Path):
    plain = tmp_path / "plain"
    done = called("run", file, "--set", "federation.split_seed=3", "--out", plain)
    assert done.code == 0, done.err
    weights = [path.relative_to(plain) for path in plain.rglob("*.safetensors")]
    assert len(weights) > 4
    for name in ("results.csv", "results-last.csv", "splits.csv", *weights):
        assert (drawn / "split3" / name).read_bytes() == (plain / name).read_bytes(), name


def asked_about(folder: Path) -> set[tuple[str, str]]:
    with open(folder / "splits.csv", newline="") as splits:
        return {(r["site"], r["image"]) for r in csv.DictReader(splits) if r["split"] == "test"}


def test_draws_test_other_patients(drawn: Path):
    assert asked_about(drawn / "split0") != asked_about(drawn / "split3")


def test_numbers_are_means_over_draws(drawn: Path):
    found = as_json(drawn)
    assert found["split_seeds"] == [0, 3]
    by_draw = {
        (row.method, seed): row.value
        for seed in (0, 3)
        for row in read_results(drawn / f"split{seed}" / "results.csv")
        if (row.split, row.site, row.metric) == ("test", CLIENT_AVERAGE, "accuracy")
    }
    for line in found["compared"]:
        own = [by_draw[line["method"], seed] for seed in (0, 3)]
        assert line["scores"]["client_average"]["value"] == pytest.approx(sum(own) / 2)
    gains = found["compared"][1]["gains"]["client_average"]
    expected = [by_draw["fedavg", seed] - by_draw["local", seed] for seed in (0, 3)]
    assert gains["draws"] == pytest.approx(expected)
    # half of the images of both sites train, a quarter is tested
    assert "by 0.50 test images for one that trains" in called("compare", drawn).out


def test_runs_of_several_draws_are_compared_wherever_they_are(drawn: Path, tmp_path: Path):
    shutil.copytree(drawn / "split3", tmp_path / "elsewhere")
    assert as_json(drawn / "split0", tmp_path / "elsewhere") == as_json(drawn)


def test_one_draw_is_compared_over_patients(drawn: Path):
    done = called("compare", drawn / "split3")
    assert "bootstrap over" in done.out
    assert "draws of who" not in done.out


def test_a_further_draw_goes_on_with_those_that_are_done(drawn: Path, file: Path, tmp_path: Path):
    folder = tmp_path / "again"
    shutil.copytree(drawn, folder)
    refused = called("run", file, *SEEDS, "--split-seed", 5, "--out", folder)
    assert "not empty; add --resume" in refused.err
    done = called("run", file, *SEEDS, "--split-seed", 5, "--out", folder, "--resume")
    assert done.code == 0, done.err
    assert f"all draws: konsil compare {folder}" in done.out
    assert as_json(folder)["split_seeds"] == [0, 3, 5]
    for seed, times in ((0, 2), (3, 2), (5, 2)):  # jobs: none was trained again
        events = (folder / f"split{seed}" / "events.jsonl").read_text()
        assert events.count("job_started") == times


def test_a_dry_run_of_draws_leaves_nothing(file: Path, tmp_path: Path):
    done = called("run", file, *SEEDS, "--dry-run", "--out", tmp_path / "d")
    assert (done.code, (tmp_path / "d").exists()) == (0, False)


def test_what_does_not_go_together_is_refused(
    drawn: Path, file: Path, tmp_path: Path, shades: Path
):
    smaller = called("run", file, "--set", "federation.sites=[north]", "--set", "rounds=1",
                     "--set", "federation.split_seed=7", "--out", tmp_path / "other")  # fmt: skip
    assert smaller.code == 0, smaller.err
    done = called("compare", drawn, tmp_path / "other")
    assert "not the same federation drawn anew" in done.err
    assert "holds a run of one draw" in called(
        "run", file, *SEEDS, "--out", drawn / "split0"
    ).err  # fmt: skip
    assert "--split-seed go with an experiment file" in called("compare", drawn, *SEEDS).err


def test_splits_that_are_given_cannot_be_drawn(
    drawn: Path, file: Path, tmp_path: Path, shades: Path
):
    images = tmp_path / "images"
    shutil.copytree(shades, images)
    table = shutil.copy(drawn / "split0" / "splits.csv", images / "list.csv")
    done = called("run", file, "--set", "federation.folder=null", "--set",
                  f"federation.csv={table}", *SEEDS, "--out", tmp_path / "d")  # fmt: skip
    assert done.code == 1
    assert "--split-seed 3: the same splits as with 0" in done.err
