"""`konsil personalise`: a run's models trained further, at home, elsewhere, and in folds."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from konsil.evaluation.levels import drawn_images
from konsil.evaluation.scores import FILE as RUN_FILE
from konsil.evaluation.scores import read_scores
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.personalise import FILE
from konsil.testing import SIZE, write_shades
from tests.cli.test_experiments import KONSIL, MINUTES, called

SITES = ["east", "north", "south"]
CONTENT = {
    "name": "tiny",
    "task": {"name": "classification"},
    "network": {"name": "small"},
    # the last models, so that fine-tuning at the end of a run begins with the same
    "training": {"keep": "last", "batch_size": 4},
    "methods": [
        "local",
        "fedavg",
        "fedsoup",
        {"name": "ft", "epochs": 2, "early_stopping": False},
        "centralized",
    ],
    "rounds": 2,
    "seeds": [0, 1],
}
ROLES = {
    "local": "local",
    "fedavg": "global",
    "fedsoup": "personal",
    "ft": "personal",
    "centralized": "centralized",
}
METRICS = ("accuracy", "score", "target", "predicted", "confidence", "patient")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("experiment")
    write_shades(root / "images", {"north": 16, "south": 20, "east": 24})
    federation = {"folder": str(root / "images"), "image_size": SIZE}
    (root / "tiny.yaml").write_text(yaml.safe_dump(CONTENT | {"federation": federation}))
    return root / "tiny.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    """A run that `konsil personalise` has trained itself."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = called("personalise", file, "--out", folder, "--epochs", 1, "--epochs", 2)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    """What `konsil unseen` leaves, personalised."""
    folder = tmp_path_factory.mktemp("runs") / "folds"
    methods = ("--set", "methods=[fedavg,fedsoup]", "--set", "seeds=[0]")
    assert called("unseen", file, *methods, "--out", folder).code == 0
    assert called("personalise", folder, "--epochs", 1).code == 0
    return folder


def key(row):
    return row["method"], row["seed"], row["role"], row["site"], row["image"]


def at_home(folder: Path, epochs: int, name: str = FILE):
    rows = read_scores(folder / name).to_pylist()
    return {key(r): r for r in rows if r["epochs"] == epochs and r["model"] == r["site"]}


def of_run(folder: Path):
    return {key(row): row for row in read_scores(folder / RUN_FILE).to_pylist()}


# --- the models -----------------------------------------------------------------------------------


def test_before_any_epoch_scores_are_the_runs_own(finished):
    """Of each method in the role in which a site uses it, to the bit."""
    found, run = at_home(finished, 0), of_run(finished)
    wanted = {k for k in run if ROLES[k[0]] == k[2]}
    assert found.keys() == wanted
    assert {k[0] for k in wanted} == set(ROLES)
    for k, row in found.items():
        assert [row[name] for name in METRICS] == [run[k][name] for name in METRICS], k


def test_outlines_too_with_every_structure_and_distance(tmp_path, squares):
    content = {
        "name": "outlines",
        "federation": {"folder": str(squares), "image_size": SIZE},
        "network": {"name": "unet", "width": 2},
        "methods": ["fedbn"],
        "rounds": 1,
    }
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(content))
    done = called("personalise", tmp_path / "x.yaml", "--out", tmp_path / "run", "--epochs", 0)
    assert done.code == 0, done.err
    assert "Dice after local epochs" in done.out
    found, run = at_home(tmp_path / "run", 0), of_run(tmp_path / "run")
    assert found.keys() == run.keys()
    for k, row in found.items():
        assert all(row[name] == value for name, value in run[k].items())
    assert called("personalise", tmp_path / "run", "--epochs", 0, "--metric", "hd95").code == 0
    by_volume = called("personalise", tmp_path / "run", "--epochs", 0, "--metric", "volume_dice")
    assert "volume Dice after local epochs" in by_volume.out


def test_fine_tuned_fedavg_is_ft(finished):
    """What a run does at its end is found again, to the bit: same data, order, augmentation."""
    tuned, run = at_home(finished, 2), of_run(finished)
    found = [k for k in tuned if k[0] == "fedavg"]
    assert found
    for method, seed, _, *place in found:
        of_ft = run["ft", seed, "personal", *place]
        own = tuned[method, seed, "global", *place]
        assert [own[name] for name in METRICS] == [of_ft[name] for name in METRICS]
    assert any(tuned[k]["score"] != at_home(finished, 1)[k]["score"] for k in found)


def test_a_model_for_all_answers_alike_for_everybody_until_it_is_tuned(finished):
    rows = read_scores(finished / FILE).to_pylist()
    for epochs, alike in ((0, True), (1, False)):
        told: dict[tuple, set[float]] = {}
        for row in rows:
            if (row["method"], row["epochs"]) == ("fedavg", epochs):
                told.setdefault(key(row), set()).add(row["score"])
        assert {len(scores) for scores in told.values()} == {1 if alike else len(SITES)}


def test_every_model_is_asked_about_every_sites_images(finished):
    plan = Plan.from_json(read_plan(finished))
    rows = read_scores(finished / FILE).to_pylist()
    images = sum(plan.images(site, "test") for site in SITES)
    assert len(rows) == len(ROLES) * 2 * 3 * len(SITES) * images  # methods, seeds, epochs, models


# --- going on -------------------------------------------------------------------------------------


def copied(finished: Path, tmp_path: Path) -> Path:
    """The run as it was before it was personalised."""
    left = shutil.ignore_patterns("personalised", FILE, "figures")
    return Path(shutil.copytree(finished, tmp_path / "again", ignore=left))


def test_fewer_epochs_are_the_beginning_of_more_and_what_is_done_is_not_repeated(
    finished, tmp_path
):
    folder = copied(finished, tmp_path)
    part = folder / "fedsoup" / "seed1" / "personalised" / "north.parquet"
    asked = ("personalise", folder, "--method", "fedsoup")
    assert called(*asked, "--epochs", 1).code == 0
    assert set(read_scores(part).to_pydict()["epochs"]) == {0, 1}
    assert called(*asked, "--epochs", 2).code == 0  # one pass finds both
    whole = finished / part.relative_to(folder)
    assert part.read_bytes() == whole.read_bytes()
    before = part.stat().st_mtime_ns
    assert called(*asked, "--epochs", 1, "--epochs", 2).code == 0
    assert part.stat().st_mtime_ns == before
    # what was found of other methods and epochs stays in the file of all
    assert called("personalise", folder, "--method", "fedavg", "--epochs", 0).code == 0
    told = read_scores(folder / FILE).to_pydict()
    assert set(zip(told["method"], told["epochs"], strict=True)) == {
        *(("fedsoup", epochs) for epochs in (0, 1, 2)),
        ("fedavg", 0),
    }


def test_worker_processes_find_the_same_and_a_killed_command_goes_on(file, finished, tmp_path):
    """Killed as soon as the first site's scores are there."""
    folder = copied(finished, tmp_path)
    plan = (folder / "plan.yaml").read_text().replace("name: inprocess", "name: processes")
    (folder / "plan.yaml").write_text(plan.replace("workers: null", "workers: 2"))
    options = ["--epochs", "1", "--epochs", "2", "--method", "fedsoup"]
    process = subprocess.Popen(
        [*KONSIL, "personalise", str(folder), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + MINUTES
    while not list(folder.rglob("personalised/*.parquet")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = called("personalise", folder, *options)
    assert done.code == 0, done.err
    parts = sorted(path.relative_to(folder) for path in folder.rglob("personalised/*"))
    assert len(parts) == 2 * len(SITES)  # of both seeds
    for path in parts:
        assert (folder / path).read_bytes() == (finished / path).read_bytes()


# --- folds ----------------------------------------------------------------------------------------


def test_folds_are_asked_about_the_site_that_they_leave_out(folds):
    rows = read_scores(folds / FILE).to_pylist()
    known = of_run(folds)  # what konsil unseen has found
    for row in rows:
        assert row["left_out"] in SITES
        assert row["model"] != row["left_out"]
        if (row["site"], row["epochs"], row["method"]) == (row["left_out"], 0, "fedavg"):
            assert row["score"] == pytest.approx(known[key(row)]["score"], abs=1e-9)
            assert row["patient"] == known[key(row)]["patient"]
    assert {row["left_out"] for row in rows} == set(SITES)
    assert {row["site"] for row in rows if row["left_out"] == "east"} == set(SITES)


def test_folds_by_hand(folds):
    """Local, global and unseen accuracy of FedAvg's model, from what each fold has left."""
    plan = Plan.from_json(read_plan(folds))
    found = json.loads(called("personalise", folds, "--epochs", 0, "--json").out)["accuracy"]
    smallest = min(plan.images(site, "test") for site in SITES)
    assert found["per_site"] == smallest
    expected: dict[str, list[float]] = {"local": [], "global": [], "unseen": []}
    for out in SITES:
        run = [r for r in read_scores(folds / f"without-{out}" / RUN_FILE).to_pylist()
               if (r["method"], r["role"]) == ("fedavg", "global")]  # fmt: skip
        by_site = {site: [r["accuracy"] for r in run if r["site"] == site] for site in SITES}
        del by_site[out]
        drawn = {s: drawn_images(s, plan.images(s, "test"), smallest) for s in by_site}
        there = [own[image] for s, own in by_site.items() for image in drawn[s]]
        foreign = [r["accuracy"] for r in read_scores(folds / RUN_FILE).to_pylist()
                   if (r["method"], r["role"], r["site"]) == ("fedavg", "global", out)]  # fmt: skip
        expected["local"].append(sum(sum(own) / len(own) for own in by_site.values()) / 2)
        expected["global"].append(sum(there) / len(there))
        expected["unseen"].append(sum(foreign) / len(foreign))
    line = next(one for one in found["levels"] if (one["method"], one["epochs"]) == ("fedavg", 0))
    assert {where: own["value"] for where, own in line["scores"].items()} == {
        where: pytest.approx(sum(own) / 3) for where, own in expected.items()
    }
    assert found["left_out"] == SITES


def test_table_1_holds_fedsoup_against_fedavg_after_one_more_epoch(folds):
    found = json.loads(called("personalise", folds, "--epochs", 1, "--json").out)["auc"]
    score = {(o["method"], o["epochs"]): o["scores"] for o in found["levels"]}
    fedavg, fedsoup = found["table_1"]
    assert (fedavg["method"], fedavg["epochs"], fedsoup["epochs"]) == ("fedavg", 1, 0)
    for where in ("local", "global", "unseen"):
        assert fedavg["gains"][where] is None
        gain = score["fedsoup", 0][where]["value"] - score["fedavg", 1][where]["value"]
        assert fedsoup["gains"][where]["value"] == pytest.approx(gain)


def test_a_fold_that_is_looked_at_alone_is_found_again_afterwards(folds, tmp_path):
    """An ordinary run's scores say nothing of a left-out site: they are not taken for a fold's."""
    folder = tmp_path / "folds"
    shutil.copytree(folds, folder)
    expected = (folds / FILE).read_bytes()
    done = called("personalise", folder / "without-east", "--epochs", 1)
    assert done.code == 0, done.err
    assert "unseen" not in done.out
    assert called("personalise", folder, "--epochs", 1).code == 0
    assert (folder / FILE).read_bytes() == expected


# --- what is said ---------------------------------------------------------------------------------


def test_what_is_printed_and_drawn(finished, folds):
    out = " ".join(called("personalise", finished, "--epochs", 1, "--epochs", 2).out.split())
    for words in (
        "accuracy as FedSoup's Table 1 has it",
        "below: minus fedavg global",
        "accuracy after local epochs",
        "AUC after local epochs",
        "accuracy minus that of fedavg global after equally many epochs",
        "no difference found",
        "over 2 seeds",
        "centralized pools the images",
    ):
        assert words in out
    assert "Table 1" not in called("personalise", folds, "--epochs", 0).out
    out = " ".join(called("personalise", folds, "--epochs", 1).out.split())
    assert "then over 3 folds, over 1 seed." in out
    for folder in (finished, folds):
        for metric in ("accuracy", "auc"):
            for kind in ("png", "svg"):
                assert (folder / "figures" / f"levels-{metric}.{kind}").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--method", "fedprox"], "--method fedprox: the run has local, fedavg, fedsoup"),
        (["--per-site", 100], "--per-site 100: north has"),
        (["--against", "fedsoup global"], "nobody of that name is there; there are local, fedavg"),
        (["--metric", "dice"], "no dice; there is accuracy"),
        (["--resume"], "go with an experiment file"),
    ],
)
def test_what_is_refused(finished, arguments, why):
    done = called("personalise", finished, "--epochs", 0, *arguments)
    assert done.code == 1
    assert why in " ".join(done.err.split())


def test_a_model_that_is_not_here_is_refused(finished, tmp_path):
    folder = copied(finished, tmp_path)
    shutil.rmtree(folder / "fedsoup" / "seed0" / "sites" / "north")
    done = called("personalise", folder, "--epochs", 0, "--method", "fedsoup")
    assert done.code == 1
    assert "between hospitals each keeps its own models" in " ".join(done.err.split())


def test_statistics_that_are_gone_with_the_run_are_refused(tmp_path, file):
    """The model for all, as each site ran it, had norm statistics of the site's own."""
    folder = tmp_path / "run"
    options = ["--set", "methods=[fedavg]", "--set", "training.running_statistics=local"]
    options += ["--set", "network={name: small, norm: batch}", "--set", "seeds=[0]"]
    done = called("personalise", file, *options, "--out", folder)
    assert done.code == 1
    assert "with norm statistics of their own" in " ".join(done.err.split())


def test_a_run_that_has_done_no_job_is_refused(finished, tmp_path):
    folder = copied(finished, tmp_path)
    for path in folder.rglob("result.json"):
        path.unlink()
    done = called("personalise", folder)
    assert done.code == 1
    assert "no job is done; konsil run ... --resume goes on" in " ".join(done.err.split())
