"""Numbers that are kept beside pictures, and the names of their files."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from konsil.errors import RunError
from konsil.evaluation.landscape import between
from konsil.evaluation.results import Row, write_results
from konsil.report.interpolation import Line, find_line, kept_line
from konsil.report.planes import Trio, find_plane, kept_plane
from konsil.report.terrain import Kept, Terrain, file_name
from konsil.testing.runs import plan_of, whole_run

BATCH_NORM = {"name": "unet", "width": 2, "norm": "batch"}


class Found(NamedTuple):
    site: str
    share: float
    value: float


def kept(path, again=False) -> Kept[Found]:
    return Kept(path / "figures" / "found.csv", Found, keys=2, again=again)


def test_what_was_found_is_there_the_next_time(tmp_path):
    first = kept(tmp_path)
    assert not first.has("north", 0.1)
    first.add([Found("north", 0.1, 1 / 3), Found("south", 0.1, float("inf"))])
    second = kept(tmp_path)
    assert second.has("north", 0.1)
    assert second["north", 0.1].value == 1 / 3
    assert not second.has("north", 0.2)
    second.add([Found("north", 0.2, 5.0)])
    assert list(kept(tmp_path).rows.values()) == [
        Found("north", 0.1, 1 / 3), Found("south", 0.1, float("inf")), Found("north", 0.2, 5.0)
    ]  # fmt: skip
    assert (first.old, second.old) == (0, 1)


def test_again_replaces_what_is_asked_for_and_keeps_the_rest(tmp_path):
    kept(tmp_path).add([Found("north", 0.1, 1.0), Found("south", 0.1, 2.0)])
    again = kept(tmp_path, again=True)
    assert not again.has("north", 0.1)
    again.add([Found("north", 0.1, 7.0)])
    assert again.has("north", 0.1)  # once is enough
    assert [row.value for row in kept(tmp_path).rows.values()] == [7.0, 2.0]


def test_a_file_of_other_columns_is_refused_by_name(tmp_path):
    path = tmp_path / "figures" / "found.csv"
    path.parent.mkdir()
    path.write_text("site,value\nnorth,1\n")
    with pytest.raises(RunError, match=r"found\.csv: not rows that Konsil wrote; remove the file"):
        kept(tmp_path)


def test_names_of_models_as_a_file():
    found = file_name("plane", "St. Mary/1", "fedavg global@0", "local@0")
    assert found == "plane-St.-Mary-1-fedavg-global@0-local@0"


@pytest.fixture(scope="module")
def terrain(tmp_path_factory, squares) -> Terrain:
    """Of networks with batch norm."""
    folder = tmp_path_factory.mktemp("normed") / "run"
    plan = plan_of(squares, network=BATCH_NORM, methods=["fedavg", "local"], rounds=1, seeds=[0, 1])
    whole_run(plan, folder)
    return Terrain(folder, plan)


def test_the_hardest_site_is_told_by_validation_images(terrain, tmp_path):
    """Not by test images, nor by means over sites."""
    scores = {("val", "north"): 0.9, ("val", "south"): 0.2, ("val", "client_average"): 0.1,
              ("test", "north"): 0.1, ("test", "south"): 0.9}  # fmt: skip
    rows = [
        Row("local", seed, "local", split, site, "dice", value, 5)
        for (split, site), value in scores.items()
        for seed in (0, 1)
    ]
    write_results(tmp_path / "results.csv", rows)
    assert Terrain(tmp_path, terrain.plan).hardest == "south"


def silent(what: str, done: int, total: int) -> None:
    pass


def test_recomputed_statistics_are_those_of_the_sites_training_images(terrain):
    """Whatever they were before."""
    own, other = (terrain.weights(terrain.named(name), "north") for name in ("local", "local@1"))
    found = terrain.recalibrated(own, "north")
    layout = own.layout
    assert found.trainable.equal(own.trainable)
    assert not found.flat[layout.statistics].equal(own.flat[layout.statistics])
    assert terrain.recalibrated(own.with_statistics_of(other), "north").equals(found)
    elsewhere = terrain.recalibrated(own, "south")
    assert not elsewhere.flat[layout.statistics].equal(found.flat[layout.statistics])


def test_a_line_with_statistics_as_they_are_and_recomputed(terrain):
    line = Line.of(terrain, "fedavg global", "local", "north", 3)
    a, b = (terrain.weights(one, "north") for one in line.ends)
    for share in line.shares:
        there = between(a, b, share)
        for recompute in (False, True):
            one = replace(line, recompute=recompute)
            kept = kept_line(terrain.folder, one)
            find_line(terrain, one, kept, silent)
            weights = terrain.recalibrated(there, "north") if recompute else there
            assert kept["north", "train", share][3:] == terrain.height(weights, "north", "train")
            assert kept["north", "val", share][3:] == terrain.height(weights, "north", "val")
    assert line.file == "interpolate-fedavg-global@0-local@0"
    assert replace(line, recompute=True).file == f"{line.file}-recomputed"


def test_a_plane_with_recomputed_statistics(terrain):
    trio = Trio.of(terrain, "fedavg global,local,local@1", "north")
    trio = replace(trio, recompute=True)
    kept = kept_plane(terrain.folder, trio)
    find_plane(terrain, trio, 3, kept, silent)
    assert kept.path.name == "plane-north-fedavg-global@0-local@0-local@1-recomputed.csv"
    corner = trio.plane.grid(3, 0.25)[0][0]
    for spot, weights in ((trio.plane.spots[1], trio.plane.b), (corner, trio.plane.at(corner))):
        there = terrain.recalibrated(weights, "north")
        assert kept["val", *spot][3:] == terrain.height(there, "north", "val")
