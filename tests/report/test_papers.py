"""The papers' numbers: copied without a slip, and shown beside a run of the same task alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from konsil.config import check_experiment
from konsil.evaluation.comparison import Comparison
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, Series
from konsil.evaluation.statistics import Compared, Images
from konsil.federation.plan import Plan
from konsil.ingredients.method import METHODS
from konsil.report.papers import (
    kind_of,
    means_of,
    means_of_rows,
    paper_tables,
    papers_beside,
    papers_of,
)
from konsil.report.tables import plain

TEST_IMAGES = {  # FedSM's Tables 1 and 2
    "disc and cup": [26, 48, 23, 115, 39, 200],
    "prostate": [61, 245, 198, 150, 329, 532],
}
ROUNDING = 2e-4  # of the means of six numbers with four digits
# Where a mean does not follow from its clients: what is printed, what the clients give.
WRONG = {
    ("fedsm-table3", "FedSM-extra", 1): (0.9007, 0.9016),
    ("fedsm-table4", "Client 1 Local", 1): (0.4336, 0.4322),
    ("fedsm-table4", "Client 4 Local", 1): (0.6148, 0.6153),
    ("fedsm-table4", "Client 6 Local", 1): (0.7809, 0.7805),
    ("fedsm-table6", "FT", 0): (0.8875, 0.8872),
    ("fedsm-table9", "Client 2 Local", 1): (0.5589, 0.5603),
    ("fedsm-table10", "Centralized", 1): (0.8507, 0.8504),
}
TABLES = paper_tables()
DISC_AND_CUP = ("disc", "cup")


def plan(
    methods: list[Any],
    labels: tuple[str, ...] = DISC_AND_CUP,
    task: str = "segmentation",
    sites: tuple[str, ...] = ("a", "b"),
    **federation: Any,
) -> Plan:
    keys = {
        "federation": federation or {"folder": "mine"},
        "task": {"name": task},
        "methods": methods,
        "rounds": 1000,
    }
    counts = {site: {"train": 600, "val": 3, "test": 2} for site in sites}
    return Plan(check_experiment(keys, "mine"), sites, labels, 3, counts, "", Path())


def rows(values: dict[tuple[str, str], tuple[float, float]], metric: str = "dice") -> list[Row]:
    """A method's client average and mean of all images, by its name and role."""
    return [
        Row(method, 0, role, "test", site, metric, value, 4)
        for (method, role), both in values.items()
        for site, value in zip((CLIENT_AVERAGE, GLOBAL), both, strict=True)
    ]


def shown(of: Plan, values: dict[tuple[str, str], tuple[float, float]], metric: str = "dice"):
    found = papers_beside([of], metric, means_of_rows(rows(values, metric), metric))
    return [plain(table) for _, table in found]


# --- what is printed ----------------------------------------------------------------------------


def test_every_mean_follows_from_its_clients_or_is_known_not_to():
    for name, table in TABLES.items():
        weights = TEST_IMAGES.get(table.kind)
        for line in table.rows:
            if not line.clients:
                continue
            own = [np.mean(line.clients), np.average(line.clients, weights=weights)]
            for place, (printed, computed) in enumerate(zip(line.means, own, strict=False)):
                known = WRONG.get((name, line.method, place))
                if known is not None:
                    assert (printed, computed) == (known[0], pytest.approx(known[1], abs=1e-4))
                else:
                    assert printed == pytest.approx(computed, abs=ROUNDING), (name, line.method)
    for (name, method, _), (printed, computed) in WRONG.items():
        said = TABLES[name].misprints[method]
        assert f"{printed:.4f} is printed, its clients give {computed:.4f}" in said


def test_disc_and_cup_make_table_3():
    disc, cup = (
        {line.method: line for line in TABLES[f"fedsm-table{number}"].rows} for number in (9, 10)
    )
    whole = {line.method: line for line in TABLES["fedsm-table3"].rows}
    assert set(disc) == set(cup) == set(whole) - {"FedSM-extra"}
    unlike = {}
    for method, line in disc.items():
        both = np.mean([line.clients, cup[method].clients], axis=0)
        away = np.abs(both - whole[method].clients)
        unlike |= {(method, int(k) + 1): both[k] for k in np.flatnonzero(away > 1.1e-4)}
    assert unlike == {  # and the table says so
        ("Centralized", 1): pytest.approx(0.9139, abs=1e-4),
        ("Client 2 Local", 4): pytest.approx(0.7778, abs=1e-4),
    }
    assert {"Centralized", "Client 2 Local"} <= set(TABLES["fedsm-table3"].misprints)


def test_a_hospital_alone_is_the_diagonal_of_the_local_rows():
    for number in (3, 4, 9, 10):
        by_name = {line.method: line for line in TABLES[f"fedsm-table{number}"].rows}
        diagonal = [by_name[f"Client {k + 1} Local"].clients[k] for k in range(6)]
        assert list(by_name["Local, at home"].clients) == diagonal


