"""Several folders on one page: joined as if they were one run; what is not there is said."""

import shutil

import pyarrow.compute as pc
import pytest
import yaml
from pyarrow import parquet

from konsil.deploy.policy import Policy
from konsil.errors import RunError
from konsil.evaluation.results import Series
from konsil.evaluation.scores import FILE, write_scores
from konsil.report.charts import Chart, left_by_others
from konsil.report.curves import best_so_far
from konsil.report.extremes import extremes, values_of_images
from konsil.report.flatness import read_minima
from konsil.report.page import Page, page, write_figures
from konsil.report.page_tables import chosen_table
from konsil.report.runs import open_runs
from konsil.report.style import look, new_figure
from tests.cli.test_experiments import called
from tests.deploy import direct
from tests.report.by_hand import METHODS, write_run
from tests.report.test_page_numbers import tables, words


@pytest.fixture
def whole(make_plan, tmp_path):
    write_run(tmp_path / "whole", make_plan)
    return tmp_path / "whole"


@pytest.fixture
def parts(make_plan, tmp_path):
    """Every method with every seed in a folder of its own."""
    folders = []
    for method in METHODS:
        for seed in (0, 1):
            folders.append(tmp_path / f"{method}-{seed}")
            write_run(folders[-1], make_plan, methods=[method], seeds=[seed])
    return folders


def answer_of(text: str) -> str:
    return words(text.split('<section id="answer"')[1].split("</section>")[0])


def test_eight_folders_are_one_run(whole, parts):
    one, several = page(open_runs([whole])), page(open_runs(parts))
    assert answer_of(several) == answer_of(one)
    assert tables(several) == tables(one)
    assert several.count("<svg") == one.count("<svg") == 2
    assert several.count("The experiment, with every default") == 1
    charts = [text[text.index("<svg") : text.index("</svg>")] for text in (several, one)]
    assert charts[0] == charts[1]  # the same curves


def test_what_differs_is_listed_and_nothing_else(make_plan, tmp_path):
    for name, rate in (("a", 0.001), ("b", 0.002)):
        training = {"lr": rate, "batch_size": 3}
        methods = ["local" if name == "a" else "fedavg"]
        write_run(tmp_path / name, make_plan, methods=methods, training=training)
    found = tables(page(open_runs([tmp_path / "a", tmp_path / "b"])))
    assert found["In what the runs differ"][1:] == [
        ["training.lr", "0.001", "a"],
        ["training.lr", "0.002", "b"],
    ]


def test_what_does_not_fit_is_refused(whole, make_plan, tmp_path):
    shutil.copytree(whole, tmp_path / "again")
    with pytest.raises(RunError, match=r"again: centralized with seed 0 is in .*whole, too"):
        open_runs([whole, tmp_path / "again"]).rows  # noqa: B018  an error
    shutil.copytree(whole, tmp_path / "other")
    plan = yaml.safe_load((tmp_path / "other" / "plan.yaml").read_text())
    plan["sites"] = ["north", "south"]
    (tmp_path / "other" / "plan.yaml").write_text(yaml.safe_dump(plan))
    with pytest.raises(RunError, match=r"other: other hospitals \(north, south\) than .*whole"):
        open_runs([whole, tmp_path / "other"])
    with pytest.raises(RunError, match=r"whole: not a folder that `konsil unseen` has left"):
        open_runs([whole], [whole])


# --- where only means are known ------------------------------------------------------------------


def test_a_hospital_that_tells_means_alone(whole):
    """Everything else is tested among the others, and corrected for two instead of three."""
    table = parquet.read_table(whole / FILE)
    parquet.write_table(table.filter(pc.not_equal(table["site"], "west")), whole / FILE)
    text = page(open_runs([whole]))
    said = answer_of(text)
    assert "1 of 2 hospitals are served better" in said
    assert "west: -5.0 points by its means; how sure that is, is not known" in said
    # of all three hospitals, so that nothing is said of how sure it is
    assert "The mean of the hospitals: +2.3 points by its means" in said
    assert "Served worst: west (0.650) by the super model (fedsm)" in said
    assert "Of west only means are known (a policy that says scores: means)" in text
    assert 'title="the super model (fedsm): 0.650"' in text  # a mark without a line
    found = tables(text)
    assert found["Dice of test images"][0] == [
        "method", "north", "south", "client average", "all images",
    ]  # fmt: skip
    assert found["Dice of test images, intervals over seeds"][-1][3] == "0.650 ±0.000"


