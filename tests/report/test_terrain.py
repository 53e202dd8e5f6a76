"""Numbers that are kept beside pictures, and the names of their files."""

from typing import NamedTuple

import pytest

from konsil.errors import RunError
from konsil.report.terrain import Kept, file_name


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
