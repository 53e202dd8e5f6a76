"""scores.parquet: what every test image scores, of every method, seed and role.

A row an image and structure (a class has none), without a file name: images and patients of a site
are numbers. Tables, intervals, tests and other rules of whom to ask are computed from it, and no
image is opened again. A site whose policy lets means out alone has no rows here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.errors import RunError
from konsil.evaluation.routing import PROBABILITY, SCORE_OF, SHARE
from konsil.files import replacing_by_name
from konsil.supermodel import GLOBAL
from konsil.tasks import Task

if TYPE_CHECKING:
    from pyarrow import Table

FILE = "scores.parquet"
KEYS = ("method", "seed", "role", "site", "patient", "image", "structure")
LIKE, ASKED = "like_", "asked"  # the selector's probabilities; who answered
# of models that sites have trained further (personalised.parquet): whose, how far, in which fold
OF_TUNED = MODEL, EPOCHS, LEFT_OUT = "model", "epochs", "left_out"
Patients = Mapping[str, Sequence[int]]  # site -> the patient of each of its test images


@dataclass(frozen=True)
class Scored:
    """What a method's model in one role scored with one seed, by site and column."""

    method: str
    seed: int
    role: str
    sites: Sequence[str]  # the roster, in the order of the selector's outputs
    columns: Mapping[str, Mapping[str, Sequence[float]]]  # of sites that told single images'

    def rows(self, task: Task, patients: Patients) -> Iterator[dict[str, Any]]:
        """The rows of the file, in the order of sites and of their images."""
        for site, columns in self.columns.items():
            structures, own = _by_structure(columns, task)
            routed = _routed(columns, self.sites)
            for image in range(len(next(iter(columns.values()), ()))):
                patient = patients[site][image] if site in patients else None
                keys = self.method, self.seed, self.role, site, patient, image
                for structure in structures:
                    values = {name: found[image] for name, found in own[structure].items()}
                    row = dict(zip(KEYS, (*keys, structure), strict=True)) | values
                    if structure is None:
                        row |= {name: found[image] for name, found in routed.items()}
                    yield row


def _by_structure(
    columns: Mapping[str, Sequence[float]], task: Task
) -> tuple[list[str | None], dict[str | None, dict[str, Sequence[float]]]]:
    """None (all of an image) and each structure: metric -> values; material loses its dash."""
    several = task.targets == "masks" and len(task.labels) > 1
    own: dict[str | None, dict[str, Sequence[float]]] = {None: {}}
    own |= {label: {} for label in task.labels} if several else {}
    for name, values in columns.items():
        if name.startswith((PROBABILITY, SHARE, SCORE_OF)):
            continue
        named = [label for label in own if label is not None and name.endswith(f"_{label}")]
        label = max(named, key=len, default=None)
        metric = name.removesuffix(f"_{label}") if label else name
        own[label][metric.removeprefix("_")] = values
    return list(own), own


def _routed(columns: Mapping[str, Sequence[float]], sites: Sequence[str]) -> dict[str, Any]:
    """The selector's probabilities by name, who answered, and what each model would score."""
    found: dict[str, Any] = {n: v for n, v in columns.items() if n.startswith(SCORE_OF)}
    probabilities = [values for name, values in columns.items() if name.startswith(PROBABILITY)]
    if probabilities:
        names = (GLOBAL, *sites) if len(probabilities) > len(sites) else sites
        found |= {f"{LIKE}{name}": v for name, v in zip(names, probabilities, strict=True)}
    if f"{SHARE}0" in columns:
        found[ASKED] = asked_of(columns, sites)
    return found


def asked_of(columns: Mapping[str, Sequence[float]], sites: Sequence[str]) -> list[str]:
    """Who answered each image, by the models' shares: one, or several with a plus."""
    models = (GLOBAL, *sites)
    shares = zip(*(columns[f"{SHARE}{place}"] for place in range(len(models))), strict=True)
    return [
        " + ".join(name for name, share in zip(models, of_image, strict=True) if share > 0)
        for of_image in shares
    ]


def patients_in(splits: Path) -> dict[str, list[int]]:
    """The patients of every site's test images, numbered as they come; none without the file.

    `splits.csv` of a run's folder has its images in the order in which they are evaluated.
    """
    if not splits.exists():  # between hospitals: only they know
        return {}
    numbers: dict[str, dict[str, int]] = {}
    found: dict[str, list[int]] = {}
    with open(splits, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["split"] == "test":
                known = numbers.setdefault(row["site"], {})
                number = known.setdefault(row["patient"], len(known))
                found.setdefault(row["site"], []).append(number)
    return found


# --- the file -----------------------------------------------------------------------------------


def write_scores(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """The whole file, or none: what no row has is no column."""
    import pyarrow as pa

    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    table = pa.table({n: pa.array([row.get(n) for row in listed], _type(pa, n)) for n in names})
    _write(path, table)


def join_scores(path: Path, parts: Sequence[Path]) -> None:
    """One file of several, which may have other columns."""
    import pyarrow as pa

    tables = [read_scores(part) for part in parts]
    _write(path, pa.concat_tables(tables, promote_options="default"))


def read_scores(path: Path) -> Table:
    """The rows of a run, or of one of its jobs, as a table of pyarrow."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: not the scores of a run ({error})") from None


def rows_of_images(path: Path, role: str) -> list[dict[str, Any]]:
    """The rows of one role, all structures together: one an image, method and seed."""
    import pyarrow.compute as pc

    table = read_scores(path)
    wanted = pc.and_(pc.equal(table["role"], role), pc.is_null(table["structure"]))
    return list(table.filter(wanted).to_pylist())


def _write(path: Path, table: Table) -> None:
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_by_name(path) as part:
        parquet.write_table(table, part, compression="zstd")


def _type(pa: Any, name: str) -> Any:
    """Words, whole numbers, and numbers."""
    if name in ("seed", "patient", "image", EPOCHS):
        return pa.int32()
    words = name in (*KEYS, ASKED, MODEL, LEFT_OUT)
    return pa.string() if words else pa.float64()
