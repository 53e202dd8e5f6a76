"""Real runs, read back with the trackers' own readers: whole, once, and without them the same."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from konsil import api
from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.federation.plan import Plan
from konsil.federation.runner import Run
from konsil.observers.following import Following
from konsil.tracking.tracker import NAMES, check_names
from konsil.tracking.tracking import Tracking, track
from tests.cli.test_experiments import called

pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")
JOBS = ["fedavg/seed0", "fedsm/seed0"]
ROUNDS = 3
Numbers = dict[str, dict[int, float]]  # name -> step -> value


@pytest.fixture(scope="module")
def plan(shades, classes) -> Plan:
    blocks = {key: value for key, value in classes.items() if key != "federation"}
    return toy.plan_of(shades, methods=["fedavg", "fedsm"], rounds=ROUNDS, **blocks)


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tracked") / "run"
    toy.whole_run(plan, folder)
    return folder


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def in_tensorboard(run: Path, job: str) -> Numbers:
    """What is shown; every number must be there once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = EventAccumulator(str(run / "track" / "tensorboard" / job), size_guidance={"scalars": 0})
    told.Reload()
    found = {name: told.Scalars(name) for name in told.Tags()["scalars"]}
    return {name: once((one.step, one.value) for one in steps) for name, steps in found.items()}


def in_mlflow(run: Path, job: str) -> Numbers:
    client, own = mlflow_run(run, job)
    names = client.get_run(own).data.metrics
    found = {name: client.get_metric_history(own, name) for name in names}
    return {name: once((one.step, one.value) for one in steps) for name, steps in found.items()}


def mlflow_run(run: Path, job: str):
    from mlflow.tracking import MlflowClient

    note = json.loads((run / "track" / "mlflow.json").read_text())
    return MlflowClient((run / "track" / "mlflow").as_uri()), note[job]


def once(pairs) -> dict[int, float]:
    pairs = list(pairs)
    assert max(Counter(step for step, _ in pairs).values()) == 1
    return dict(pairs)


READ = {"tensorboard": in_tensorboard, "mlflow": in_mlflow}


