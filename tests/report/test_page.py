"""The page of a run: a three-site case by hand, a real run, and a real browser."""

import csv
import io
import re

import numpy as np
import pytest

from konsil.evaluation.comparison import Comparison
from konsil.evaluation.results import Series
from konsil.evaluation.statistics import Compared, Images
from konsil.report.compare import means_table, scores_table, verdict
from konsil.report.gains import answer, shown_in
from konsil.report.tables import Plain, as_csv, as_latex, as_markdown, plain
from tests.cli.test_compare_command import file, finished  # noqa: F401  fixtures
from tests.cli.test_experiments import called
from tests.serve.chromium import CHROMIUM, Browser

LOCAL, FEDAVG = Series("local", "local"), Series("fedavg", "global")
SUPER, POOLED = Series("fedsm", "super"), Series("centralized", "centralized")


def site(base: float, *gains: float, patients: int = 30) -> Images:
    """Patients who all gain the same, up to a little, over the first candidate."""
    own = np.linspace(base - 0.1, base + 0.1, patients)
    little = np.linspace(-0.01, 0.01, patients)
    values = [own[None], *((own + gain + little * (1 + k))[None] for k, gain in enumerate(gains))]
    return Images(np.arange(patients), values)


def comparison(candidates, **sites) -> Comparison:
    seeds = {one: [0] for one in candidates}
    images = sum(len(own.patients) for own in sites.values())
    return Comparison(candidates, seeds, Compared(sites), images, images)


# a gains 5 points by joining, at b nothing is found, c loses 3; FedAvg gains nobody anything
THREE = comparison(
    [LOCAL, FEDAVG, SUPER, POOLED],
    a=site(0.6, -0.02, 0.05, 0.06),
    b=site(0.8, -0.02, 0.0, 0.02),
    c=site(0.7, -0.05, -0.03, 0.01),
)


def test_who_is_shown_and_by_which_name():
    assert [(one.words, one.place) for one in shown_in(THREE)] == [
        ("training alone", 0),
        ("one model for all (fedavg)", 1),
        ("the super model (fedsm)", 2),
        ("pooled images, which hospitals cannot do", 3),
    ]
    alone = comparison([LOCAL, FEDAVG], a=site(0.6, 0.1), b=site(0.6, 0.1))
    assert [one.words for one in shown_in(alone)] == [
        "training alone",
        "one model for all (fedavg)",  # which is what who joins gets
    ]


def test_the_answer_by_hand():
    found = answer(THREE)
    assert [gain.site for gain in found.better] == ["a"]
    assert [gain.site for gain in found.worse] == ["c"]
    assert [gain.estimate.value for gain in found.gains] == pytest.approx([0.05, 0.0, -0.03])
    assert found.headline == (
        "hospitals are served better by the super model (fedsm) than by training alone"
    )
    first, second = found.sentences()
    assert first.startswith(
        "1 served worse; at 1 no difference was found. The mean of the hospitals"
    )
    assert found.mean.estimate.value == pytest.approx(0.02 / 3)
    assert second == (
        "Served worst: a (0.650) by the super model (fedsm), a (0.600) by training alone."
    )
    words = [gain.words for gain in found.gains]
    assert words[0].startswith("a gains 5.0 points (95 %: +4.")
    assert words[1].startswith("b: no difference found, ")
    assert words[2].startswith("c loses 3.0 points (95 %: -3.")


def test_without_training_alone_the_one_model_for_all_is_held_against():
    found = answer(comparison([FEDAVG, SUPER], a=site(0.6, 0.05), b=site(0.7, 0.05)))
    assert found.base.words == "one model for all (fedavg)"
    assert found.joined.words == "the super model (fedsm)"
    assert len(found.better) == 2


@pytest.mark.parametrize("candidates", [[LOCAL], [FEDAVG], [POOLED], [LOCAL, POOLED]])
def test_of_one_alone_there_is_no_answer(candidates):
    gains = [0.1] * (len(candidates) - 1)
    assert answer(comparison(candidates, a=site(0.6, *gains), b=site(0.7, *gains))) is None


def test_hospitals_are_corrected_for_each_other():
    """With twenty hospitals a p of .01 is luck."""
    weak = np.array([0.05, 0.04, 0.03, 0.02, -0.01, 0.06, 0.07, 0.08])  # 4 of 256 are as far
    own = Images(np.arange(8), [np.zeros((1, 8)), weak[None]])
    one = answer(comparison([LOCAL, FEDAVG], a=own))
    assert one.gains[0].p == pytest.approx(1 / 64, abs=0.005)
    many = answer(comparison([LOCAL, FEDAVG], **{f"s{k}": own for k in range(20)}))
    assert not many.better
    assert many.gains[0].p == pytest.approx(20 * one.gains[0].p)


def test_verdicts():
    better = THREE.compared.differences("a", 0)[2]
    assert (verdict(better, less=False), verdict(better, less=True)) == ("better", "worse")
    assert verdict(THREE.compared.differences("b", 0)[2], False) == "no difference found"


# --- tables as text ------------------------------------------------------------------------------

