"""`konsil sweep` as it is called: what it opens, what it leaves, and how it goes on."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from konsil.config import read_experiment
from konsil.evaluation.results import CLIENT_AVERAGE, read_results
from konsil.evaluation.scores import FILE, read_scores
from konsil.federation.runner import read_plan
from tests.cli.test_experiments import KONSIL, MINUTES, Done, called

TRIED = ("--try", "methods.fedsm.lambda=0.6,1", "--try", "server.momentum=0,0.5")
BY_OPTUNA = ("--try", "training.lr=1e-4..1e-1", "--trials", "3", "--set", "methods=[local,fedavg]")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, shades: Path) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "tiny.yaml"
    content = {
        "name": "tiny",
        "federation": {"folder": str(shades), "image_size": 32},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 2},
        "methods": ["local", "fedavg", "fedsm"],
        "rounds": 2,
        "seeds": [0, 1],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, file: Path) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("runs") / "grid"
    done = called("sweep", file, *TRIED, "--out", folder)
    assert done.code == 0, done.err
    return folder, done


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "proposed"
    done = called("sweep", file, *BY_OPTUNA, "--out", folder)
    assert done.code == 0, done.err
    return folder


def mean_validation(folder: Path, label: str, role: str) -> float:
    """Over both seeds, as the sweep must have it."""
    wanted = label, role, "val", CLIENT_AVERAGE, "accuracy"
    values = [
        r.value
        for r in read_results(folder / "results.csv")
        if (r.method, r.role, r.split, r.site, r.metric) == wanted
    ]
    assert len(values) == 2
    return sum(values) / 2


def test_the_table_has_every_trial_and_marks_the_best(swept: tuple[Path, Done]):
    folder, done = swept
    tried = (
        "fedavg 2 combinations (server.momentum); fedsm 4 combinations (server.momentum, lambda)"
    )
    assert f"{tried}; seeds 0, 1, validation images only" in " ".join(done.out.split())
    lines = [line.split() for line in done.out.splitlines()]
    momenta = ("0", "0.5")
    for method, role, lambdas in (("fedavg", "global", [""]), ("fedsm", "super", ["0.6", "1"])):
        scores = {}
        for momentum in momenta:  # in the order of the choices: of equals the first wins
            for value in lambdas:
                label = f"{method}-lambda{value}" if value else method
                score = mean_validation(folder / f"momentum{momentum}", label, role)
                scores[momentum, value] = score
                cells = [method, role, momentum, *([value] if value else []), f"{score:.4f}"]
                assert [line[: len(cells)] for line in lines].count(cells) == 1
        best = max(scores, key=lambda at: scores[at])
        won = [line for line in lines if line[:2] == [method, role] and line[-1] == "chosen"]
        assert [line[2] for line in won] == [best[0]]
        assert won[0][3] == (best[1] or f"{scores[best]:.4f}")


def test_no_test_image_is_opened_for_a_try(swept: tuple[Path, Done]):
    folder, _ = swept
    for stage in ("momentum0", "momentum0.5"):
        rows = read_results(folder / stage / "results.csv")
        assert {row.split for row in rows} == {"val"}
        assert not list((folder / stage).rglob(FILE))
        assert not (folder / stage / "figures").exists()


def test_what_was_chosen_is_an_ordinary_run_that_is_tested(
    swept: tuple[Path, Done], tmp_path: Path
):
    folder, done = swept
    files = sorted(folder.glob("chosen*.yaml"))
    tested = [read_scores(f.with_suffix("") / FILE).to_pylist() for f in files]
    titles = [m.title for f in files for m in read_experiment(f).methods]
    assert sorted(titles) == ["fedavg", "fedsm", "local"]
    assert {row["method"] for rows in tested for row in rows} == {*titles}
    assert "what was chosen, on test images" in done.out
    assert "accuracy minus that of local: client average" in done.out
    file = files[0]
    momentum = read_experiment(file).server.momentum
    again = called("run", file, "--out", tmp_path / "again")
    assert again.code == 0, again.err
    for name in ("results.csv", "results-last.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (
            file.with_suffix("") / name
        ).read_bytes()
    for method in read_experiment(file).methods:  # as it was tried
        tried = folder / f"momentum{momentum:g}"
        role = {"local": "local", "fedavg": "global", "fedsm": "super"}[method.title]
        value = method.settings.get("lambda")
        label = method.title if value is None else f"{method.title}-lambda{value:g}"
        again_scored = mean_validation(tmp_path / "again", method.title, role)
        assert again_scored == mean_validation(tried, label, role)


def test_after_the_test_nothing_more_is_tried(swept: tuple[Path, Done], file: Path, tmp_path: Path):
    folder = tmp_path / "again"
    shutil.copytree(swept[0], folder)
    again = called("sweep", file, *TRIED, "--out", folder, "--resume")
    assert again.code == 0, again.err
    assert "round 1/" not in again.out
    more = called("sweep", file, *TRIED[:3], "server.momentum=0,0.5,0.9", "--out", folder,
                  "--resume")  # fmt: skip
    assert more.code == 1
    assert "momentum0.9: the choice was tested already" in more.err
    assert not (folder / "momentum0.9").exists()


def test_a_method_with_nothing_to_try_is_tested_as_it_is(file: Path, tmp_path: Path):
    done = called("sweep", file, "--try", "methods.fedsm.lambda=0.6,1", "--out", tmp_path / "s",
                  "--set", "methods=[local,fedsm]", "--set", "rounds=1", "--seed", 4)  # fmt: skip
    assert done.code == 0, done.err
    assert read_plan(tmp_path / "s" / "run")["experiment"]["seeds"] == [4]
    jobs = sorted(path.name for path in (tmp_path / "s" / "run").glob("*-*/"))
    assert jobs == ["fedsm-lambda0.6", "fedsm-lambda1"]
    chosen = read_experiment(tmp_path / "s" / "chosen.yaml")
    assert [m.title for m in chosen.methods] == ["local", "fedsm"]
    assert chosen.seeds == [0, 1]  # the search's were for the search
    assert (tmp_path / "s" / "figures" / "sweep.png").exists()


def test_a_killed_search_by_optuna_goes_on_with_the_same_proposals(
    proposed: Path, file: Path, tmp_path: Path
):
    folder = tmp_path / "killed"
    command = [*KONSIL, "sweep", file, *BY_OPTUNA, "--out", folder]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    events = folder / "trial2" / "events.jsonl"
    until = time.monotonic() + MINUTES
    while not (events.exists() and "job_started" in events.read_text()):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    refused = called("sweep", file, *BY_OPTUNA, "--out", folder)
    assert "not empty; add --resume" in refused.err
    done = called("sweep", file, *BY_OPTUNA, "--out", folder, "--resume")
    assert done.code == 0, done.err
    assert "trial3" in {path.name for path in folder.iterdir()}
    names = [f"trial{n}/results.csv" for n in (1, 2, 3)] + ["chosen.yaml", "chosen/results.csv"]
    for name in names:
        assert (folder / name).read_bytes() == (proposed / name).read_bytes(), name


def test_what_cannot_be_meant_leaves_nothing(file: Path, tmp_path: Path):
    for arguments, words in (
        (["--try", "training.lr=1e-4..1e-2"], "a range has no grid"),
        (["--try", "methods.fedsm.lambda=0.6,7"], "lambda = 7"),
        (["--try", "network.norm=batch,bach"], "bach"),
    ):
        done = called("sweep", file, *arguments, "--out", tmp_path / "s")
        assert done.code == 1
        assert words in " ".join(done.err.split())
        assert not (tmp_path / "s").exists()
