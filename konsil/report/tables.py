"""A table of the terminal as plain text, for pages and papers: one table, every form."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

MOST_LETTERS = 32  # of a cell that is not broken
BAR = r"\|"  # in a cell of Markdown
LATEX_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX_SIGNS |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"–": "--"}


class Plain(NamedTuple):
    """What a table says; a cell may have several lines, and what is bold is in `bold`."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    bold: frozenset[tuple[int, int]] = frozenset()  # rows and columns of the best

    @property
    def wordy(self) -> set[int]:
        """Columns of words: a cell of them may need several lines."""
        return {k for row in self.rows for k, cell in enumerate(row) if len(cell) > MOST_LETTERS}


def new_table(title: str, first: str) -> Table:
    """An empty table as all are printed; its first column is never broken."""
    table = Table(title=escape(title), title_justify="left", title_style="", header_style="bold")
    table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
    table.caption_justify = "left"
    table.add_column(first, no_wrap=True)
    return table


def plain(table: Table) -> Plain:
    """The words of a table, without its looks."""
    columns = [[_words(cell) for cell in column.cells] for column in table.columns]
    head = [_words(column.header) for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    bold = frozenset(
        (row, place)
        for place, column in enumerate(table.columns)
        for row, cell in enumerate(column.cells)
        if isinstance(cell, Text) and cell.style == "bold"
    )
    return Plain(_words(table.title or ""), head, rows, _words(table.caption or ""), bold)


def _words(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def as_markdown(table: Plain) -> str:
    """A table of Markdown, its title above and its caption below."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"

    right = ["---", *["--:"] * (len(table.head) - 1)]
    lines = [line(table.head), line(right), *map(line, _in_lines(table, str, "**{}**"))]
    return "\n".join([*_before(table.title), *lines, *_after(table.caption), ""])


def as_latex(table: Plain) -> str:
    """A tabular environment of booktabs."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    form = "l" + "r" * (len(table.head) - 1)
    lines = [f"% {table.title}"] if table.title else []
    head = line([_for_latex(cell) for cell in table.head])
    lines += [rf"\begin{{tabular}}{{{form}}}", r"\toprule", head, r"\midrule"]
    lines += [line(row) for row in _in_lines(table, _for_latex, r"\textbf{{{}}}")]
    lines += [r"\bottomrule", r"\end{tabular}", ""]
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


def _in_lines(table: Plain, form: Callable[[str], str], bold: str) -> Iterator[list[str]]:
    """The rows, each cell in a line, what is bold in `bold`."""
    for row, cells in enumerate(table.rows):
        written = [form(_in_a_line(cell)) for cell in cells]
        yield [
            bold.format(cell) if (row, place) in table.bold else cell
            for place, cell in enumerate(written)
        ]


def _in_a_line(cell: str) -> str:
    """An interval below its number stands in brackets behind it."""
    first, *more = cell.splitlines() or [""]
    return f"{first} ({''.join(more)})" if more else first


def _for_latex(cell: str) -> str:
    return "".join(LATEX_SIGNS.get(sign, sign) for sign in cell)


def _before(title: str) -> list[str]:
    return [f"**{title}**", ""] if title else []


def _after(caption: str) -> list[str]:
    return ["", caption] if caption else []