def test_rows_have_their_columns_and_name_methods_that_there_are():
    for table in TABLES.values():
        for line in table.rows:
            assert len(line.means) == len(table.columns)
            assert all(0 < value < 1 for value in (*line.means, *line.clients))
            assert not line.here or line.here in METHODS.all()


def test_what_the_papers_claim():
    """Numbers of their texts: FedSM above pooled training by .2 and .1 points."""
    means = {line.method: line.means for line in TABLES["fedsm-table3"].rows}
    gains = np.subtract(means["FedSM"], means["Centralized"])
    assert gains == pytest.approx([0.0016, 0.0014])
    best = max(TABLES["fedsoup-table1-pathology-accuracy"].rows, key=lambda line: line.means[0])
    assert best.method == "FedProx"  # at home FedSoup is not the best there


# --- which task a run is about ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "more", "kind"),
    [
        (("disc", "cup"), {}, "disc and cup"),
        (("cup", "optic_disc"), {}, "disc and cup"),
        (("Optic Cup", "Optic Disc"), {}, "disc and cup"),
        (("disc",), {}, None),
        (("disc", "cup", "vessel"), {}, None),
        (("prostate",), {}, "prostate"),
        (("prostate", "lesion"), {}, None),
        (("foreground",), {}, None),
        (("normal", "glaucoma"), {"task": "classification"}, "glaucoma"),
        (("normal", "suspect", "glaucoma"), {"task": "classification"}, None),
        (("early", "glaucoma"), {"task": "classification"}, None),
        (("glaucoma", "normal"), {"task": "mine"}, None),
        (("normal", "tumour"), {"task": "classification"}, None),  # which tumour?
        (
            ("normal", "tumour"),
            {"task": "classification", "sites": ("hospital_0", "hospital_3")},
            "tumour in pathology",
        ),
        (
            ("normal", "tumour"),
            {"task": "classification", "sites": ("hospital_0", "clinic")},
            None,
        ),
        (
            ("normal", "tumour"),
            {"task": "classification", "synthetic": "pathology"},
            "tumour in pathology",
        ),
        (("normal", "ill"), {"task": "classification", "synthetic": "pathology"}, None),
    ],
)
def test_the_kind_of_a_run(labels: tuple[str, ...], more: dict[str, Any], kind: str | None):
    assert kind_of(plan(["fedavg"], labels, **more)) == kind


# --- beside each other --------------------------------------------------------------------------

THREE = {
    ("local", "local"): (0.85, 0.86),
    ("fedavg", "global"): (0.8712, 0.88),
    ("fedsm", "global"): (0.99, 0.99),
    ("fedsm", "personal"): (0.99, 0.99),
    ("fedsm", "super"): (0.83, 0.9),
    ("fedavg-swa", "global"): (0.9, 0.9),  # in no table of the paper
}


def test_a_table_by_hand():
    of = plan(["local", "fedavg", "fedsm", "fedavg-swa"])
    (table,) = shown(of, THREE)
    assert table.title == "Dice beside FedSM (Xu et al., CVPR 2022), Table 3"
    assert list(table.head) == [
        *("paper", "client average", "all images", "place"),
        *("here", "client average", "all images", "place"),
    ]
    assert list(map(list, table.rows)) == [
        ["Local, at home", "0.8767", "0.8939", "2", "local", "0.850", "0.860", "2"],
        ["FedAvg", "0.8710", "0.8923", "3", "fedavg global", "0.871", "0.880", "1"],
        ["FedSM", "0.8914", "0.9028", "1", "fedsm super", "0.830", "0.900", "3"],
    ]
    assert "compare the order of methods, not numbers." in table.caption
    assert "905 training images of 6 sites, 256 x 256, 150 rounds" in table.caption
    assert "Here: 1,200 training images of 2 sites, 64 x 64, 1,000 rounds, 1 seed." in table.caption
    assert "is printed" not in table.caption  # of FedSM-extra, which is not here


def test_a_misprint_of_a_line_that_is_shown():
    (table,) = shown(plan(["local", "centralized"]), THREE | {("centralized",) * 2: (0.9, 0.9)})
    said = "The paper's Centralized, client 1: 0.9161 is printed, Tables 9 and 10 give 0.9139."
    assert said in table.caption


def test_painted_images_are_called_so():
    of = plan(["local", "fedavg"], synthetic="retina")
    (table,) = shown(of, THREE)
    assert "1,200 painted training images" in table.caption


