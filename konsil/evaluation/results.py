"""results.csv: one row a number, in long form."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

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
    write_rows(path, Row, rows)


def read_results(path: Path) -> list[Row]:
    """The rows of a results file."""
    return read_rows(path, Row)


# --- of any kind of rows --------------------------------------------------------------------------

R = TypeVar("R", bound=tuple[Any, ...])  # a NamedTuple of words, whole numbers and numbers


def write_rows(path: Path, kind: type[R], rows: Iterable[R]) -> None:
    """A file of comma-separated values with every digit of its numbers, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(get_type_hints(kind))
    writer.writerows([repr(v) if isinstance(v, float) else v for v in row] for row in rows)
    write_text(path, text.getvalue())


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """The rows of `write_rows`."""
    types = get_type_hints(kind)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            head, *lines = csv.reader(file)
        if head != list(types):
            raise ValueError(f"its columns are {','.join(head)}")
        return [kind(*(t(v) for t, v in zip(types.values(), ln, strict=True))) for ln in lines]
    except (OSError, ValueError) as error:
        what = "the results of a run" if kind is Row else "rows that Konsil wrote; remove the file"
        raise RunError(f"{path}: not {what} ({error})") from None
