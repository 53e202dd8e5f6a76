"""The commands, as they are called: through `main`, or as real processes where that matters."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from PIL import Image

import konsil.data
from konsil import __version__
from konsil.cli import main
from konsil.evaluation.results import read_results
from konsil.federation.plan import Job
from konsil.federation.runner import Run, lock

KONSIL = [sys.executable, "-c", "from konsil.cli import main; main()"]
MINUTES = 300  # a busy machine is no failure
ROUNDS = 8  # so many that Ctrl-C strikes before the last one


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


def called(*arguments: object) -> Done:
    """A command through `main`, without the seconds of a new process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["konsil", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0  # type: ignore[assignment]
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def run() -> Command:
    """`run("show", folder)`."""
    return called


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, shades: Path) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "tiny.yaml"
    content = {
        "name": "tiny",
        "federation": {"folder": str(shades), "image_size": 32},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 1},
        "methods": ["fedsm"],
        "rounds": ROUNDS,
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = called("run", file, "--out", folder)
    assert done.code == 0, done.err
    assert f"round {ROUNDS}/{ROUNDS}" in done.out
    return folder


# What costs no time


def test_help_and_version_import_nothing_heavy():
    script = """
import sys
from typer.testing import CliRunner
from konsil.cli import app
for arguments in ([], ["run"], ["tune"], ["sweep"], ["pretrain"], ["demo"], ["methods"], ["show"]):
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output, result.output
assert CliRunner().invoke(app, ["--version"]).exit_code == 0
heavy = ("torch", "monai", "matplotlib", "numpy", "sklearn")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_installed_command_says_its_version():
    command = Path(sys.executable).with_name("konsil")
    if not command.exists():
        pytest.skip("konsil is not installed as a command here")
    done = subprocess.run([command, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"konsil {__version__}\n")


def test_methods_are_listed(run: Command):
    done = run("methods")
    assert done.code == 0
    for name in ("centralized", "fedavg", "fedsm", "fedsoup", "local", "lambda"):
        assert name in done.out


def test_a_dry_run_prints_the_plan_and_creates_nothing(
    run: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = run("run", file, "--dry-run", "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    for words in ("north", "south", "train images", "global", "personal", "selector", "MB"):
        assert words in done.out
    assert "the server sees" in " ".join(done.out.split())
    assert list(tmp_path.iterdir()) == []


# A pretrained start


def test_a_network_is_pretrained_and_begun_with(run: Command, squares: Path, tmp_path: Path):
    """One structure and three channels: retina's two do not fit, and the plan says so."""
    content = {
        "federation": {"folder": str(squares), "image_size": 32},
        "network": {"name": "unet", "width": 2, "initial": str(tmp_path / "first.safetensors")},
        "methods": ["fedavg"],
        "rounds": 3,
    }
    file, first, second = (tmp_path / n for n in ("e.yaml", "first.safetensors", "2.safetensors"))
    file.write_text(yaml.safe_dump(content))
    fast = ["--rounds", 1, "--images", 4]
    done = run("pretrain", file, "--out", first, *fast)
    assert (done.code, done.err) == (0, "")
    for words in ("disc, cup", "round 1/1", "on 6 validation images", f"initial: {first}"):
        assert words in done.out
    one = ["--synthetic", "prostate", "--set", "federation.channels=3"]
    assert run("pretrain", file, "--out", second, *fast, *one).code == 0
    again = run("run", file, "--dry-run")
    assert again.code == 0
    assert "begins with first.safetensors (sha256" in " ".join(again.out.split())
    assert "another number of outputs than 1" in " ".join(again.out.split())
    fits = run("run", file, "--dry-run", "--set", f"network.initial={second}")
    assert "begins with 2.safetensors (sha256" in " ".join(fits.out.split())
    assert "outputs" not in fits.out
    taken = run("pretrain", file, "--out", first, *fast)
    assert (taken.code, "is there already" in taken.err) == (1, True)


def test_a_classifier_is_pretrained_on_pathology_and_images_seen_twice_are_told(
    run: Command, tmp_path: Path
):
    content = {
        "federation": {"synthetic": "pathology", "images": {"laurel": 24}, "image_size": 32},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "methods": ["fedavg"],
        "rounds": 1,
    }
    file = tmp_path / "e.yaml"
    file.write_text(yaml.safe_dump(content))
    done = run("pretrain", file, "--out", tmp_path / "begin.safetensors", "--images", 24)
    assert (done.code, done.err) == (0, "")
    assert "classification of" in done.out
    assert "may have seen its test images" in " ".join(done.out.split())