ROWS = [["fed_avg", "0.5\n0.4–0.6"], ["a|b", "–"]]
SMALL = Plain("A & B", ["method", "north"], ROWS, "Note.", frozenset({(0, 1)}))


def test_a_table_as_markdown_latex_and_csv():
    assert as_markdown(SMALL) == (
        "**A & B**\n\n| method | north |\n| --- | --: |\n| fed_avg | **0.5 (0.4–0.6)** |\n"
        "| a\\|b | – |\n\nNote.\n"
    )
    assert as_latex(SMALL) == (
        "% A & B\n\\begin{tabular}{lr}\n\\toprule\nmethod & north \\\\\n\\midrule\n"
        "fed\\_avg & \\textbf{0.5 (0.4--0.6)} \\\\\na|b & -- \\\\\n\\bottomrule\n\\end{tabular}\n"
    )
    assert as_csv(SMALL) == "method,north\nfed_avg,0.5 (0.4–0.6)\na|b,–\n"


def test_means_have_intervals_and_the_worst_site_a_name():
    table = plain(means_table(THREE, "dice", less=False))
    assert table.head == ["method", "client average", "all images", "worst site", "spread"]
    name, average, _, worst, spread = table.rows[2]
    assert (name, worst, spread) == ("fedsm super", "0.650 a", "0.150")
    assert re.fullmatch(r"0\.707 \(\.6\d\d–\.7\d\d\)", average)
    assert plain(means_table(THREE, "hd95", less=True)).rows[2][3] == "0.800 b"


def test_where_no_site_has_an_auc_none_is_the_worst():
    ill = np.ones(2, dtype=bool)
    own = Images(np.arange(2), [np.array([[1.0, 2.0]])], ill)
    table = plain(means_table(comparison([FEDAVG], a=own, b=own), "auc", less=False))
    assert table.rows[0][3].strip() == "–"


def test_the_table_of_the_terminal_is_the_one_of_the_page():
    table = plain(scores_table(THREE, "dice", less=False))
    assert table.head[:4] == ["method", "a", "b", "c"]
    assert table.rows[0][:4] == ["local", "0.600", "0.800", "0.700"]
    assert table.rows[2][4:] == ["0.707", "0.707"]
    assert table.title == "Dice of test images"


# --- a real run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory):  # noqa: F811
    path = tmp_path_factory.mktemp("page") / "report.html"
    done = called("report", finished, "-o", path)
    assert done.code == 0, done.err
    assert str(path) in done.out
    return path


def test_the_page_needs_nothing_from_outside(written):
    text = written.read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert len(text.encode()) < 5_000_000


def test_the_page_says_what_the_run_has(written, finished):  # noqa: F811
    text = written.read_text(encoding="utf-8")
    for words in (
        "0 of 2", "training alone", "one model for all (fedavg)", "the super model (fedsm)",
        "no difference found", "5 test images", "Time on the clock", "fedsm/seed1", "rounds: 2",
        "surface Dice", "bootstrap over images (of no two is known",
        "This page shows images of patients",
    ):  # fmt: skip
        assert words.lower() in text.lower(), words
    assert text.count("data:image/png") >= 3


def test_without_images_no_patient_is_on_it(finished, tmp_path):  # noqa: F811
    path = tmp_path / "open.html"
    assert called("report", finished, "-o", path, "--no-images").code == 0
    text = path.read_text(encoding="utf-8")
    assert "images of patients" not in text
    assert text.count("data:image/png") == 1  # the curves


def test_other_formats(finished, tmp_path):  # noqa: F811
    done = called("report", finished, "--format", "csv")
    rows = list(csv.reader(io.StringIO(done.out)))
    assert rows[0][:3] == ["method", "north", "south"]
    first = [row[0] for row in rows[1:]]
    assert first[:2] == ["local", "fedavg global"]
    assert "fedsm global" not in first  # the same answers as FedAvg's
    assert "\\toprule" in called("report", finished, "--format", "latex").out
    assert called("report", finished, "--format", "markdown", "-o", tmp_path / "t.md").code == 0
    assert "| local |" in (tmp_path / "t.md").read_text()
    assert "--format pdf: html, markdown" in called("report", finished, "--format", "pdf").err


def test_where_only_means_are_known_it_says_so(finished, tmp_path):  # noqa: F811
    import shutil

    folder = tmp_path / "means"
    shutil.copytree(finished, folder)
    (folder / "scores.parquet").unlink()
    assert called("report", folder).code == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "policies let only means out" in text
    assert "client average" in text


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 375])
def test_in_a_browser(written, tmp_path, width):
    with Browser(tmp_path) as browser:
        browser.size(width, 900)
        browser.open(written.as_uri())
        assert browser.complaints() == []
        assert browser.js("document.documentElement.scrollWidth") <= width
        marks = browser.js(
            "[...document.querySelectorAll('.bars .mark')].map(m => m.getBoundingClientRect().x)"
        )
        assert len(marks) == 2 * 3  # three candidates at two hospitals
        assert all(0 < x < width for x in marks)
        assert browser.js("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        browser.press("Tab")  # the first link of the navigation
        assert browser.js("document.activeElement.textContent") == "Tables"
