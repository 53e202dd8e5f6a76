"""A run's folder: what it leaves, what it refuses, and bad data through the real command line."""

import csv
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from konsil import cli
from konsil import testing as toy
from konsil.data import test_images as test_images_of
from konsil.data.reading import ImageReading
from konsil.errors import RunError
from konsil.evaluation import scores
from konsil.evaluation.results import read_results
from konsil.federation.runner import Run, read_plan
from konsil.federation.server import RECORD
from konsil.federation.state import StateFiles
from konsil.files import write_text
from konsil.supermodel import SuperModel

FIVE = ["centralized", "local", "fedavg", "fedsm", "fedsoup"]


@pytest.fixture(scope="module")
def finished(squares, tmp_path_factory):
    """A finished run of all five methods: plan and folder."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    plan = toy.plan_of(squares, methods=FIVE, rounds=2)
    toy.whole_run(plan, folder)
    return plan, folder


# --- what a run leaves --------------------------------------------------------------------------


def test_results_have_the_promised_columns_and_rows(finished):
    plan, folder = finished
    for name in ("results.csv", "results-last.csv"):
        with open(folder / name, newline="") as file:
            header = next(csv.reader(file))
        assert header == ["method", "seed", "role", "split", "site", "metric", "value", "n"]
        rows = read_results(folder / name)
        roles = {(r.method, r.role) for r in rows}
        assert roles == {
            ("centralized", "centralized"),
            ("local", "local"),
            ("fedavg", "global"),
            *(("fedsm", role) for role in ("global", "personal", "super")),
            *(("fedsoup", role) for role in ("global", "personal")),
        }
        assert {r.split for r in rows} == {"val", "test"}
        assert {r.site for r in rows} == {*plan.sites, "client_average", "global"}


def test_means_over_sites_and_over_images(finished):
    _, folder = finished
    rows = read_results(folder / "results.csv")
    groups = {(r.method, r.role, r.split) for r in rows}
    for group in groups:
        mine = {
            r.site: r for r in rows if (r.method, r.role, r.split) == group and r.metric == "dice"
        }
        sites = [mine["north"], mine["south"]]
        plain = np.mean([r.value for r in sites])
        weighted = np.average([r.value for r in sites], weights=[r.n for r in sites])
        assert mine["client_average"].value == pytest.approx(plain, abs=1e-12)
        assert mine["global"].value == pytest.approx(weighted, abs=1e-12)
        assert mine["global"].n == sum(r.n for r in sites)


def test_every_test_images_scores_are_kept(finished):
    """Their means are the rows of results.csv, and a model scores the same whoever asks it."""
    plan, folder = finished
    table = scores.read_scores(folder / scores.FILE).to_pylist()
    rows = [r for r in read_results(folder / "results.csv") if r.split == "test"]
    expected = {(r.method, r.role, r.site): r for r in rows if r.metric == "hd95"}
    assert len(expected) == 8 * 4  # every role at every site, and both means
    for metric in ("dice", "hd95", "surface_dice"):
        for row in rows:
            if row.metric == metric and row.site in plan.sites:
                key = row.method, row.role, row.site
                values = [r[metric] for r in table if (r["method"], r["role"], r["site"]) == key]
                assert len(values) == row.n == plan.images(row.site, "test")
                assert np.mean(values) == pytest.approx(row.value, abs=1e-12)
    by_role = {
        role: [r for r in table if (r["method"], r["role"]) == ("fedsm", role)]
        for role in ("global", "personal", "super")
    }
    for one, own, asked in zip(*by_role.values(), strict=True):
        assert asked["score_of_global"] == one["dice"]
        assert asked[f"score_of_{asked['site']}"] == own["dice"]
        assert sum(asked[f"like_{site}"] for site in plan.sites) == pytest.approx(1)
        if asked["asked"] in (*plan.sites, "global"):
            assert asked["dice"] == asked[f"score_of_{asked['asked']}"]
    assert {r["patient"] for r in table} == {None}  # without splits.csv only the sites know them
    assert not any("square" in str(value) for r in table for value in r.values())  # a file's name


def test_of_one_models_scores_a_super_models_folder_says_nothing(finished):
    _, folder = finished
    facts = SuperModel.load(folder / "fedsm" / "seed0" / "supermodel").facts
    metrics = {m for site in facts.scores["test"]["super"].values() for m in site}
    assert {"dice", "hd95", "selector_accuracy"} <= metrics
    assert not any(metric.startswith("score_of_") for metric in metrics)


def test_the_super_model_is_not_below_the_global_one_on_validation(finished):
    _, folder = finished
    for name in ("results.csv", "results-last.csv"):
        values = {
            (r.role, r.site): r.value
            for r in read_results(folder / name)
            if (r.method, r.split, r.metric) == ("fedsm", "val", "dice")
        }
        for mean in ("client_average", "global"):
            assert values["super", mean] >= values["global", mean]


def test_files_of_a_finished_run(finished):
    plan, folder = finished
    files = set(toy.what_remains(folder))
    for checkpoint in ("best", "last"):
        assert f"fedavg/seed0/checkpoints/{checkpoint}/global.safetensors" in files
        for site in plan.sites:
            assert f"fedsm/seed0/sites/{site}/{checkpoint}/personal.safetensors" in files
    assert "fedsm/seed0/supermodel/model.json" in files
    assert read_plan(folder)["hash"] == plan.hash
    states = (*StateFiles.NAMES, RECORD)
    assert not [f for f in files if f.endswith((*states, ".part"))]  # no state is kept


def test_the_super_models_folder_tells_where_it_comes_from(finished):
    plan, folder = finished
    told = json.loads((folder / "fedsm/seed0/supermodel/model.json").read_text())
    assert told["reading"] == {site: ImageReading().to_json() for site in plan.sites}
    assert told["provenance"] == {
        "konsil": plan.version,
        "method": "fedsm",
        "seed": 0,
        "rounds": plan.experiment.rounds,
        "images": {site: plan.images(site, "train") for site in plan.sites},
        "scored": {s: {site: plan.images(site, s) for site in plan.sites} for s in ("val", "test")},
        "compute": plan.experiment.compute.model_dump(mode="json"),
        "training": plan.training(plan.job("fedsm/seed0")).model_dump(mode="json"),
        "task": {"loss": "dice_ce"},
    }
    rows = [r for r in read_results(folder / "results.csv") if r.role == "super"]
    for split in ("val", "test"):
        assert told["scores"][split].keys() == {"global", "personal", "super"}
        assert told["scores"][split]["super"].keys() == set(plan.sites)
        for site, said in told["scores"][split]["super"].items():
            own = {r.metric: r.value for r in rows if (r.split, r.site) == (split, site)}
            assert said == {m: v for m, v in own.items() if not m.startswith("score_of_")}
    assert "train" not in told["scores"]
    for split, roles in told["scores"].items():
        for role, by_site in roles.items():
            for site, said in by_site.items():
                low, high = told["intervals"][split][role][site]["dice"]
                assert low <= said["dice"] <= high
    card = (folder / "fedsm/seed0/supermodel/MODEL_CARD.md").read_text()
    assert f"| plan | `{plan.hash}`" in card
    assert "Test images: Dice" in card


# method -> what its folder holds, and the role that a site's own or the global model has
LEFT = {
    "centralized": ("model", {"global": "centralized"}),
    "local": ("model", {"own": "local"}),
    "fedavg": ("model", {"global": "global"}),
    "fedsm": ("supermodel", {"global": "global", "own": "personal"}),
    "fedsoup": ("model", {"global": "global", "own": "personal"}),
}


@pytest.mark.parametrize("method", FIVE)
def test_every_method_leaves_something_to_ask(finished, method):
    """Whoever loads it finds the scores of the run, on its test images, by each of its models."""
    plan, folder = finished
    kind, roles = LEFT[method]
    model = SuperModel.load(folder / method / "seed0" / kind)
    asked = {"global": ["global"], "own": list(plan.sites)}
    names = {name for which in roles for name in asked[which]}
    assert names == set(model.models) - {"selector", "novelty"}
    rows = {r[2:6]: r.value for r in read_results(folder / "results.csv") if r.method == method}
    task = plan.context(plan.jobs[0], plan.sites).task
    for site in plan.sites:
        images = test_images_of(plan.data_folder, site)
        x, y = images.batch(torch.arange(len(images)))
        for which, role in roles.items():
            name = site if which == "own" else "global"
            found = float(task.columns(model.logits_of(name, x), y)["dice"].mean())
            assert found == pytest.approx(rows[role, "test", site, "dice"], abs=1e-5)
    assert model.answer(x).logits.shape == model.logits_of(name, x).shape


def test_events_tell_the_story(finished):
    _, folder = finished
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    names = [e["event"] for e in events]
    assert names[0] == "run_started"
    assert names[-1] == "run_done"
    assert names.count("job_done") == len(FIVE)
    assert names.count("round_done") == 2 * len(FIVE)


# --- going on with a run ------------------------------------------------------------------------


def test_a_finished_run_is_not_computed_again(finished, tmp_path, monkeypatch):
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    before = toy.what_remains(tmp_path / "run")
    monkeypatch.setattr(
        "konsil.federation.runner.make_engine", lambda *a: pytest.fail("nothing to compute")
    )
    toy.whole_run(plan, tmp_path / "run", resume=True)
    assert toy.what_remains(tmp_path / "run") == before


def test_a_job_without_its_result_is_computed_again(finished, tmp_path):
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "fedsoup")
    toy.whole_run(plan, tmp_path / "run", resume=True)
    assert toy.what_remains(tmp_path / "run") == toy.what_remains(folder)


def test_half_written_files_are_swept_away(finished, tmp_path):
    """Zero bytes, half a file: what a kill leaves beside the real file, anywhere in the run."""
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    job = tmp_path / "run" / "fedsm" / "seed0"
    (job / ".result.json.99999.part").write_bytes(b"")
    (job / "sites" / "north" / ".state.safetensors.99999.part").write_bytes(b"\0\1half")
    (tmp_path / "run" / ".results.csv.99999.part").write_text("method,se")
    toy.whole_run(plan, tmp_path / "run", resume=True)
    assert toy.what_remains(tmp_path / "run") == toy.what_remains(folder)


def test_a_cut_event_is_dropped(finished, tmp_path):
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "events.jsonl"
    whole = path.read_text().splitlines()
    path.write_text("\n".join(whole) + '\n{"time": "2026-01-01T00:0')
    toy.whole_run(plan, tmp_path / "run", resume=True)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["event"] for e in events[len(whole) :]] == ["run_started", "run_done"]


def test_a_folder_with_a_run_needs_resume(finished):
    plan, folder = finished
    with pytest.raises(RunError, match="holds a run already; add --resume"):
        Run(plan, folder).prepare(False, lambda path: None)


def test_another_plan_is_refused_by_the_key_that_differs(finished, make_plan):
    _, folder = finished
    other = make_plan(methods=FIVE, rounds=3)
    with pytest.raises(RunError, match=r"another plan \(experiment\.rounds differ\)"):
        Run(other, folder).prepare(True, lambda path: None)


def test_another_engine_is_the_same_plan(finished, make_plan, tmp_path):
    plan, folder = finished
    other = make_plan(methods=FIVE, rounds=2, engine={"name": "processes", "workers": 2})
    assert other.hash == plan.hash
    shutil.copytree(folder, tmp_path / "run")
    toy.whole_run(other, tmp_path / "run", resume=True)


def test_a_folder_that_is_something_else_is_left_alone(make_plan, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="not empty and not a run"):
        Run(make_plan(), tmp_path).prepare(False, lambda path: None)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_processes_do_not_share_a_folder(make_plan, tmp_path):
    first, second = Run(make_plan(), tmp_path), Run(make_plan(), tmp_path)
    first.prepare(False, lambda path: None)
    with pytest.raises(RunError, match="another process"):
        second.prepare(True, lambda path: None)


def test_a_job_killed_before_it_could_tidy_up_is_tidied(finished, tmp_path):
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    state = tmp_path / "run" / "local" / "seed0" / "sites" / "north" / "state.safetensors"
    state.write_bytes(b"left behind")
    write_text(
        tmp_path / "run" / "local" / "seed0" / "server" / "record.safetensors", "left behind"
    )
    toy.whole_run(plan, tmp_path / "run", resume=True)
    assert toy.what_remains(tmp_path / "run") == toy.what_remains(folder)


OLDER = r"run: this run was begun by Konsil 0\.1\.0, this is Konsil .*: run it to its end with that"


def test_a_run_of_an_older_version_is_not_gone_on_with(finished, tmp_path):
    """Version 0.1.0 kept its states in files of its own, which nobody reads any more."""
    plan, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    old = read_plan(folder) | {"version": "0.1.0", "hash": "0" * 16}
    (tmp_path / "run" / "plan.yaml").write_text(yaml.safe_dump(old))
    job = tmp_path / "run" / "fedavg" / "seed0"
    (job / "result.json").unlink()
    for name in ("server/record.knsl", "sites/north/state.knsl"):
        write_text(job / name, "KNSL1\n")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(RunError, match=OLDER):
        toy.whole_run(plan, tmp_path / "run", resume=True)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


# --- bad data, through the command line ---------------------------------------------------------


@pytest.fixture
def konsil_run(tmp_path, monkeypatch, capsys):
    """`konsil run` on a folder: exit code, what it said, and whether a run was begun."""

    def run(folder, **blocks):
        raw = {
            "federation": {"folder": str(folder), "image_size": 32},
            "network": {"name": "unet", "width": 2},
            "methods": ["fedavg"],
            "rounds": 1,
        } | blocks
        file = tmp_path / "experiment.yaml"
        file.write_text(yaml.safe_dump(raw))
        out = tmp_path / "out"
        monkeypatch.setattr(sys, "argv", ["konsil", "run", str(file), "--out", str(out)])
        monkeypatch.setenv("COLUMNS", "400")  # no line breaks inside a path
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err, out.exists()

    return run


@pytest.fixture
def damaged(squares, tmp_path):
    """A private copy of the squares, to be damaged."""
    return shutil.copytree(squares, tmp_path / "federation")


def unreadable_image(folder):
    (folder / "north/images/003.png").write_bytes(b"this is no image")
    return "north/images/003.png"


def mask_of_another_size(folder):
    Image.new("L", (16, 20)).save(folder / "south/masks/002.png")
    return "south/masks/002.png"


def unknown_label_value(folder):
    with Image.open(folder / "south/masks/002.png") as mask:
        pixels = np.array(mask)
    pixels[0, 0] = 7
    Image.fromarray(pixels).save(folder / "south/masks/002.png")
    return "south"


def empty_site(folder):
    (folder / "west/images").mkdir(parents=True)
    (folder / "west/masks").mkdir()
    return "west"


def one_image_site(folder):
    for kind in ("images", "masks"):
        (folder / "west" / kind).mkdir(parents=True)
        shutil.copy(folder / "north" / kind / "000.png", folder / "west" / kind)
    return "site west"


def site_of_a_reserved_name(folder):
    (folder / "north").rename(folder / "all-sites")
    return "all-sites"


DAMAGES = [
    unreadable_image,
    mask_of_another_size,
    unknown_label_value,
    empty_site,
    one_image_site,
    site_of_a_reserved_name,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_bad_data_ends_the_command_before_round_1(konsil_run, damaged, damage):
    named = damage(damaged)
    code, said, began = konsil_run(damaged)
    assert code == 1
    assert "error:" in said
    assert named in said
    assert "Traceback" not in said
    assert not began


def test_a_site_of_one_class_is_announced_and_has_no_auc(konsil_run, shades, tmp_path):
    folder = shutil.copytree(shades, tmp_path / "federation")
    shutil.rmtree(folder / "north" / "ill")
    code, said, _ = konsil_run(folder, task={"name": "classification"}, network={"name": "small"})
    assert code == 0
    assert "site north: only the class healthy; AUC is left out for it" in said
    rows = read_results(tmp_path / "out" / "results.csv")
    assert "north" not in {r.site for r in rows if r.metric == "auc"}
    assert "north" in {r.site for r in rows if r.metric == "accuracy"}
    assert {"south", "client_average", "global"} <= {r.site for r in rows if r.metric == "auc"}


def test_brackets_in_a_name_reach_the_reader(konsil_run, damaged):
    """The console's markup must not swallow them."""
    (damaged / "north").rename(damaged / "north [left]")
    (damaged / "north [left]/images/003.png").write_bytes(b"this is no image")
    code, said, _ = konsil_run(damaged)
    assert code == 1
    assert "north [left]/images/003.png" in said


def test_a_run_of_a_moved_cache_goes_on(finished, tmp_path):
    """Where files lie is not part of the plan."""
    plan, _ = finished
    assert replace(plan, data_folder=tmp_path).hash == plan.hash