def test_equals_share_a_place_and_the_first_of_several_is_shown():
    of = plan(["local", {"name": "fedavg", "label": "one"}, {"name": "fedavg", "label": "two"}])
    both = (0.8, 0.8)
    values = {("local", "local"): both, ("one", "global"): both, ("two", "global"): (0.9, 0.9)}
    (table,) = shown(of, values)
    assert [(row[4], row[-1]) for row in table.rows] == [("local", "1"), ("one global", "1")]


def test_nothing_is_shown_of_one_method_of_another_metric_or_of_another_task():
    of = plan(["fedavg", "fedavg-swa"])
    assert shown(of, {("fedavg", "global"): (0.8, 0.8)}) == []
    of = plan(["local", "fedavg", "fedsm"])
    assert shown(of, THREE, "hd95") == []
    assert [t.title for t in shown(of, THREE, "dice_cup")] == [
        "Dice cup beside FedSM (Xu et al., CVPR 2022), Table 10"
    ]
    assert shown(plan(["local", "fedavg", "fedsm"], labels=("vessel",)), THREE) == []
    unlike = [plan(["local", "fedavg"]), plan(["fedsm"], labels=("vessel",))]
    assert list(papers_beside(unlike, "dice", means_of_rows(rows(THREE), "dice"))) == []
    undefined = rows(THREE | {("local", "local"): (float("nan"), 0.8)})
    partly = [row for row in undefined if (row.method, row.site) != ("fedavg", GLOBAL)]
    assert list(papers_beside([of], "dice", means_of_rows(partly, "dice"))) == []
    not_done = plan(["local", "fedavg", "scaffold"])
    (table,) = shown(not_done, THREE)
    assert [row[0] for row in table.rows] == ["Local, at home", "FedAvg"]


def test_personalisers_and_lambdas_find_their_tables():
    own = [
        {"name": "fedsm", "label": "x", "personaliser": "ft"},
        {"name": "fedsm", "label": "y", "personaliser": {"name": "apfl", "alpha": 0.3}},
        {"name": "fedsm", "label": "z", "lambda": 0.7},
        {"name": "fedsm", "label": "w", "lambda": 0.3},
    ]
    values = {(one["label"], "super"): (0.8, 0.8) for one in own}
    six, seven = shown(plan(own), values)
    assert [(row[0], row[4]) for row in six.rows] == [
        *(("FT", "x super"), ("APFL", "y super"), ("SoftPull", "z super")),
    ]
    assert [(row[0], row[4]) for row in seven.rows] == [
        *(("lambda 0.3", "w super"), ("lambda 0.7", "z super")),
    ]


def test_fedsoups_global_performance_has_no_counterpart_in_a_run():
    of = plan(["fedavg", "fedsoup"], ("normal", "glaucoma"), "classification")
    values = {
        ("fedavg", "global"): (0.7, 0.7),
        ("fedsoup", "global"): (0.9, 0.9),
        ("fedsoup", "personal"): (0.6, 0.6),
    }
    (table,) = shown(of, values, "auc")
    assert list(table.head) == [
        *("paper", "local performance", "global performance", "place"),
        *("here", "client average", "place"),
    ]
    assert list(map(list, table.rows)) == [
        ["FedAvg", "0.9524", "0.8102", "2", "fedavg global", "0.700", "1"],
        ["FedSoup", "0.9600", "0.8624", "1", "fedsoup personal", "0.600", "2"],
    ]


def test_folds_stand_beside_unseen_clients_alone():
    sites = {
        "a": Images(np.arange(2), [np.array([[0.5, 0.7]]), np.array([[0.8, 0.8]])]),
        "b": Images(np.arange(1), [np.array([[0.9]]), np.array([[0.9]])]),
    }
    candidates = [Series("fedavg", "global"), Series("fedsm", "super")]
    found = Comparison(candidates, {one: [0] for one in candidates}, Compared(sites), 3, 3)
    means = means_of(found)
    assert means[candidates[0]] == pytest.approx({CLIENT_AVERAGE: 0.75, GLOBAL: 0.7})
    of = plan(["fedavg", "fedsm"])
    ((name, rich),) = papers_beside([of], "dice", means, unseen=True)
    table = plain(rich)
    assert name == "fedsm-table12"
    assert table.title.endswith("Table 12")
    assert list(map(list, table.rows)) == [
        ["FedAvg", "0.7773", "2", "fedavg global", "0.750", "2"],
        ["FedSM", "0.7933", "1", "fedsm super", "0.850", "1"],
    ]


def test_the_page_has_every_metric_that_a_paper_has():
    of = [plan(["local", "fedavg", "fedsm"])]
    told = [*rows(THREE), *rows(THREE, "dice_disc"), *rows(THREE, "hd95")]
    names = [name for name, _ in papers_of(told, of, ["dice", "dice_disc", "dice_cup", "hd95"])]
    assert names == ["fedsm-table3", "fedsm-table9"]
    assert list(papers_of([], of, ["dice"])) == []
