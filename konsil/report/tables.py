"""A table of the terminal as plain text, for pages and papers: one table, every form."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

LATEX_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"–": "--"}


class Plain(NamedTuple):
    """What a table says; a cell may have several lines."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str


def plain(table: Table) -> Plain:
    """The words of a table, without its looks."""
    columns = [[_words(cell) for cell in column.cells] for column in table.columns]
    head = [_words(column.header) for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Plain(_words(table.title or ""), head, rows, _words(table.caption or ""))


def _words(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def as_markdown(table: Plain) -> str:
    """A table of Markdown, its title above and its caption below."""

    def line(cells: Sequence[str]) -> str:
        escaped = (_in_a_line(cell).replace("|", r"\|") for cell in cells)
        return f"| {' | '.join(escaped)} |"

    right = ["---", *["--:"] * (len(table.head) - 1)]
    lines = [line(table.head), line(right), *map(line, table.rows)]
    return "\n".join([*_before(table.title), *lines, *_after(table.caption), ""])


def as_latex(table: Plain) -> str:
    """A tabular environment of booktabs."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(_for_latex(_in_a_line(cell)) for cell in cells) + r" \\"

    form = "l" + "r" * (len(table.head) - 1)
    lines = [f"% {table.title}"] if table.title else []
    lines += [rf"\begin{{tabular}}{{{form}}}", r"\toprule", line(table.head), r"\midrule"]
    lines += [*map(line, table.rows), r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def as_csv(table: Plain) -> str:
    """Comma-separated, a cell's lines in one."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_in_a_line(cell) for cell in row] for row in (table.head, *table.rows))
    return text.getvalue()


FORMATS: dict[str, Callable[[Plain], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _in_a_line(cell: str) -> str:
    """An interval below its number stands in brackets behind it."""
    first, *more = cell.splitlines() or [""]
    return f"{first} ({' '.join(more)})" if more else first


def _for_latex(cell: str) -> str:
    return "".join(LATEX_SIGNS.get(sign, sign) for sign in cell)


def _before(title: str) -> list[str]:
    return [f"**{title}**", ""] if title else []


def _after(caption: str) -> list[str]:
    return ["", caption] if caption else []
