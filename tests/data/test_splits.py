from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konsil.data.sources import SPLITS, Item
from konsil.data.splits import draw_splits, split_patients
from konsil.errors import DataError

HALVES = (0.5, 0.25, 0.25)


def singles(count, site="a", label=""):
    return [Item(site, f"{label}{i}.png", label, f"{label}{i}") for i in range(count)]


def draw(items, fractions=HALVES, seed=0, by_class=False):
    return draw_splits(items, fractions, seed, by_class)


def counted(items):
    return [Counter(item.split for item in items)[split] for split in SPLITS]


def test_fractions_of_images():
    assert counted(draw(singles(100))) == [50, 25, 25]
    assert counted(draw(singles(10), (0.6, 0.2, 0.2))) == [6, 2, 2]
    assert counted(draw(singles(3))) == [1, 1, 1]
    assert counted(draw(singles(3), (0.98, 0.01, 0.01))) == [1, 1, 1]


def test_pinned_draw():
    """The draw is part of what makes runs comparable: it must never change silently."""
    drawn = {item.patient: item.split for item in draw(singles(6))}
    assert drawn == {
        "0": "train",
        "1": "val",
        "2": "val",
        "3": "test",
        "4": "train",
        "5": "train",
    }


def test_order_of_files_and_other_sites_do_not_matter():
    a, b = singles(20, "a"), singles(30, "b")
    alone = {item.image: item.split for item in draw(a)}
    together = {item.image: item.split for item in draw((b + a)[::-1]) if item.site == "a"}
    assert together == alone


def test_seed_and_site_name_matter():
    drawn = [[i.split for i in draw(singles(30, site), seed=seed)] for site, seed in
             (("a", 0), ("a", 1), ("b", 0))]  # fmt: skip
    assert drawn[0] != drawn[1]
    assert drawn[0] != drawn[2]


def test_each_class_is_divided_alike():
    items = singles(40, label="normal") + singles(8, label="tumour") + singles(3, label="rare")
    drawn = draw(items, by_class=True)
    for label, expected in (("normal", [20, 10, 10]), ("tumour", [4, 2, 2]), ("rare", [1, 1, 1])):
        assert counted([item for item in drawn if item.label == label]) == expected


def test_patients_stay_whole_and_near_the_fractions():
    sizes = [20, 21, 18, 25, 22, 15, 24, 23, 19]  # nine patients, 187 slices
    items = [Item("a", f"{p}_{s}.png", "", str(p)) for p, n in enumerate(sizes) for s in range(n)]
    drawn = draw(items)
    assert len({(item.patient, item.split) for item in drawn}) == len(sizes)
    train, val, test = counted(drawn)
    assert abs(train - 93.5) < 8
    assert abs(val - 46.75) < 8
    assert abs(test - 46.75) < 8


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=3, max_size=12),
    seed=st.integers(0, 1000),
    fractions=st.sampled_from([HALVES, (0.8, 0.1, 0.1), (0.2, 0.2, 0.6)]),
)
def test_no_split_is_ever_empty(sizes, seed, fractions):
    patients = {str(p): Counter({"": n}) for p, n in enumerate(sizes)}
    splits = split_patients("a", patients, dict(zip(SPLITS, fractions, strict=True)), seed)
    assert splits.keys() == patients.keys()
    assert set(splits.values()) == set(SPLITS)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_patients(count):
    with pytest.raises(DataError, match=r"site a: \d patient.* at least three patients"):
        draw(singles(count))


def test_given_splits_stay():
    items = [Item("a", f"{i}", "", f"{i}", "val") for i in range(5)]
    assert draw(items) == items
