"""`konsil compare` as it is called: on a run of real methods, and with what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from konsil.evaluation.results import read_results
from tests.cli.test_experiments import called


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, squares: Path) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "tiny.yaml"
    content = {
        "name": "tiny",
        "federation": {"folder": str(squares), "image_size": 32},
        "network": {"name": "unet", "width": 2},
        "methods": ["local", "fedavg", "fedsm"],
        "rounds": 2,
        "seeds": [0, 1],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    """A run that `konsil compare` has trained itself."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = called("compare", file, "--out", folder)
    assert done.code == 0, done.err
    assert "Dice minus that of local: client average" in done.out
    return folder


def as_json(*arguments: object) -> Any:
    done = called("compare", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_both_tables_and_what_must_be_known(finished):
    done = called("compare", finished)
    assert done.code == 0, done.err
    for name in ("local", "fedavg global", "fedsm personal", "fedsm super"):  # super: maybe a twin
        assert name in done.out
    for column in ("north", "south", "client average", "all images", "worst site", "spread"):
        assert column in " ".join(done.out.split())
    assert "5 test images of 2 sites, mean over 2 seeds" in done.out
    assert "bootstrap over images (of no two is known" in done.out  # each is a patient's only one
    # FedSM's global model is FedAvg's: one line, and one test
    assert "fedavg global: also fedsm global" in " ".join(done.out.split())
    assert done.out.count("fedsm global") == 1
    assert "no difference found" in done.out  # five patients show nothing


def test_the_numbers_are_those_of_the_results(finished):
    found = as_json(finished)
    rows = read_results(finished / "results.csv")
    assert found["against"] == "local"
    assert found["patients"] == found["images"] == 5
    for line in found["compared"]:
        assert line["seeds"] == [0, 1]
        for column in ("north", "south", "client_average", "global"):
            wanted = line["method"], line["role"], "test", column, "dice"
            values = [
                r.value for r in rows if (r.method, r.role, r.split, r.site, r.metric) == wanted
            ]
            assert line["scores"][column]["value"] == pytest.approx(sum(values) / 2)
        sites = [line["scores"][site]["value"] for site in ("north", "south")]
        assert line["scores"]["worst site"]["value"] == pytest.approx(min(sites))
        assert line["scores"]["spread"]["value"] == pytest.approx(max(sites) - min(sites))
    local, *others = found["compared"]
    assert local["gains"] == {}
    for line in others:
        gain, scores = line["gains"]["north"], line["scores"]["north"]
        assert gain["value"] == pytest.approx(scores["value"] - local["scores"]["north"]["value"])
        assert gain["p"] <= gain["holm"] <= 1


def test_the_worst_site_of_a_distance_is_the_farthest(finished):
    for line in as_json(finished, "--metric", "hd95")["compared"]:
        sites = [line["scores"][site]["value"] for site in ("north", "south")]
        assert sites[0] != sites[1]
        assert line["scores"]["worst site"]["value"] == pytest.approx(max(sites))


def test_another_metric_reference_and_hospital(finished):
    done = called("compare", finished, "--metric", "hd95", "--site", "north")
    assert "95 % Hausdorff distance minus that of local: north" in done.out
    assert "less is better" in done.out
    assert "worst site" in done.out
    done = called("compare", finished, "--against", "fedavg global")
    assert "Dice minus that of fedavg global: client average" in done.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--metric", "f1"], "no f1; there is dice, hd95, surface_dice"),
        (["--against", "fedprox"], "fedprox: nobody of that name is compared"),
        (["--site", "west"], "--site west: one of north, south, client_average, global"),
        (["--structure", "lens"], "no image has a score in dice of lens"),
        (["--resume"], "go with an experiment file"),
    ],
)
def test_what_is_refused(finished, arguments, why):
    done = called("compare", finished, *arguments)
    assert done.code == 1
    assert why in " ".join(done.err.split())


def test_what_is_no_run_is_refused(tmp_path, file):
    assert "not a run folder" in called("compare", tmp_path).err
    assert "one experiment file" in called("compare", file, file).err
