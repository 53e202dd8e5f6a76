"""`konsil data`, as it is called."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from konsil.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def konsil(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable:
    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["konsil", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def folder(squares: Path, tmp_path: Path) -> Path:
    """A folder as a person has it: two sites, no federation file."""
    for site in squares.iterdir():
        (tmp_path / "hospitals").mkdir(exist_ok=True)
        (tmp_path / "hospitals" / site.name).symlink_to(site)
    return tmp_path / "hospitals"


def test_from_a_folder_to_a_run(konsil, folder, tmp_path):
    """The README's way: init, check, preview, an experiment that names the file."""
    done = konsil("data", "init", folder)
    assert done.code == 0
    assert "north: 8 images" in done.out
    assert konsil("data", "check", folder).code == 0
    report = json.loads(konsil("data", "check", folder, "--json").out)
    assert report["ok"]
    assert report["sites"]["south"]["images"] == 12
    page = tmp_path / "page.html"
    assert konsil("data", "preview", folder, "--out", page).code == 0
    assert "north" in page.read_text(encoding="utf-8")
    experiment = {
        "federation": {"file": str(folder), "image_size": 32},
        "network": {"name": "unet", "width": 2},
        "methods": ["fedavg"],
        "rounds": 1,
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(experiment))
    done = konsil("run", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert done.code == 0
    assert (tmp_path / "run" / "results.csv").exists()


def test_an_existing_file_is_not_replaced(konsil, folder):
    konsil("data", "init", folder)
    (folder / "federation.yaml").write_text("mine")
    done = konsil("data", "init", folder)
    assert done.code == 1
    assert "--overwrite" in done.err
    assert (folder / "federation.yaml").read_text() == "mine"
    assert konsil("data", "init", folder, "--overwrite").code == 0


def test_patterns_instead_of_guesses(konsil, folder):
    patterns = ("--images", "{site}/images/*.png", "--masks", "{site}/masks/*.png")
    done = konsil("data", "init", folder, *patterns)
    assert done.code == 0
    assert "south: 12 images" in done.out
    done = konsil("data", "init", folder, "--overwrite", *patterns[:2])
    assert done.code == 1
    assert "--masks GLOB is missing" in done.err


def test_errors_end_the_check_with_1(konsil, folder, tmp_path):
    konsil("data", "init", folder)
    text = (folder / "federation.yaml").read_text()
    (folder / "federation.yaml").write_text(text.replace("north/images", "nowhere/images"))
    done = konsil("data", "check", folder)
    assert done.code == 1
    assert "pattern that matches no image" in done.out
    report = json.loads(konsil("data", "check", folder, "--json").out)
    assert not report["ok"]
    assert report["errors"][0]["cure"]


def test_a_folder_without_a_file_says_what_to_do(konsil, folder):
    done = konsil("data", "check", folder)
    assert done.code == 1
    assert "konsil data init" in done.out + done.err


def test_importers_are_listed_and_described(konsil):
    done = konsil("data", "import")
    names = ("camelyon17", "drishti-gs1", "i2cvb", "msd-prostate", "nci-isbi-3t", "nci-isbi-dx",
             "promise12", "prostatex", "refuge", "riga", "rim-one")  # fmt: skip
    assert all(name in done.out for name in names)
    done = konsil("data", "import", "refuge")
    assert "Disc_Cup_Masks" in done.out
    assert "licence" in done.out
    done = konsil("data", "import", "no-such-set")
    assert done.code == 1
    assert "unknown importer" in done.err


def test_an_import_needs_a_place(konsil, tmp_path):
    (tmp_path / "download").mkdir()
    assert konsil("data", "import", "refuge", tmp_path / "download").code == 2
    done = konsil("data", "import", "refuge", tmp_path / "download", tmp_path / "dest")
    assert done.code == 1
    assert "Disc_Cup_Masks" in done.err  # the layout that it expects


def test_the_cache_is_listed_and_emptied(konsil, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("KONSIL_CACHE", str(tmp_path / "cache"))
    assert "of at most 50.0 GB" in konsil("data", "cache").out
    monkeypatch.setenv("KONSIL_CACHE_LIMIT", "2 GB")
    assert "of at most 2.0 GB" in konsil("data", "cache").out
    assert json.loads(konsil("data", "cache", "--json").out) == []
    assert konsil("data", "cache", "--remove-unused").code == 0
    monkeypatch.setenv("KONSIL_CACHE_LIMIT", "much")
    done = konsil("data", "cache")
    assert done.code == 1
    assert "such as 20 GB" in done.err
