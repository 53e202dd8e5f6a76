"""The papers' experiments: all say what the papers say, and run at small size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from konsil.cli import app
from konsil.config import Experiment, read_experiment
from konsil.data import open_federation
from konsil.evaluation.results import read_results
from konsil.federation.plan import Plan
from konsil.prepare.importers import IMPORTERS
from konsil.report.page import page
from konsil.report.runs import open_runs
from konsil.testing import write_shades, write_squares
from tests.cli.test_experiments import called

PAPERS = Path(__file__).resolve().parents[1] / "recipes" / "papers"
OVERLAYS = {path.stem.removeprefix("small-"): path for path in sorted(PAPERS.glob("small-*.yaml"))}
RECIPES = [path for path in sorted(PAPERS.glob("*.yaml")) if path not in OVERLAYS.values()]
RETINAL = [PAPERS / f"fedsm-table{number}.yaml" for number in (3, 5, 6, 7)]
SITES = {  # the papers' clients, and which importers bring them
    "fundus": ("drishti-gs1", "riga", "rim-one", "refuge"),
    "prostate": ("i2cvb", "msd-prostate", "nci-isbi-3t", "nci-isbi-dx", "promise12", "prostatex"),
    "camelyon17": ("camelyon17",),
    "fundus-classes": (),  # no importer brings them
}
# so small that an experiment of eight methods takes seconds; four sites, because lambda is >= 1/4
TINY = {
    "retina": {"aster": 4, "birch": 4, "cedar": 4, "dahlia": 4},
    "prostate": {"alder": 3, "briar": 3, "clover": 3, "dogwood": 3},
    "classes": {"ginkgo": 24, "hazel": 24, "iris": 24},
}


def kind(recipe: Path) -> str:
    """Which overlay makes it small."""
    if recipe.stem.startswith("fedsoup"):
        return "classes"
    return "prostate" if recipe.stem == "fedsm-table4" else "retina"


def small(recipe: Path, **overrides: Any) -> Experiment:
    overrides = {"federation.images": TINY[kind(recipe)], **overrides}
    return read_experiment(recipe, overrides, overlays=[OVERLAYS[kind(recipe)]])


def plan_of(experiment: Experiment) -> Plan:
    return Plan.of(experiment, open_federation(experiment.federation, experiment.task))


@pytest.fixture(scope="session")
def federations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that recipes name, with sites called as importers call them."""
    root = tmp_path_factory.mktemp("imported")
    for name, importers in SITES.items():
        sites = [site for one in importers for site in IMPORTERS.find(one, "SITES").sites] or [
            "a",
            "b",
            "c",
        ]
        write = write_shades if name in ("camelyon17", "fundus-classes") else write_squares
        write(root / name, dict.fromkeys(sites, 8))
        blocks = {
            site: {"images": f"{site}/images/*", "labels": f"{site}/masks/*"} for site in sites
        }
        head: dict[str, Any] = {"structures": {"disc": [255], "cup": [255]}}
        if write is write_shades:
            blocks = {site: {"images": f"{site}/*/*.png", "labels": "folder"} for site in sites}
            head = {"task": "classification", "classes": ["healthy", "ill"]}
        if name == "prostate":
            head = {"structures": {"prostate": [255]}, "channels": 1}
        (root / name / "federation.yaml").write_text(yaml.safe_dump(head | {"sites": blocks}))
    return root


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_becomes_a_plan_on_what_importers_bring(
    recipe: Path, federations: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(federations)  # where `konsil data import` was called
    experiment = read_experiment(recipe)
    plan = plan_of(experiment)
    assert experiment.name == recipe.stem
    assert plan.experiment.seeds == [0, 1, 2]
    assert len(plan.jobs) == 3 * len(experiment.methods)
    importers = SITES[str(experiment.federation.file)]
    known = {site for name in importers for site in IMPORTERS.find(name, "SITES").sites}
    assert not importers or set(plan.sites) <= known
    assert len(plan.sites) == {"fundus": 6, "prostate": 6, "camelyon17": 5}.get(
        str(experiment.federation.file), 3
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_becomes_a_plan_under_its_overlay(recipe: Path):
    given, plan = read_experiment(recipe), plan_of(small(recipe))
    assert plan.sites == tuple(TINY[kind(recipe)])
    assert [job.method for job in plan.jobs] == [method.title for method in given.methods]
    assert plan.experiment.methods == given.methods
    assert plan.experiment.rounds <= 20
    assert plan.experiment.task.settings == given.task.settings


def test_the_fedsm_papers_settings():
    for recipe in (*RETINAL, PAPERS / "fedsm-table4.yaml"):
        e = read_experiment(recipe)
        assert (e.federation.image_size, e.rounds, e.task.settings) == (256, 150, {"loss": "dice"})
        assert e.federation.split == (0.5, 0.25, 0.25)
        own = e.training
        assert (own.optimizer, own.lr, own.betas, own.local_epochs) == (
            "adam",
            1e-3,
            (0.9, 0.999),
            1,
        )
        assert (own.schedule, own.augment, e.server.momentum) == ("constant", "none", 0)
        pulls = {m.title: m.settings["lambda"] for m in e.methods if "lambda" in m.settings}
        usual = 0.3 if recipe.stem == "fedsm-table4" else 0.7
        swept = {f"fedsm-{value}": value for value in (0.1, 0.3, 0.5, 0.7, 0.9)}
        assert pulls == (swept if recipe.stem == "fedsm-table7" else dict.fromkeys(pulls, usual))
        supers = [m for m in e.methods if m.name == "fedsm"]
        assert all(m.settings["routing"] == "threshold" for m in supers)  # Algorithm 2


def test_the_extra_rounds_of_fedsm_extra(federations: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(federations)
    plan = plan_of(read_experiment(PAPERS / "fedsm-table3.yaml"))
    job = next(job for job in plan.jobs if job.method == "fedsm-extra")
    assert plan.method(job).first_phase == 100  # type: ignore[attr-defined]


def test_the_retinal_experiments_differ_in_their_methods_alone():
    first, *others = (
        read_experiment(recipe).model_dump(exclude={"name", "methods"}) for recipe in RETINAL
    )
    assert all(other == first for other in others)


def test_the_fedsoup_papers_settings():
    for name, size in (("fundus", 128), ("pathology", 96)):
        e = read_experiment(PAPERS / f"fedsoup-table1-{name}.yaml")
        assert (e.federation.image_size, e.rounds, e.network.name) == (size, 1000, "resnet18")
        own = e.training
        assert (own.optimizer, own.lr, own.betas, own.batch_size) == ("adam", 1e-3, (0.9, 0.99), 16)
        assert (own.schedule, own.augment, own.local_epochs) == ("constant", "none", 1)
        assert e.federation.split[2] == 0.25  # 75 % to train, validation among them
        assert [m.title for m in e.methods] == [
            *("fedavg", "fedprox", "moon", "fedbn", "fedfomo", "fedrep", "fedbabu", "fedsoup"),
        ]
        assert e.methods[-1].settings == {"start": 0.75}


@pytest.mark.parametrize(
    ("name", "table"),
    [("fedsm-table3", "Table 3"), ("fedsoup-table1-pathology", "Table 1, pathology")],
)
def test_a_recipe_really_runs_at_small_size(name: str, table: str, tmp_path: Path):
    """And ends beside its paper's table."""
    recipe = PAPERS / f"{name}.yaml"
    tiny = [f"federation.images={TINY[kind(recipe)]}", "rounds=3", "engine.name=inprocess"]
    settings = [word for key in tiny for word in ("--set", key)]  # two phases need three rounds
    overlay = OVERLAYS[kind(recipe)]
    done = called("run", recipe, "--overlay", overlay, "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    rows = read_results(tmp_path / "run" / "results.csv")
    wanted = {method.title for method in read_experiment(recipe).methods}
    assert {row.method for row in rows if row.split == "test"} == wanted
    beside = called("compare", tmp_path / "run", "--paper")
    assert beside.code == 0, beside.err
    assert table in " ".join(beside.out.split())
    assert f"{table}</" in " ".join(page(open_runs([tmp_path / "run"])).split())


# --- the option ---------------------------------------------------------------------------------


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}".strip(), command


def test_whatever_takes_set_takes_an_overlay():
    lacking = []  # but for what reads no experiment file
    for name, command in commands(typer.main.get_command(app)):  # type: ignore[arg-type]
        options = {text for one in command.params for text in one.opts}
        if "--set" in options and "--overlay" not in options and name not in ("demo", "join"):
            lacking.append(name)
    assert not lacking


def test_an_overlay_is_laid_over_before_set(tmp_path: Path):
    over = tmp_path / "over.yaml"
    over.write_text("rounds: 7\nname: mine\n")
    done = called(
        *("run", PAPERS / "fedsm-table7.yaml", "--overlay", OVERLAYS["retina"], "--overlay", over),
        *("--set", f"federation.images={TINY['retina']}", "--set", "rounds=8", "--dry-run"),
    )
    assert done.code == 0, done.err
    assert "mine  plan" in done.out
    assert "8 rounds of 1 local epoch(s)" in done.out


def test_an_overlay_needs_an_experiment_file(tmp_path: Path):
    done = called("compare", tmp_path, "--overlay", OVERLAYS["retina"])
    assert done.code == 1
    assert "--overlay, --out, --resume and --split-seed go with an experiment file" in " ".join(
        done.err.split()
    )
