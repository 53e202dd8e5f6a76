"""`konsil analyze` as it is called, on a run of real methods."""

import shutil

import numpy as np
import pytest

from konsil.evaluation.results import read_results
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.report.analysis import Telling, cross_scores, jobs_of, selector_table, telling
from konsil.report.tables import plain
from tests.cli.test_compare_command import file, finished  # noqa: F401  fixtures
from tests.cli.test_experiments import called


def in_a_line(done) -> str:
    return " ".join(done.out.split())


def test_whose_model_is_good_where(finished):  # noqa: F811
    done = called("analyze", "cross", finished)
    assert done.code == 0, done.err
    assert "local: Dice of every model on every site's test images" in in_a_line(done)
    assert (finished / "figures" / "cross-local.png").exists()
    plan = Plan.from_json(read_plan(finished))
    matrix = cross_scores(finished, plan, jobs_of(plan, finished, "local"))
    rows = read_results(finished / "results.csv")
    for site in plan.sites:  # at home it is the run's own result
        wanted = "local", "local", "test", site, "dice"
        own = [r.value for r in rows if (r.method, r.role, r.split, r.site, r.metric) == wanted]
        assert matrix[site][site] == pytest.approx(np.mean(own), abs=1e-9)
    both = cross_scores(finished, plan, jobs_of(plan, finished, "fedsm"))
    assert list(both) == ["global", "north", "south"]
    of_north = "fedsm", "super", "test", "south", "score_of_north"
    told = [r.value for r in rows if (r.method, r.role, r.split, r.site, r.metric) == of_north]
    assert both["north"]["south"] == pytest.approx(np.mean(told), abs=1e-9)


def test_how_the_selector_tells_hospitals_apart(finished):  # noqa: F811
    done = called("analyze", "selector", finished)
    assert done.code == 0, done.err
    assert "fedsm: a row's test images are taken for" in in_a_line(done)
    assert (finished / "figures" / "selector-fedsm.png").exists()
    said = telling(finished, "fedsm", ["north", "south"])
    rows = read_results(finished / "results.csv")
    wanted = "super", "test", "global"
    for metric, value in (("selector_accuracy", said.right.mean()),):
        own = [r.value for r in rows if (r.role, r.split, r.site) == wanted and r.metric == metric]
        assert value == pytest.approx(np.mean(own))
    assert said.confusion.sum(axis=1) == pytest.approx([1, 1])


def test_a_selector_by_hand():
    sure = np.array([0.95, 0.95, 0.55, 0.55])
    said = Telling(["a", "b"], np.array([[0.5, 0.5], [0, 1]]), sure, np.array([1.0, 0, 1, 1]))
    assert said.error == pytest.approx(0.45)
    assert said.bins() == [
        (pytest.approx(0.55), 1.0, 2),
        (pytest.approx(0.95), 0.5, 2),
    ]
    assert plain(selector_table(said, "x")).rows == [["a", "50%", "50%"], ["b", "0%", "100%"]]


def test_how_sharp_minima_are(finished):  # noqa: F811
    done = called("analyze", "sharpness", finished, "--method", "fedsm", "--batches", "1")
    assert done.code == 0, done.err
    assert "fedsm global" in done.out
    assert "fedsm personal" in done.out
    assert "fedavg" not in done.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["cross", "--method", "fedprox"], "--method fedprox: the run has local, fedavg, fedsm"),
        (["cross", "--method", "fedavg"], "fedavg: its sites have no models of their own"),
        (["selector", "--method", "local"], "local: no selector of sites among its scores"),
    ],
)
def test_what_is_refused(finished, words, why):  # noqa: F811
    command, *rest = words
    done = called("analyze", command, finished, *rest)
    assert done.code == 1
    assert why in " ".join(done.err.split())


def test_without_images_it_says_so(finished, tmp_path):  # noqa: F811
    folder = tmp_path / "elsewhere"
    shutil.copytree(finished, folder)
    path = folder / "plan.yaml"
    here = read_plan(finished)["data_folder"]
    path.write_text(path.read_text().replace(here, str(tmp_path / "gone")))
    for command in ("cross", "sharpness"):
        done = called("analyze", command, folder)
        assert done.code == 1
        assert "images are not here" in " ".join(done.err.split())
    done = called("analyze", "selector", folder)
    assert done.code == 0, done.err
    assert "no map: the images are not here" in done.out
