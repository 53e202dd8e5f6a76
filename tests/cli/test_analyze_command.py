"""`konsil analyze` as it is called, on a run of real methods."""

import shutil

import numpy as np
import pytest

from konsil.evaluation.landscape import moved, unit_direction
from konsil.evaluation.results import read_results, read_rows, write_rows
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.report.analysis import Telling, cross_scores, jobs_of, selector_table, telling
from konsil.report.interpolation import Line, Step, barriers, kept_line, line_table
from konsil.report.minima import Minimum
from konsil.report.planes import Place
from konsil.report.surfaces import Along
from konsil.report.tables import plain
from konsil.report.terrain import Terrain
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


def test_how_sharp_minima_are(finished, tmp_path):  # noqa: F811
    words = "--batches", "1", "--method", "fedsm"
    done = called("analyze", "sharpness", finished, *words)
    assert done.code == 0, done.err
    assert "fedsm global" in done.out
    assert "fedsm personal" in done.out
    assert "fedavg" not in done.out
    path = finished / "sharpness.csv"
    head, *lines = path.read_text().splitlines()
    assert head == "method,seed,role,site,batches,whole,residual"
    assert len(lines) == 2 * 2 * 2  # seeds, roles, sites
    figure = finished / "figures" / "sharpness.png"
    assert figure.exists()
    assert figure.with_suffix(".svg").exists()
    # killed before the last line: what is there is not computed again
    whole = read_rows(path, Minimum)
    folder = shutil.copytree(finished, tmp_path / "run")
    marked = [row._replace(whole=3e9) for row in whole[:-1]]
    write_rows(folder / "sharpness.csv", Minimum, marked)
    again = called("analyze", "sharpness", folder, *words)
    assert read_rows(folder / "sharpness.csv", Minimum) == [*marked, whole[-1]]
    assert "7 numbers were known" in in_a_line(again)
    assert "3e+09" in again.out


def test_the_loss_around_models(finished):  # noqa: F811
    path = finished / "figures" / "surface-south.csv"
    path.unlink(missing_ok=True)
    words = "analyze", "surface", finished, "--site", "south", "--directions", "2"
    done = called(*words, "--points", "5", "--radius", "4")
    assert done.code == 0, done.err
    assert "Training loss of south along 2 random directions" in in_a_line(done)
    assert "rise at 4" in in_a_line(done)
    rows = read_rows(path, Along)
    terrain = Terrain(finished, Plan.from_json(read_plan(finished)))
    for name in ("local", "fedavg global", "fedsm global", "fedsm personal"):
        one = terrain.named(name)
        key = one.job.method, 0, one.role, "south"
        own = {(row.direction, row.distance): row.loss for row in rows if row[:4] == key}
        assert sorted(own) == [(d, t) for d in (0, 1) for t in (-4.0, -2.0, 0.0, 2.0, 4.0)]
        loss = terrain.height(terrain.weights(one, "south"), "south", "train").loss
        assert own[0, 0.0] == own[1, 0.0] == loss  # the model's own, to the last bit
        weights = terrain.weights(one, "south")
        there = moved(weights, unit_direction(weights.layout.trainable, 0, 1), -2.0)
        assert own[1, -2.0] == terrain.height(there, "south", "train").loss
    assert path.with_suffix(".png").exists()
    more = called(*words, "--points", "5", "--radius", "4", "--method", "local")
    assert "10 numbers were known" in in_a_line(more)
    assert read_rows(path, Along) == rows
    other = called(*words, "--points", "3", "--method", "local", "--seed", "1")
    assert other.code == 0, other.err
    (found,) = [r for r in read_rows(path, Along) if r[1:6] == (1, "local", "south", 0, 20.0)]
    weights = terrain.weights(terrain.named("local@1"), "south")
    there = moved(weights, unit_direction(weights.layout.trainable, 1, 0), 20.0)
    assert found.loss == terrain.height(there, "south", "train").loss


def test_without_a_site_it_is_the_hardest(finished):  # noqa: F811
    terrain = Terrain(finished, Plan.from_json(read_plan(finished)))
    rows = [r for r in read_results(finished / "results.csv") if r.split == "val"]
    means = {
        site: np.mean([r.value for r in rows if (r.site, r.metric) == (site, "dice")])
        for site in ("north", "south")
    }
    assert terrain.hardest == min(means, key=means.__getitem__)
    done = called("analyze", "surface", finished, "--directions", "1", "--points", "3",
                  "--method", "local")  # fmt: skip
    assert f"Training loss of {terrain.hardest}" in in_a_line(done)