# Errors


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rounds=0"], ["tiny.yaml", "rounds = 0"]),
        (["rouns=3"], ["rouns", "did you mean rounds?"]),
        (["methods.fedsm.lambda=0.1"], ["methods.fedsm.lambda = 0.1", "[0.5, 1]"]),
        (["methods.fedsm.lamda=0.1"], ["methods.fedsm", "did you mean lambda?"]),
        (["network.name=resnet18"], ["federation.image_size = 32", "needs at least 33"]),
        (["federation.folder=nowhere/[red]/[b]"], ["nowhere/[red]/[b]"]),
        (["nonsense"], ["--set nonsense"]),
    ],
)
def test_an_error_is_one_message_and_exit_code_1(
    run: Command, file: Path, tmp_path: Path, overrides: list[str], words: list[str]
):
    sets = [part for override in overrides for part in ("--set", override)]
    done = run("run", file, "--out", tmp_path / "out", *sets)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err
    assert not (tmp_path / "out").exists()


def test_a_real_process_shows_no_traceback_either(tmp_path: Path):
    done = subprocess.run(
        [*KONSIL, "run", str(tmp_path / "none.yaml")], capture_output=True, text=True
    )
    expected = f"error: {tmp_path}/none.yaml: no such experiment file\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


def test_an_old_folder_is_not_overwritten(run: Command, file: Path, finished: Path):
    before = (finished / "results.csv").read_bytes()
    done = run("run", file, "--out", finished)
    assert done.code == 1
    assert "holds a run already; add --resume" in done.err
    assert (finished / "results.csv").read_bytes() == before


def test_a_resume_with_another_plan_names_the_keys(run: Command, file: Path, finished: Path):
    sets = ["--set", "training.lr=0.5", "--set", "methods.fedsm.lambda=0.9"]
    done = run("run", file, "--out", finished, "--resume", *sets)
    assert done.code == 1
    keys = "(experiment.methods.fedsm.lambda, experiment.training.lr differ)"
    assert keys in done.err


def test_a_folder_of_something_else_is_left_alone(run: Command, file: Path, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    done = run("run", file, "--out", tmp_path)
    assert done.code == 1
    assert "not empty and not a run" in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_work_in_one_folder(run: Command, file: Path, finished: Path):
    held = lock(finished)
    done = run("run", file, "--out", finished, "--resume")
    held.close()
    assert done.code == 1
    assert "another process is working on this run" in done.err


# Showing


def test_a_finished_run_is_shown(run: Command, finished: Path):
    done = run("show", finished)
    assert done.code == 0
    for words in ("fedsm", "north", "south", "pictures:"):
        assert words in done.out
    assert "round" not in done.out
    assert run("show", finished, "--split", "val", "--checkpoint", "last").code == 0


def test_a_finished_run_is_resumed_without_work(run: Command, file: Path, finished: Path):
    before = (finished / "results.csv").read_bytes()
    done = run("run", file, "--out", finished, "--resume")
    assert done.code == 0
    assert f"round 1/{ROUNDS}" not in done.out
    assert (finished / "results.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--split", "train"], "--split train: test or val"),
        (["--checkpoint", "first"], "--checkpoint first: best or last"),
    ],
)
def test_show_refuses_what_there_is_not(
    run: Command, finished: Path, arguments: list[str], words: str
):
    done = run("show", finished, *arguments)
    assert done.code == 1
    assert words in done.err


def test_show_of_a_folder_that_is_no_run(run: Command, tmp_path: Path):
    done = run("show", tmp_path)
    assert done.code == 1
    assert "not a run folder" in done.err


# Ctrl-C


