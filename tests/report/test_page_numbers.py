"""Every number of the page, worked out by hand for three hospitals (by_hand.py)."""

import html
import itertools
import re

import numpy as np
import pytest

from konsil.evaluation.statistics import holm
from konsil.networks import build_network
from konsil.report.page import page
from konsil.report.runs import open_runs
from tests.report.by_hand import write_run

SHARPNESS = """method,seed,role,site,batches,whole,residual
fedavg,0,global,north,4,2,0.001
fedavg,0,global,south,6,8,0.002
fedavg,0,global,west,5,3,0.0005
fedsm,0,personal,north,1,0.5,0.001
fedsm,0,personal,south,3,1.5,0.001
"""


@pytest.fixture
def text(make_plan, tmp_path):
    folder = tmp_path / "run"
    write_run(folder, make_plan)
    (folder / "sharpness.csv").write_text(SHARPNESS)
    return page(open_runs([folder]))


def words(markup: str) -> str:
    """Without marks, each gap one blank."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def tables(text: str) -> dict[str, list[list[str]]]:
    """Title -> rows of cells, the head first."""
    found = {}
    for label, inside in re.findall(r'role="region" aria-label="([^"]*)"><table>(.*?)</table>',
                                    text, re.DOTALL):  # fmt: skip
        rows = re.findall(r"<tr>(.*?)</tr>", inside, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
        found[html.unescape(label)] = [[words(cell) for cell in row] for row in cells]
    return found


def test_the_answer(text):
    """0.70 - 0.60; (2 x 0.05 - 0.04) / 3; 0.65 - 0.70. With 8 of 8 alike p is 2 / 256, times 3."""
    said = words(text.split('<section id="answer"')[1].split("</section>")[0])
    assert (
        "1 of 3 hospitals are served better by the super model (fedsm) than by training alone"
        in said
    )
    assert "1 served worse; at 1 no difference was found." in said
    # (0.1 + 0.02 - 0.05) / 3, where south is 0.02, or its first or its second patient alone
    assert (
        "The mean of the hospitals: no difference found, +2.3 points (95 %: +0.3 to +3.3)." in said
    )
    # against pooled images -0.02, (2 x 0.01 - 0.08) / 3, -0.06
    assert (
        "The super model (fedsm) is 3.3 points behind pooling all images in the mean "
        "(95 %: -5.3 to -2.3)." in said
    )
    assert (
        "Served worst: west (0.650) by the super model (fedsm), north (0.600) by training alone."
        in said
    )
    assert "north gains 10.0 points (95 %: +10.0 to +10.0)" in said
    assert "south: no difference found, +2.0 points (95 %: -4.0 to +5.0)" in said
    assert "west loses 5.0 points (95 %: -5.0 to -5.0)" in said
    assert "19 test images" in words(text)


def test_the_first_picture(text):
    """From 0.58 (FedAvg at north) to 0.85 (south's first patient alone), 2 % of that more."""
    assert "<span>0.57</span><span>Dice</span><span>0.86</span>" in text
    marks = re.findall(r'class="mark" style="left:([\d.]+)%[^>]*title="([^"]*)"', text)
    places = {title: float(place) for place, title in marks}
    assert len(marks) == 12
    low, width = 0.58 - 0.0054, 0.27 + 0.0108
    for title, value in {
        "training alone: 0.600, 95 %: 0.600 to 0.600": 0.6,
        "one model for all (fedavg): 0.580, 95 %: 0.580 to 0.580": 0.58,
        "the super model (fedsm): 0.820, 95 %: 0.760 to 0.850": 0.82,
        "pooled images, which hospitals cannot do: 0.710, 95 %: 0.710 to 0.710": 0.71,
    }.items():
        assert places[title] == pytest.approx(100 * (value - low) / width, abs=0.006)
    line_and_mark = (
        r'class="end" style="left:([\d.]+)%;width:([\d.]+)%[^>]*></i>\s*'
        r'<i class="mark"[^>]*title="the super model \(fedsm\): 0.820'
    )
    [line] = re.findall(line_and_mark, text)
    assert [float(end) for end in line] == pytest.approx(
        [100 * (0.76 - low) / width, 100 * 0.09 / width], abs=0.006
    )


def test_scores_and_means(text):
    found = tables(text)
    assert found["Dice of test images"] == [
        ["method", "north", "south", "west", "client average", "all images"],
        ["centralized", "0.720", "0.840", "0.710", "0.757", "0.735"],  # 13.96 / 19
        ["local", "0.600", "0.800", "0.700", "0.700", "0.674"],  # 12.80 / 19
        ["fedavg global", "0.580", "0.770", "0.660", "0.670", "0.644"],  # 12.23 / 19
        ["fedsm super", "0.700", "0.820", "0.650", "0.723", "0.698"],  # 13.26 / 19
    ]
    means = found["Dice: means with 95 % intervals"]
    assert means[0] == ["method", "client average", "all images", "worst site", "spread"]
    by_name = {row[0]: row[1:] for row in means}
    # all images of a hospital are alike, so that no draw of them changes its mean
    assert by_name["local"][0] == "0.700 (.700–.700)"
    assert by_name["fedsm super"][0] == "0.723 (.703–.733)"  # south between 0.76 and 0.85
    assert [row[2:] for row in by_name.values()][1:] == [
        ["0.710 west", "0.130"],
        ["0.600 north", "0.200"],
        ["0.580 north", "0.190"],
        ["0.650 west", "0.170"],
    ]


def test_differences(text):
    found = tables(text)["Dice minus that of local: client average"]
    assert [row[:3] for row in found[1:]] == [
        ["centralized", "+0.057", "+0.057 to +0.057"],  # (0.12 + 0.04 + 0.01) / 3
        ["fedavg global", "-0.030", "-0.030 to -0.030"],
        ["fedsm super", "+0.023", "+0.003 to +0.033"],
    ]
    assert [row[-1] for row in found[1:]] == ["better", "worse", "no difference found"]
    gains = {  # what each patient adds; of 18 patients there are 2 to the 18 ways to turn signs
        "centralized": [0.12 / 8] * 8 + [0.08 / 3, 0.04 / 3] + [0.01 / 8] * 8,
        "fedavg global": [-0.02 / 8] * 8 + [-0.06 / 3, -0.03 / 3] + [-0.04 / 8] * 8,
        "fedsm super": [0.1 / 8] * 8 + [0.1 / 3, -0.04 / 3] + [-0.05 / 8] * 8,
    }
    expected = holm([exactly(own) for own in gains.values()])
    for row, p in zip(found[1:], expected, strict=True):
        assert float(row[3]) == pytest.approx(p, abs=0.015)


def exactly(parts: list[float]) -> float:
    """In how many of all ways to turn signs the sum is as far from 0."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(parts))), dtype=np.int8)
    return float((abs(signs @ np.array(parts)) >= abs(sum(parts)) - 1e-12).mean())


def test_intervals_over_seeds(text):
    """0.69 and 0.71: 12.706 (Student's t of one degree) x 0.01414 / the root of 2."""
    found = tables(text)["Dice of test images, intervals over seeds"]
    assert found[-1][:2] == ["fedsm super", "0.700 ±0.127"]
    assert found[2][:2] == ["local", "0.600 ±0.000"]


def test_the_selector(text):
    """Of 19 images 17 are told rightly, 18 answered by a specialist, 1 is like no site's."""
    assert (
        "fedsm: the selector names the right site for 89.5 % of the test images; a specialist "
        "answers 94.7 %, 5.3 % are like no site's (mean of 2 seeds)" in text.replace("&#39;", "'")
    )
    assert "misses how often it is right by 2.4 points, before its calibration by 10.0" in text
    found = tables(text)
    assert found["fedsm: whom it asks"] == [
        ["images of", "are answered by", "selector is right", "like no site"],
        ["north", "north 100%", "100%", "0%"],
        ["south", "south 67%, global 33%", "67%", "33%"],
        ["west", "west 88%, north 12%", "88%", "0%"],
    ]
    assert found["whose images are taken for whose"][1:] == [
        ["north", "100%", "0%", "0%"],
        ["south", "33%", "67%", "0%"],
        ["west", "12%", "0%", "88%"],
    ]
    # 32 answers at 0.95, 30 right, and 6 at 0.75, 4 right: 32/38 x 0.0125 + 6/38 x 0.0833
    assert "Calibration error 0.024" in text
    assert "38 answers" in text


def test_flatness(text):
    assert tables(text)["How sharp the minima are"][1:] == [
        ["fedavg global", "5", "3", "2 to 8", "0.002"],
        ["fedsm personal", "2", "1", "0.5 to 1.5", "0.001"],
    ]


def test_costs(text, make_plan, tmp_path):
    plan = open_runs([tmp_path / "run"]).plan
    network = build_network(plan.context(plan.jobs[0], plan.sites).network)
    values = sum(tensor.numel() for tensor in network.state_dict().values())
    mega = f"{4 * values / 1e6:.2f} MB"
    rows = {row[0]: row[2:4] for row in tables(text)["One round"]}
    assert rows["fedavg"] == [mega, mega]
    assert rows["fedsm"][0] == f"{2 * 4 * values / 1e6:.2f} MB"  # a global model and a specialist
    assert rows["local"] == ["nothing", "nothing"]
    assert tables(text)["Seconds on the clock"] == [
        ["method", "seed 0", "seed 1"],
        ["centralized", "40", "44"],
        ["local", "12", "10"],
        ["fedavg", "21", "22"],
        ["fedsm", "1,234", "99"],
    ]


def test_settings(text):
    assert tables(text)["Sites"][-1][0] == "all"
    assert [row[:2] for row in tables(text)["Methods"][1:]] == [
        [method, "0, 1"] for method in ("centralized", "local", "fedavg", "fedsm")
    ]
    assert "In what the runs differ" not in text
