"""What is said of hospitals that let means out alone: by hand, and as a command prints it."""

import json
import shutil
from pathlib import Path

import pytest

from konsil.errors import RunError
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, Series, write_results
from konsil.evaluation.scores import FILE, read_scores
from konsil.report.means import as_json, gains_table, means_of, means_table, silent_means_of
from konsil.report.tables import plain
from tests.cli.test_compare_command import file, finished  # noqa: F401
from tests.cli.test_experiments import called

LOCAL, FEDAVG = Series("local", "local"), Series("fedavg", "global")


def rows(who: Series, seed: int, dice: dict[str, float], **further: float) -> list[Row]:
    values = [("dice", site, value) for site, value in dice.items()]
    values += [(metric, "north", value) for metric, value in further.items()]
    return [Row(*who[:1], seed, who.role, "test", s, m, v, 4) for m, s, v in values]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three hospitals and two seeds: local .6, .7, .8 and fedavg .7, .5, .9 in the mean."""
    found = [
        *rows(LOCAL, 0, {"north": 0.5, "south": 0.7, "west": 0.8, CLIENT_AVERAGE: 0.65}, hd95=9),
        *rows(LOCAL, 1, {"north": 0.7, "south": 0.7, "west": 0.8, CLIENT_AVERAGE: 0.75}, hd95=7),
        *rows(FEDAVG, 0, {"north": 0.7, "south": 0.5, "west": 0.9, CLIENT_AVERAGE: 0.7}, hd95=5),
    ]
    validation = [row._replace(split="val", value=0.1) for row in found]
    write_results(tmp_path / "results.csv", [*found, *validation])
    return tmp_path


def test_every_number_by_hand(folder):
    found = means_of([folder], "dice")
    assert (found.sites, found.images) == (["north", "south", "west"], 12)
    assert [found.value(LOCAL, c) for c in found.columns] == pytest.approx([0.6, 0.7, 0.8, 0.7])
    assert found.extremes(LOCAL, less=False) == ("north", pytest.approx(0.6), pytest.approx(0.2))
    assert found.extremes(FEDAVG, less=False) == ("south", 0.5, pytest.approx(0.4))
    assert found.extremes(FEDAVG, less=True) == ("west", 0.9, pytest.approx(0.4))
    assert found.value(FEDAVG, GLOBAL) is None  # nobody has said, and nobody can know
    table = plain(means_table(found, less=False))
    assert table.rows[1] == ["fedavg global", "0.700", "0.500", "0.900", "0.700", "0.500 south",
                             "0.400"]  # fmt: skip
    gains = plain(gains_table(found, None))
    assert "minus that of local: how sure is not known" in gains.title
    assert gains.rows == [["fedavg global", "+0.100", "-0.200", "+0.100", "+0.000"]]
    assert plain(gains_table(found, "fedavg global")).rows[0][:2] == ["local", "-0.100"]


def test_for_machines_it_has_the_form_of_a_comparison(folder):
    said = json.loads(as_json(means_of([folder], "dice"), None, less=False))
    assert (said["images"], said["patients"], said["against"]) == (12, None, "local")
    local, fedavg = said["compared"]
    assert (local["seeds"], fedavg["seeds"], local["gains"]) == ([0, 1], [0], {})
    assert fedavg["scores"]["worst site"] == {"value": 0.5, "low": None, "high": None}
    assert fedavg["gains"]["south"]["value"] == pytest.approx(-0.2)
    assert fedavg["gains"]["south"]["p"] is None
    assert "policies let only means out" in said["why_no_intervals"]


def test_a_metric_that_some_sites_do_not_have(folder):
    found = means_of([folder], "hd95")
    assert found.extremes(LOCAL, less=True) == ("north", 8, 0)
    assert plain(means_table(found, True)).rows[0][1:4] == ["8.000", "–", "–"]


def test_only_those_who_have_not_told(folder):
    found = silent_means_of([folder], "dice", None, ["north", "west"])
    assert (found.columns, found.images) == (["south"], 4)
    assert silent_means_of([folder], "dice", None, ["north", "south", "west"]) is None
    (folder / "results.csv").unlink()  # as in a folder of `konsil unseen`
    assert silent_means_of([folder], "dice", None, []) is None


@pytest.mark.parametrize(
    ("metric", "structure", "why"),
    [
        ("f1", None, "no f1; there is dice, hd95"),
        ("dice", "cup", "no dice_cup; there is"),
        ("volume_dice", None, "slices are put together where single images' scores are known"),
    ],
)
def test_what_means_cannot_say(folder, metric, structure, why):
    with pytest.raises(RunError, match=why):
        means_of([folder], metric, structure)


def test_a_folder_without_results(tmp_path):
    with pytest.raises(RunError, match=r"results\.csv: not there; a run leaves it"):
        means_of([tmp_path], "dice")


# --- a real run -----------------------------------------------------------------------------------


@pytest.fixture
def silent(finished, tmp_path) -> Path:  # noqa: F811
    """A run whose hospitals let only means out."""
    folder = tmp_path / "silent"
    shutil.copytree(finished, folder)
    (folder / FILE).unlink()
    return folder


def test_a_run_of_means_alone_is_compared(silent, finished):  # noqa: F811
    done = called("compare", silent)
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    for text in (
        "fedsm super",
        "client average",
        "worst site",
        "spread",
        "means alone",
        "minus that of local: how sure is not known",
        "policies let only means out",
    ):
        assert text in words, text  # fmt: skip
    whole, means = (json.loads(called("compare", f, "--json").out) for f in (finished, silent))
    for with_ends, without in zip(whole["compared"], means["compared"], strict=True):
        for column, estimate in with_ends["scores"].items():
            assert without["scores"][column]["value"] == pytest.approx(estimate["value"])
        for column, gain in with_ends["gains"].items():
            assert without["gains"][column]["value"] == pytest.approx(gain["value"])
    assert called("report", silent, "--format", "csv").out.startswith("method,north,south,client")
    refused = called("compare", silent, "--site", "nowhere")
    assert (refused.code, "--site nowhere: one of north" in refused.err) == (1, True)


def test_a_run_where_one_hospital_told_means_alone(silent, finished):  # noqa: F811
    from pyarrow import compute, parquet

    told = read_scores(finished / FILE)
    parquet.write_table(told.filter(compute.equal(told["site"], "north")), silent / FILE)
    done = called("compare", silent)
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    assert "test images of 1 sites" in words
    assert "means alone" in words
    assert "Of south no single image's scores are there" in words
    said = json.loads(called("compare", silent, "--json").out)
    assert "south" in said["means_alone"]["compared"][0]["scores"]
    assert "south" not in said["compared"][0]["scores"]
    done = called("compare", silent, "--metric", "volume_dice")
    assert done.code == 0, done.err
    assert "of sites that let means out alone:" in done.out