def test_ctrl_c_before_training_is_no_error(
    run: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(konsil.data, "open_federation", interrupted)
    done = run("run", file, "--out", tmp_path / "out")
    assert done.code == 130
    assert "Traceback" not in done.err


class Process:
    """A real `konsil run` with a terminal's Ctrl-C, and a mark by which its workers are known."""

    def __init__(self, *arguments: object, mark: str) -> None:
        self.mark = f"KONSIL_TEST_MARK={mark}"
        self.popen = subprocess.Popen(
            [*KONSIL, "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict([self.mark.split("=")]),
            start_new_session=True,
            # whoever started the tests in the background may have had it ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, event: str, log: Path) -> None:
        end = time.monotonic() + MINUTES
        while time.monotonic() < end:
            if log.exists() and f'"event": "{event}"' in log.read_text():
                return
            assert self.popen.poll() is None, self.popen.communicate()
            time.sleep(0.02)
        raise AssertionError(f"no {event} in time")

    def ctrl_c(self) -> Done:
        os.killpg(self.popen.pid, signal.SIGINT)  # a terminal tells the whole group
        out, err = self.popen.communicate(timeout=MINUTES)
        return Done(self.popen.returncode, out, err)

    def left_behind(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_text())
            except OSError:
                continue  # it has gone, or is not ours
        return found


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Whatever a failed test started is ended."""
    started: list[Process] = []
    yield started
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.communicate()


@pytest.mark.parametrize(
    ("engine", "event"),
    [
        ("inprocess", "round_done"),
        ("processes", "round_started"),  # the workers are still on their way
    ],
)
def test_ctrl_c_stops_cleanly_and_resume_goes_on(
    run: Command,
    file: Path,
    finished: Path,
    tmp_path: Path,
    processes: list[Process],
    engine: str,
    event: str,
):
    folder = tmp_path / "run"
    arguments = [file, "--out", folder, "--set", f"engine.name={engine}"]
    processes.append(Process(*arguments, mark=str(tmp_path)))
    processes[0].wait_for(event, folder / "events.jsonl")
    done = processes[0].ctrl_c()
    assert done.code == 130, done.err
    assert done.err == (
        f"stopped; what is done is in {folder}: the same command with --resume goes on\n"
    )
    assert processes[0].left_behind() == []
    assert not (folder / "results.csv").exists()
    shown = run("show", folder)
    assert shown.code == 0
    assert "fedsm/seed0: round " in shown.out
    again = run("run", *arguments, "--resume")
    assert again.code == 0, again.err
    for name in ("results.csv", "results-last.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    rounds = [
        facts["round"]
        for facts in map(json.loads, (folder / "events.jsonl").read_text().splitlines())
        if facts["event"] == "round_done"
    ]
    assert rounds == [*range(1, ROUNDS + 1)]  # none of them twice


# Tuning

TRIED = ("--lr", "0.001", "--lr", "0.01", "--local-epochs", "2", "--local-epochs", "1")


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eyes") / "eyes.yaml"
    content = {
        "name": "eyes",
        "federation": {
            "synthetic": "retina",
            "images": {"aster": 12, "birch": 12},
            "image_size": 32,
        },
        "network": {"width": 2},
        "training": {"batch_size": 4},
        "methods": ["fedavg", {"name": "fedsm", "label": "mine", "lambda": 0.8}],
        "rounds": 2,
        "seeds": [5, 6],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, eyes: Path) -> tuple[Path, Done]:
    """An undisturbed search, and what it printed."""
    folder = tmp_path_factory.mktemp("tune") / "search"
    done = called("tune", eyes, *TRIED, "--out", folder)
    assert done.code == 0, done.err
    return folder, done


def validation_dice(folder: Path) -> dict[tuple[str, str], float]:
    return {
        (row.method, row.role): row.value
        for row in read_results(folder / "results.csv")
        if (row.split, row.site, row.metric) == ("val", "client_average", "dice")
    }


def test_tune_shows_every_trial_and_chooses_the_best(tuned: tuple[Path, Done]):
    folder, done = tuned
    lines = [line.split() for line in done.out.splitlines()]
    chosen = {line[0]: line for line in lines if line[-1:] == ["chosen"]}
    for method, role in (("fedavg", "global"), ("mine", "super")):
        scores = {
            (lr, str(epochs)): validation_dice(folder / f"epochs{epochs}")[f"{method}-lr{lr}", role]
            for lr in ("0.001", "0.01")
            for epochs in (1, 2)
        }
        best = max(scores, key=lambda trial: scores[trial])
        rounds = {"1": "2", "2": "1"}[best[1]]  # equal work
        score = f"{scores[best]:.4f}"
        assert chosen[method] == [method, role, *best, rounds, score, "chosen"]
    tried = "lr 0.001, 0.01; local_epochs 1 (rounds: 2), 2 (rounds: 1); seed 5"
    assert tried in " ".join(done.out.split())
    assert "round 2/2" in done.out
    assert Image.open(folder / "figures" / "tuning.png").size[0] >= 900


def test_tune_opens_no_test_image(tuned: tuple[Path, Done], run: Command):
    folder, _ = tuned
    for stage in ("epochs1", "epochs2"):
        for name in ("results.csv", "results-last.csv"):
            assert {row.split for row in read_results(folder / stage / name)} == {"val"}
        assert not (folder / stage / "figures").exists()
    assert "mine-lr0.01" in run("show", folder / "epochs1", "--split", "val").out
    assert "no test images were scored; --split val" in run("show", folder / "epochs1").out


def test_the_tuned_experiment_runs_as_it_was_tried(
    tuned: tuple[Path, Done], run: Command, tmp_path: Path
):
    folder, _ = tuned
    files = sorted(folder.glob("tuned-epochs*.yaml")) or [folder / "tuned.yaml"]
    for number, file in enumerate(files):
        out = tmp_path / str(number)
        done = run("run", file, "--out", out, "--set", "seeds=[5]")
        assert done.code == 0, done.err
        for method in yaml.safe_load(file.read_text())["methods"]:
            title, own = method.get("label", method["name"]), method["training"]
            tried = validation_dice(folder / f"epochs{own['local_epochs']}")
            for (name, role), value in validation_dice(out).items():
                if name == title:
                    assert value == tried[f"{title}-lr{own['lr']}", role]
    dry = run("run", folder / "tuned.yaml", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert "fedavg's own: " in dry.out


def test_a_search_that_stopped_goes_on(
    tuned: tuple[Path, Done],
    eyes: Path,
    run: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = tmp_path / "search"
    trained = Run._job
    done: list[str] = []

    def stopped(self: Run, job: Job, engine: object) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        trained(self, job, engine)
        done.append(job.name)

    monkeypatch.setattr(Run, "_job", stopped)
    first = run("tune", eyes, *TRIED, "--out", folder)
    assert (first.code, len(done)) == (130, 2)
    assert first.err.startswith(
        f"stopped; what is done is in {folder}: the same command with --res"
    )
    refused = run("tune", eyes, *TRIED, "--out", folder)
    assert refused.code == 1
    assert "not empty; add --resume to go on with a search" in refused.err
    monkeypatch.setattr(Run, "_job", trained)
    assert run("tune", eyes, *TRIED, "--out", folder, "--resume").code == 0
    for name in ("tuned.yaml", "epochs1/results.csv", "epochs2/results.csv"):
        assert (folder / name).read_bytes() == (tuned[0] / name).read_bytes()
    again = run("tune", eyes, *TRIED, "--out", folder, "--resume")
    assert again.code == 0
    assert "round 1/" not in again.out  # nothing is trained twice


def test_a_rate_that_diverges_loses_and_ends_nothing(eyes: Path, run: Command, tmp_path: Path):
    sgd = ["--set", "training.optimizer=sgd", "--set", "methods=[fedavg]", "--set", "rounds=1"]
    rates = ["--lr", "1e30", "--lr", "0.001"]
    folder = tmp_path / "search"
    done = run("tune", eyes, *rates, *sgd, "--seed", "1", "--out", folder)
    assert done.code == 0, done.err
    assert "training diverged" in done.out
    lines = [line.split() for line in done.out.splitlines()]
    assert ["fedavg", "1e+30", "1", "1", "–"] in lines
    method = yaml.safe_load((folder / "tuned.yaml").read_text())["methods"][0]
    assert method == {"name": "fedavg", "training": {"lr": 0.001}}
    events = (folder / "run" / "events.jsonl").read_text()
    assert '"event": "job_failed", "job": "fedavg-lr1e30/seed1"' in events


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to choose from: give --lr or --local-epochs"),
        (["--lr", "0"], "lr = 0.0: must be greater than 0"),
        (["--lr", "0.1", "--set", "methods=[fedmagic]"], "unknown method 'fedmagic'"),
        (
            ["--lr", "0.1", "--set", "methods.mine.training.rate=1"],
            "methods.mine.training.rate: unknown key",
        ),
    ],
)
def test_a_search_that_cannot_be_meant(
    eyes: Path, run: Command, tmp_path: Path, arguments: list[str], words: str
):
    done = run("tune", eyes, *arguments, "--out", tmp_path / "search")
    assert done.code == 1
    assert words in done.err
    assert not (tmp_path / "search").exists()