def test_where_all_tell_means_alone(whole):
    (whole / FILE).unlink()
    text = page(open_runs([whole]))
    said = answer_of(text)
    assert "2 of 3 hospitals are served better by the super model (fedsm)" in said
    assert "than by training alone, by their means alone" in said
    assert "The mean of the hospitals: +2.3 points by its means" in said
    assert "nobody can say which of these differences are luck" in said
    assert "north: +10.0 points by its means" in said
    assert "no scores.parquet is in these folders" in text
    assert "the selector names the right site for 89.5 %" in text
    assert "fedsm: whom it asks" not in tables(text)
    assert next(iter(tables(text))) == "Dice of test images, intervals over seeds"


def test_a_run_between_hospitals_one_of_which_tells_means(experiment, classes, tmp_path):
    e = experiment(methods=["local", "fedavg"], **classes)
    direct.deploy(e, tmp_path, ["north", "south"], {"south": Policy(scores="means")})
    text = page(open_runs([tmp_path / "run"]))
    assert "Of south only means are known" in text
    assert "south: " in answer_of(text)
    assert "0 of 1 hospitals are served better by one model for all (fedavg)" in answer_of(text)
    assert "images (of no two is known that they are of one patient)" in text
    assert "Example images:" in text


# --- what is not there, and what others leave ----------------------------------------------------


def test_a_copy_without_models_says_what_it_lacks(whole):
    text = page(open_runs([whole]))
    assert "Example images: north: the models are not in these folders." in text
    assert "konsil analyze sharpness leaves it in a run" in text
    assert "konsil unseen, then report --unseen FOLDER" in text
    assert "data:image" not in text
    for result in whole.glob("*/*/result.json"):
        result.unlink()
    text = page(open_runs([whole]))
    assert "Curves: the jobs&#39; result.json are not in these folders." in text
    assert text.count("<svg") == 1


def test_an_unfinished_job_is_named(make_plan, tmp_path):
    write_run(tmp_path / "run", make_plan, methods=["local"])
    plan = yaml.safe_load((tmp_path / "run" / "plan.yaml").read_text())
    plan["experiment"]["seeds"] = [0, 1, 2]
    (tmp_path / "run" / "plan.yaml").write_text(yaml.safe_dump(plan))
    text = page(open_runs([tmp_path / "run"]))
    assert "Not done: local/seed2: round 0 of 2." in text
    assert "There is nobody to hold anybody against" in text


def test_a_run_that_has_not_begun(whole, tmp_path):
    (tmp_path / "new").mkdir()
    shutil.copy(whole / "plan.yaml", tmp_path / "new")
    text = page(open_runs([tmp_path / "new"]))
    assert "No job is done yet." in text
    assert text.count("Not done: ") == 8
    assert list(tables(text)) == ["One round", "Sites", "Methods"]


def test_hospitals_that_took_no_part(whole, tmp_path):
    """Two of four images are asked of the global model, which is better by 0.2 there."""
    folder = tmp_path / "unseen"
    (folder / "without-north").mkdir(parents=True)
    for target in (folder, folder / "without-north"):
        shutil.copy(whole / "plan.yaml", target)
    rows = []
    for image in range(4):
        sure = 0.9 if image < 2 else 0.4
        base = {"method": "fedsm", "seed": 0, "site": "north", "patient": image, "image": image}
        base |= {"structure": None}
        rows.append(base | {"role": "global", "dice": 0.7})
        routed = {"like_south": sure, "like_west": 1 - sure - 0.05, "score_of_global": 0.7}
        routed |= {"score_of_south": 0.5, "score_of_west": 0.5, "unfamiliar": float(image == 3)}
        answered = (
            {"asked": "south", "dice": 0.5} if image < 2 else {"asked": "global", "dice": 0.7}
        )
        rows.append(base | {"role": "super"} | routed | answered)
    write_scores(folder / FILE, rows)
    for runs in (open_runs([whole, folder]), open_runs([whole], [folder])):
        text = page(runs)
        found = tables(text)
        assert found["fedsm: at a hospital that took no part"][1] == [
            "north", "south 50%, global 50%", "25%", "0.600", "0.700", "1", "0.700",
        ]  # fmt: skip
        assert answer_of(text) == answer_of(page(open_runs([whole])))
        assert text.count("<svg") == 3  # and the score against gamma
    alone = page(open_runs([folder]))
    assert "These runs leave a hospital out" in alone
    assert "At a hospital that took no part" in alone


