"""results.csv: one row a number, in long form."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from konsil.errors import RunError
from konsil.files import write_text

CLIENT_AVERAGE = "client_average"  # plain mean of the sites' values
GLOBAL = "global"  # over all images of all sites


class Row(NamedTuple):
    """One number and what it is of."""

    method: str
    seed: int
    role: str  # global, personal, super, local or centralized
    split: str  # val or test
    site: str  # a site's name, client_average or global
    metric: str
    value: float
    n: int  # images


class Series(NamedTuple):
    """What is compared, a line of a table or figure: a method's answers in one role."""

    method: str
    role: str

    @property
    def name(self) -> str:
        """Both words, or one if they are the same."""
        return self.method if self.method == self.role else f"{self.method} {self.role}"


def write_results(path: Path, rows: Iterable[Row]) -> None:
    """The whole file, atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows((*row[:6], repr(row.value), row.n) for row in rows)
    write_text(path, text.getvalue())


def read_results(path: Path) -> list[Row]:
    """The rows of a results file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [_row(line) for line in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: not the results of a run ({error})") from None


def _row(line: dict[str, str]) -> Row:
    typed = {"seed": int(line["seed"]), "value": float(line["value"]), "n": int(line["n"])}
    return Row(**(line | typed))  # type: ignore[arg-type]
