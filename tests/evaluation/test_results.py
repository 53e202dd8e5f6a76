from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konsil.errors import RunError
from konsil.evaluation.results import Row, read_results, write_results

ROW = Row("fedsm", 0, "super", "test", "north", "dice", 0.1, 12)


def test_the_file_is_this(tmp_path: Path):
    write_results(tmp_path / "results.csv", [ROW, ROW._replace(value=1 / 3, site="client_average")])
    assert (tmp_path / "results.csv").read_text() == (
        "method,seed,role,split,site,metric,value,n\n"
        "fedsm,0,super,test,north,dice,0.1,12\n"
        "fedsm,0,super,test,client_average,dice,0.3333333333333333,12\n"
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(allow_nan=False), max_size=5), st.text("aé,\" '", min_size=1))
def test_numbers_and_names_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], site: str
):
    path = tmp_path_factory.mktemp("results") / "results.csv"
    rows = [ROW._replace(value=value, site=site) for value in values]
    write_results(path, rows)
    assert read_results(path) == rows


@pytest.mark.parametrize(
    "text",
    [
        "method,seed\nfedsm,0\n",
        "method,seed,role,split,site,metric,value,n\nfedsm,zero,super,test,north,dice,0.1,12\n",
        "method,seed,role,split,site,metric,value,n\nfedsm,0,super,te\n",
        "method,seed,role,split,site,metric,value,n,more\nfedsm,0,a,b,c,d,0.1,12,13\n",
    ],
)
def test_what_is_no_results_file_is_refused_by_name(tmp_path: Path, text: str):
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(RunError, match=r"results\.csv: not the results of a run"):
        read_results(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(RunError, match=r"none\.csv"):
        read_results(tmp_path / "none.csv")