def history(run: Path, job: str) -> list[dict]:
    return json.loads((run / job / "result.json").read_text())["history"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_over_is_told_whole_and_once(run, name):
    for _ in range(2):  # the second time there is nothing to add
        track([run], [name], print)
        for job in JOBS:
            found = READ[name](run, job)
            told = history(run, job)
            assert [moment["round"] for moment in told] == list(range(ROUNDS + 1))
            for measure in told[-1]["means"]:
                steps = {m["round"]: m["means"][measure] for m in told if measure in m["means"]}
                assert found[f"validation/{measure}"] == pytest.approx(steps)
                for site in ("north", "south"):
                    own = {m["round"]: m["sites"][site].get(measure) for m in told}
                    own = {number: value for number, value in own.items() if value is not None}
                    assert found[f"validation_by_site/{measure}/{site}"] == pytest.approx(own)
            assert set(found["round/seconds"]) == {1, 2, 3}
            assert set(found["round/bytes_up"]) == {1, 2, 3}
            rows = json.loads((run / job / "result.json").read_text())["best"]
            tests = {(r[2], r[5], r[4]): r[6] for r in rows if r[3] == "test"}
            roles = {role for role, *_ in tests}
            for role in roles:
                for site in ("north", "south", "client_average", "global"):
                    told_value = found[f"test/{role}/accuracy/{site}"]
                    assert told_value == pytest.approx({ROUNDS: tests[role, "accuracy", site]})


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_told_while_it_grows(finished, tmp_path, name):
    """A look after every line, another process after every fifth: nothing twice, nothing lost."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(finished / "plan.yaml", run)
    tracking = Tracking(run, [name], pytest.fail)
    lines = (finished / "events.jsonl").read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        with open(run / "events.jsonl", "a") as log:
            log.write(line)
        if number % 5 == 4:
            tracking.close()
            tracking = Tracking(run, [name], pytest.fail)
        tracking.look()
    tracking.close()
    whole = Path(shutil.copytree(finished, tmp_path / "whole"))
    track([whole], [name], print)
    for job in JOBS:
        assert READ[name](run, job) == READ[name](whole, job)


def test_a_resumed_run_goes_on_in_its_place_and_has_the_same_bits(plan, finished, tmp_path):
    """Interrupted in round 2 of the first job, with both trackers on."""
    said: list[str] = []

    class Interrupted(Exception):
        pass

    def stop(event):
        if event["event"] == "round_started" and event["round"] == 2:
            raise Interrupted

    from konsil.tracking.tracking import tracked

    run = tmp_path / "run"
    for resume, observers in ((False, [stop]), (True, [])):
        work = Run(plan, run, observers)
        work.prepare(resume, None)
        try:
            with tracked(run, NAMES, said.append):
                work.go()
        except Interrupted:
            first = {job: read(run, JOBS[0]) for job, read in READ.items()}
            notes = (run / "track" / "mlflow.json").read_text()
        finally:
            work.close()
    assert said == []
    assert list(json.loads(notes)) == JOBS[:1]
    assert (
        json.loads(notes).items() <= json.loads((run / "track" / "mlflow.json").read_text()).items()
    )
    for name, read in READ.items():
        assert set(first[name]["round/seconds"]) == {1}
        assert set(read(run, JOBS[0])["round/seconds"]) == {1, 2, 3}
        assert set(read(run, JOBS[1])["validation/global"]) == {0, 1, 2, 3}
    for file in ("results.csv", "results-last.csv"):
        assert (run / file).read_bytes() == (finished / file).read_bytes()
    client, own = mlflow_run(run, JOBS[1])
    told = client.get_run(own)
    assert told.info.status == "FINISHED"
    assert told.data.params["method.name"] == "fedsm"
    assert told.data.params["rounds"] == str(ROUNDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_fails_says_so_once_and_the_other_goes_on(run, name):
    """Its folder cannot be made: a file is in its place."""
    (run / "track").mkdir()
    (run / "track" / name).write_text("in the way")
    said: list[str] = []
    tracking = Tracking(run, NAMES, said.append)
    tracking.look()
    tracking.look()
    tracking.close()
    (words,) = said
    assert words.startswith(f"{name} failed")
    assert f"konsil track {run} --to {name}" in words
    assert tracking.alive
    (other,) = set(NAMES) - {name}
    assert set(READ[other](run, JOBS[1])["round/seconds"]) == {1, 2, 3}
    (run / "track" / name).unlink()  # and afterwards it can be made good
    track([run], [name], print)
    assert set(READ[name](run, JOBS[1])["round/seconds"]) == {1, 2, 3}


def test_a_server_that_is_away_stops_no_training(shades, classes, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    facts = {"name": "t", "federation": {"folder": str(shades), "image_size": 32}, "rounds": 1}
    facts |= {key: classes[key] for key in ("task", "network")} | {"methods": ["fedavg"]}
    result = api.run(facts, out=tmp_path / "run", track=["mlflow"])
    assert capsys.readouterr().out.count("mlflow failed") == 1
    assert result.results


def test_mlflow_tells_its_makers_nothing():
    from konsil.tracking import to_mlflow

    assert to_mlflow.os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()


def test_names_are_checked_before_anything_is_read(tmp_path):
    with pytest.raises(ConfigError, match="no tracker wandb: there are tensorboard, mlflow"):
        check_names(["wandb"])
    with pytest.raises(ConfigError, match="no tracker wandb"):
        api.run({}, out=tmp_path / "run", track=["tensorboard", "wandb"])


def test_the_command(run):
    done = called("track", run, "--to", "tensorboard")
    assert (done.code, done.out.count("told tensorboard")) == (0, 1)
    assert set(in_tensorboard(run, JOBS[1])["round/seconds"]) == {1, 2, 3}
    (run / "track" / "mlflow").write_text("in the way")
    done = called("track", run, "--to", "mlflow")
    assert done.code == 1
    assert "mlflow failed" in done.out
    assert "not everything was written" in done.err


def test_only_the_log_and_the_plan_are_read(run):
    """So that a deployed run is tracked where its server keeps it."""
    for path in list(run.iterdir()):
        if path.name not in ("events.jsonl", "plan.yaml"):
            shutil.rmtree(path) if path.is_dir() else os.remove(path)
    track([run], ["tensorboard"], pytest.fail)
    assert len(Following(run / "events.jsonl").new()) > 20
    assert "test/super/accuracy/global" in in_tensorboard(run, JOBS[1])
