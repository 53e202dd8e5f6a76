"""The page on writing a method, followed to the letter."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from konsil import Shared
from konsil.testing import CHECKS
from konsil.weights import Weights

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
KONSIL = [sys.executable, "-c", "from konsil.cli import main; main()"]
PYTEST = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's files, each named in its first line."""
    for block in (*blocks("python"), *blocks("yaml")):
        name = block.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block, encoding="utf-8")
    return tmp_path


def called(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_page_run(folder: Path):
    assert {p.name for p in folder.iterdir()} == {
        "my_method.py",
        "mine.yaml",
        "feddyn.py",
        "test_my_method.py",
    }
    lines = [shlex.split(line, comments=True) for line in blocks("bash")[0].splitlines()]
    assert [line[:2] for line in lines] == [["konsil", "methods"], ["konsil", "run"]]
    listed, trained = (called([*KONSIL, *line[1:]], folder) for line in lines)
    assert "bound = 1.0" in listed
    assert "clipped global" in trained
    assert (folder / "runs" / "mine" / "results.csv").exists()


def test_the_method_of_the_page_is_about_thirty_lines():
    code = next(block for block in blocks("python") if "@method" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_the_tests_of_the_page_pass(folder: Path):
    """In a folder without a checkout: the installed package is enough."""
    (command,) = blocks("bash")[1].splitlines()
    assert command == "python -m pytest test_my_method.py"
    out = called([*PYTEST, "test_my_method.py"], folder)
    checks = re.findall(r"test_it_does_what_every_method_must\[(\w+)\] PASSED", out)
    assert checks == list(CHECKS)
    assert f"{2 + len(CHECKS)} passed" in out


def test_every_hook_that_the_page_names_is_there():
    from konsil.ingredients.method import Method

    table = PAGE.split("## The hooks")[1].split("A loop of your own")[0]
    names = re.findall(r"`(\w+)(?:\([^)]*\))?`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    assert len(names) >= 12
    assert all(hasattr(Method, name) for name in names)


def test_every_hook_of_a_piece_that_the_page_names_is_there():
    from konsil.ingredients.piece import Piece

    table = PAGE.split("| a piece's hook |")[1].split("As an example FedDyn")[0]
    names = re.findall(r"`(\w+)\([^)]*\)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    assert len(names) >= 13
    assert all(hasattr(Piece, name) for name in names)


def test_feddyn_of_the_page_is_a_method_like_all_others(folder: Path):
    done = "import sys; from konsil import testing; print(testing.check_method(sys.argv[1]))"
    out = called([sys.executable, "-c", done, "feddyn.py"], folder)
    assert "statistics_of_images" in out


def test_a_feddyn_that_extrapolates_statistics_is_found(folder: Path):
    code = (folder / "feddyn.py").read_text()
    whole = "Weights(mean.layout, mean.flat + 3 * (mean.flat - w.flat))"
    broken = code.replace("mean.replaced(corrected)", whole)
    assert broken != code
    (folder / "broken.py").write_text(broken.replace('"feddyn"', '"broken"'))
    check = "from konsil import testing; testing.check_method('broken.py', only=['{}'])"
    for name, passes in (("statistics_of_images", False), ("equal_batches", True)):
        done = subprocess.run(
            [sys.executable, "-c", check.format(name)], cwd=folder, capture_output=True, text=True
        )
        assert (done.returncode == 0) == passes, done.stderr
        assert passes or "running statistics beyond those of every site" in done.stderr


def test_in_its_first_round_feddyn_is_fedprox(folder: Path):
    from konsil import testing
    from konsil.ingredients.method import METHODS
    from konsil.registry import load_plugins

    load_plugins([folder / "feddyn.py"])
    data = {
        "a": testing.points([[0, 255]], [1]),
        "b": testing.points([[255, 0], [255, 255], [0, 0]], [1, 0, 1]),
    }
    feddyn = testing.Linear("feddyn", data, alpha=0.5, training={"batch_size": 2})
    fedprox = testing.Linear("fedprox", data, mu=0.5, training={"batch_size": 2})
    METHODS.remove("feddyn")
    w = feddyn.weights(1.0, -1.0, 0.5)
    shared = Shared({"global": w, "server.h": Weights.zeros(w.layout)})
    ours, theirs = feddyn.uploads(shared), fedprox.uploads({"global": w})
    for site in data:
        assert ours[site].parts["global"].equals(theirs[site].parts["global"])
    means = testing.means(ours)
    after = feddyn.method.merge(shared, means)["global"]  # h = -alpha (mean - w): twice the way
    torch.testing.assert_close(after.flat, 2 * means["global"].flat - w.flat)