def test_figures_of_others_are_shown_once_and_small(whole, tmp_path):
    figures = whole / "figures"
    figures.mkdir()
    with look():
        figure = new_figure(2.0)
        figure.subplots().plot([0, 1], [0, 1])
    for name in ("cross-local", "levels-dice", "surface-fedavg", "interpolate", "routes", "other"):
        Chart(name, figure, "").write(figures)
    text = page(open_runs([whole]))
    shown = [line for line in text.splitlines() if "data:image/webp" in line]
    assert len(shown) == 5  # `other` is of no kind that is known
    assert "on every hospital&#39;s test images: local" in text
    assert "This page shows images of patients" in text  # `routes` has some
    text = page(open_runs([whole]), images=False)
    assert text.count("data:image/webp") == 4
    assert "images of patients" not in text
    shutil.copytree(whole, tmp_path / "b")
    both = left_by_others([whole, tmp_path / "b"], {"cross": "X"})
    assert [picture.name for picture in both] == ["cross-local", "cross-local-b"]


def test_pictures_without_room_are_named(whole, monkeypatch):
    (whole / "figures").mkdir()
    with look():
        Chart("cross-local", new_figure(2.0), "").write(whole / "figures")
    monkeypatch.setattr("konsil.report.page.MOST_PICTURES", 10)
    text = page(open_runs([whole]))
    assert "data:image/webp" not in text
    assert "test images: local: no room; konsil report --figures has it." in text


def test_every_figure_as_file(whole, tmp_path):
    (whole / "sharpness.csv").write_text(
        "method,seed,role,site,batches,whole,residual\nfedavg,0,global,north,4,2,0.001\n"
    )
    written = write_figures(open_runs([whole]), tmp_path / "out")
    names = {path.name for path in written}
    stems = ("served", "progress", "routing-fedsm", "flatness")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_table_of_sharpness_that_is_none_is_named(whole):
    (whole / "sharpness.csv").write_text("method,seed\nfedavg,0\n")
    with pytest.raises(RunError, match=r"sharpness\.csv: not a table of sharpness"):
        read_minima([whole])


# --- tables by name ------------------------------------------------------------------------------


def test_tables_by_name(whole, tmp_path):
    runs = open_runs([whole])
    found = Page(runs).found
    assert chosen_table(runs, found, None).name == "scores"
    for name in ("scores", "means", "differences", "dice"):
        assert chosen_table(runs, found, name).name == name
    with pytest.raises(RunError, match=r"--table auc: one of scores, means, differences, dice$"):
        chosen_table(runs, found, "auc")
    with pytest.raises(RunError, match="--table means: one of dice; that one needs single images"):
        chosen_table(runs, None, "means")
    printed = called("report", whole, "--format", "markdown", "--table", "differences")
    assert "| fedsm super | +0.023 |" in printed.out
    assert "goes with --format" in called("report", whole, "--table", "means").err


# --- by hand -------------------------------------------------------------------------------------


def test_the_best_so_far_never_falls():
    moments = [(0, 0.1, 0.5), (1, 0.6, 0.4), (2, 0.4, 0.45)]
    history = [{"round": r, "sites": {}, "means": {"global": g, "own": o}} for r, g, o in moments]
    found = best_so_far({"method": "x", "history": history})
    assert [m["means"] for m in found["history"]] == [
        {"global": 0.1, "own": 0.5}, {"global": 0.6, "own": 0.5}, {"global": 0.6, "own": 0.5},
    ]  # fmt: skip
    assert found["method"] == "x"
    assert history[2]["means"]["global"] == 0.4  # what was measured stays


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([0.3, 0.9, 0.5], [1, 2, 0]),
        ([0.1, 0.2], [1, 0]),
        ([0.4], [0]),
        ([0.2, 0.2, 0.2], [0, 1, 2]),
    ],
)
def test_best_median_and_worst(values, places):
    assert extremes(values) == places


def test_values_of_images_are_means_over_seeds(whole):
    found = values_of_images(open_runs([whole]), Series("fedsm", "super"))
    assert found["north"] == pytest.approx([0.70] * 8)
    assert found["south"] == pytest.approx([0.85, 0.85, 0.76])


def test_two_charts_share_no_names():
    """Else the second's clipping would be the first's."""
    charts = []
    for name in ("a", "b"):
        with look():
            figure = new_figure(2.0)
            figure.subplots().plot([0, 1], [0, 1], color="#222222")
        charts.append(Chart(name, figure, 'more & "less"').markup)
    names = [{part.split('"')[0] for part in chart.split(' id="')[1:]} for chart in charts]
    assert names[0]
    assert not names[0] & names[1]
    for chart, own in zip(charts, "ab", strict=True):
        assert all(part.startswith(f"{own}-") for part in chart.split("url(#")[1:])
        assert 'aria-label="more &amp; &quot;less&quot;"' in chart
        assert "var(--ink)" in chart
        assert "#222222" not in chart
        assert "<style" not in chart
        assert "<metadata" not in chart
