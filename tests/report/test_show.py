import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from konsil.errors import RunError
from konsil.evaluation.results import Row, Series
from konsil.report.series import Estimate, metric_name
from konsil.report.show import result_table, selector_lines
from konsil.report.tables import plain

SITES = ["north", "south"]


def line(method: str, role: str, seed: int, *values: float) -> list[Row]:
    """Values of north, south, client average and global."""
    places = [*SITES, "client_average", "global"]
    return [
        Row(method, seed, role, "test", site, "dice", value, 20)
        for site, value in zip(places, values, strict=True)
    ]


ONE_SEED = [
    *line("centralized", "centralized", 0, 0.99, 0.99, 0.99, 0.99),
    *line("local", "local", 0, 0.81, 0.60, 0.705, 0.74),
    *line("fedavg", "global", 0, 0.70, 0.70, 0.700, 0.70),
    *line("fedsm", "global", 0, 0.70, 0.70, 0.700, 0.70),
    *line("fedsm", "super", 0, 0.80, 0.7501, 0.775, 0.78),
]


def parsed(table: Table) -> dict[str, list[str]]:
    """The cells of every line by its name, bold ones in stars."""
    columns = [[str(column.header), *column.cells] for column in table.columns]
    return {
        str(name): [shown(cell) for cell in cells] for name, *cells in zip(*columns, strict=True)
    }


def shown(cell: str | Text) -> str:
    if isinstance(cell, str):
        return cell
    text = cell.plain.replace("\n±", " ± ")
    return f"**{text}**" if cell.style == "bold" else text


def printed(rows: list[Row], sites: list[str], split: str = "test", width: int = 120) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(result_table(rows, sites, "dice", split))
    return console.export_text()


def test_interval_of_three_seeds_by_hand():
    # mean 2, s = 1, t(0.975, 2) = 4.302653: 4.302653 / sqrt(3) = 2.484138
    estimate = Estimate({0: 1.0, 1: 2.0, 2: 3.0})
    assert estimate.mean == 2.0
    assert estimate.half_width == pytest.approx(2.484138, abs=1e-6)
    assert estimate.full == "2.000 ± 2.484"


def test_interval_of_two_seeds_by_hand():
    # s = 0.1 / sqrt(2), t(0.975, 1) = 12.706205: half-width 12.706205 * 0.05
    assert Estimate({3: 0.5, 4: 0.6}).half_width == pytest.approx(0.635310, abs=1e-6)


def test_one_seed_has_no_interval():
    estimate = Estimate({0: 0.5})
    assert estimate.half_width is None
    assert estimate.full == "0.500"


def test_the_table_holds_every_number_in_its_place():
    table = parsed(result_table(ONE_SEED, SITES, "dice"))
    assert table["method"] == ["north", "south", "client average", "global"]
    plain = {key: [c.strip("*") for c in cells] for key, cells in table.items()}
    assert plain["local"] == ["0.810", "0.600", "0.705", "0.740"]
    assert plain["fedsm super"] == ["0.800", "0.750", "0.775", "0.780"]
    assert len(table) == 1 + 5  # heading, lines


def test_the_best_without_pooling_is_bold_in_each_column():
    table = parsed(result_table(ONE_SEED, SITES, "dice"))
    bold = {
        (name, column)
        for name, cells in table.items()
        for column, cell in enumerate(cells)
        if cell.startswith("**")
    }
    assert bold == {
        ("local", 0),
        ("fedsm super", 1),
        ("fedsm super", 2),
        ("fedsm super", 3),
    }


def test_what_reads_the_same_is_equally_best():
    rows = line("a", "global", 0, 0.70004, 0.5, 0.6, 0.6) + line("b", "global", 0, 0.7, 0.4, 0.5, 1)
    table = parsed(result_table(rows, SITES, "dice"))
    assert table["a global"][0] == table["b global"][0] == "**0.700**"


def test_several_seeds_show_the_interval_of_the_means():
    rows = line("a", "global", 0, 0.5, 0.5, 0.5, 0.5) + line("a", "global", 1, 0.6, 0.6, 0.6, 0.6)
    assert parsed(result_table(rows, SITES, "dice"))["a global"][2] == "0.550 ± 0.635"
    assert "mean of 2 seeds" in result_table(rows, SITES, "dice").caption


def test_many_sites_keep_their_columns_short():
    sites = ["a", "b", "c", "d", "e", "f"]
    rows = [
        Row(method, seed, "global", "test", site, "dice", 0.5 + seed / 10, 9)
        for method in ("centralized", "fedavg")
        for seed in (0, 1)
        for site in (*sites, "client_average", "global")
    ]
    cells = parsed(result_table(rows, sites, "dice"))["fedavg global"]
    assert [c.strip("*") for c in cells] == ["0.550"] * 6 + ["0.550 ± 0.635"] * 2
    text = printed(rows, sites)
    assert "±0.635" in text  # the interval has a line of its own
    assert max(map(len, text.splitlines())) <= 120


def test_a_value_that_does_not_exist_is_a_dash():
    rows = [r for r in ONE_SEED if (r.method, r.site) != ("fedavg", "south")]
    assert parsed(result_table(rows, SITES, "dice"))["fedavg global"][1] == "–"


def test_terminal_table_says_what_the_numbers_are():
    text = printed(ONE_SEED, SITES)
    assert "0.705" in text
    for words in ("Dice", "20 test images", "seed 0", "validation"):
        assert words in text


def test_names_with_brackets_are_no_markup():
    rows = [Row("fed[red]", 0, "global", "test", "[bold]", "dice", 0.5, 1)]
    text = printed(rows, ["[bold]"])
    assert "fed[red]" in text
    assert "[bold]" in text


def test_a_metric_that_was_not_measured_is_refused():
    with pytest.raises(RunError, match="no auc on test; there is dice on test"):
        result_table(ONE_SEED, SITES, "auc")


def test_selector_lines_are_means_over_seeds():
    rows = [
        Row("fedsm", seed, "super", "test", "global", metric, value, 100)
        for seed, right, asked in ((0, 0.97, 0.99), (1, 0.99, 1.0))
        for metric, value in (("selector_accuracy", right), ("asked_specialist", asked))
    ]
    assert selector_lines(rows[:2]) == [
        "fedsm: the selector names the right site for 97.0 % of the test images; "
        "a specialist answers 99.0 %"
    ]
    assert selector_lines(rows) == [
        "fedsm: the selector names the right site for 98.0 % of the test images; "
        "a specialist answers 99.5 % (mean of 2 seeds)"
    ]
    assert selector_lines(ONE_SEED) == []


def test_names():
    assert Series("local", "local").name == "local"
    assert Series("fedsm", "super").name == "fedsm super"
    assert [metric_name(m) for m in ("dice", "dice_cup", "auc", "accuracy")] == [
        "Dice",
        "Dice cup",
        "AUC",
        "accuracy",
    ]
    assert metric_name("surface_dice_optic_cup") == "surface Dice optic cup"
    assert metric_name("hd95") == "95 % Hausdorff distance"
    assert metric_name("balanced_accuracy") == "balanced accuracy"


def test_where_less_is_better_the_smallest_is_bold():
    rows = [
        Row(method, 0, "global", "test", site, "hd95", value, 4)
        for method, value in (("fedavg", 2.0), ("fedprox", 3.0))
        for site in (*SITES, "client_average", "global")
    ]
    bold = {less: plain(result_table(rows, SITES, "hd95", less=less)).bold for less in (0, 1)}
    assert {row for row, _ in bold[0]} == {1}
    assert {row for row, _ in bold[1]} == {0}