def test_the_plane_through_three_models(finished):  # noqa: F811
    names = "fedavg global,fedsm personal@1,local"
    done = called("analyze", "surface", finished, "--plane", names, "--site", "north",
                  "--points", "4")  # fmt: skip
    assert done.code == 0, done.err
    assert "Three models at north" in in_a_line(done)
    path = finished / "figures" / "plane-north-fedavg-global@0-fedsm-personal@1-local@0.csv"
    rows = read_rows(path, Place)
    assert len(rows) == 2 * (3 + 4 * 4)  # training and validation: the models and the grid
    assert path.with_suffix(".png").exists()
    terrain = Terrain(finished, Plan.from_json(read_plan(finished)))
    own = [terrain.weights(terrain.named(name), "north") for name in names.split(",")]
    for split in ("train", "val"):
        of_models = [(r.loss, r.score) for r in rows if r.split == split][:3]
        assert of_models == [tuple(terrain.height(w, "north", split)) for w in own]


def test_the_line_between_two_models(finished):  # noqa: F811
    done = called("analyze", "interpolate", finished, "fedavg global", "local", "--points", "3")
    assert done.code == 0, done.err
    assert "The line from fedavg global@0 (A) to local@0 (B)" in in_a_line(done)
    assert "mean of sites" in done.out
    path = finished / "figures" / "interpolate-fedavg-global@0-local@0.csv"
    rows = {row[:3]: row for row in read_rows(path, Step)}
    assert path.with_suffix(".png").exists()
    terrain = Terrain(finished, Plan.from_json(read_plan(finished)))
    results = read_results(finished / "results.csv")
    for share, name in ((0.0, "fedavg global"), (1.0, "local")):
        one = terrain.named(name)
        for site in ("north", "south"):
            height = terrain.height(terrain.weights(one, site), site, "train")
            assert rows[site, "train", share][3:] == height
            wanted = one.job.method, 0, one.role, "val", site, "dice"
            (dice,) = [r.value for r in results if r[:6] == wanted]
            assert rows[site, "val", share].score == pytest.approx(dice, abs=1e-9)
    plan = terrain.plan
    line = Line.of(terrain, "fedavg global", "local", None, 3)
    kept = kept_line(finished, line)
    table = plain(line_table(line, kept, plan.method(plan.jobs[0]).context.task.main_metric))
    for split, column in (("train", 3), ("val", 5)):
        found = {site: own.value for site, own in barriers(line, kept, split).items()}
        for site, value in found.items():
            ends = rows[site, split, 0.0].loss, rows[site, split, 1.0].loss
            over = rows[site, split, 0.5].loss - (ends[0] + ends[1]) / 2
            assert value == pytest.approx(max(0, over))
        shown = [float(row[column]) for row in table.rows]
        assert shown == pytest.approx([*found.values(), np.mean([*found.values()])], abs=6e-4)


def test_one_method_with_two_seeds(finished):  # noqa: F811
    words = "fedavg global@0", "fedavg global@1", "--points", "3", "--site", "south"
    done = called("analyze", "interpolate", finished, *words)
    assert done.code == 0, done.err
    assert "were known" not in done.out
    assert "(6 numbers were known" in in_a_line(called("analyze", "interpolate", finished, *words))
    again = called("analyze", "interpolate", finished, *words, "--again")
    assert "were known" not in again.out
    assert "mean of sites" not in done.out  # one site
    assert "north" not in done.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["cross", "--method", "fedprox"], "--method fedprox: the run has local, fedavg, fedsm"),
        (["cross", "--method", "fedavg"], "fedavg: its sites have no models of their own"),
        (["selector", "--method", "local"], "local: no selector of sites among its scores"),
        (["surface", "--site", "east"], "--site east: the run has north, south"),
        (["surface", "--points", "4"], "--points 4: an odd number"),
        (["surface", "--seed", "7"], "--seed 7: local is done with seeds 0, 1"),
        (["surface", "--plane", "local,fedavg global"], "--plane local,fedavg global: three"),
        (
            ["surface", "--plane", "local,fedavg global,fedsm global"],
            "fedavg global and fedsm global are the same weights",
        ),
        (
            ["interpolate", "fedavg", "local"],
            "fedavg: the run has left no such model; there are local, fedavg global, fedsm global, "
            "fedsm personal, each with its seed behind it if wanted (@0, @1)",
        ),
        (["surface", "--recompute"], "--recompute: networks of this run keep no running"),
        (["interpolate", "local", "local@0"], "local and local@0 are the same model"),
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
    for words in (["cross"], ["sharpness"], ["surface"], ["interpolate", "local", "fedavg global"]):
        done = called("analyze", words[0], folder, *words[1:])
        assert done.code == 1
        assert "images are not here" in " ".join(done.err.split())
    done = called("analyze", "selector", folder)
    assert done.code == 0, done.err
    assert "no map: the images are not here" in done.out
