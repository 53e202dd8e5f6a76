"""Camelyon17 as the patches of WILDS: tumour or not, 96 x 96 pixels, five hospitals.

A site is a hospital, the column `center`. The column `node` is a slide of a patient and no place.
The column `split` is left alone: it holds out whole hospitals, and within the others it parts
patches of the same patient.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from konsil.data.listing import read_table
from konsil.errors import DataError
from konsil.prepare.importers.base import Options, Source, importer
from konsil.prepare.importers.pictures import ClassCase
from konsil.randomness import derive

SITES = {str(centre): f"hospital_{centre}" for centre in range(5)}
CLASSES = {"0": "normal", "1": "tumour"}
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
DIFFERS = (
    "the paper took 920 images from each of five sources, and its code took the number of a "
    "patient's slide (node) for the source; `images: 4600` makes as many by hospital"
)


@importer(
    "camelyon17",
    title="Camelyon17-WILDS, patches of lymph node sections",
    sites=tuple(SITES.values()),
    layout="""
metadata.csv      with the columns patient, node, x_coord, y_coord, tumor, center
patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png ...
""",
    certainty="certain: it is what the data set's own loader reads",
    licence="CC0 (public domain), as WILDS states",
    home="https://wilds.stanford.edu (data set camelyon17, version 1.0)",
    table="FedSoup, Section 3: 4,600 images of five sources",
    paper={site: {"images": 920} for site in SITES.values()},
    differs=dict.fromkeys(SITES.values(), DIFFERS),
    head={"task": "classification", "classes": list(CLASSES.values()), "channels": 3},
    blocks={site: {"patient": r"patient_(\d+)_node"} for site in SITES.values()},
    options=("images", "seed", "link"),
)
def find(source: Source, options: Options) -> list[ClassCase]:
    """The rows of metadata.csv, or a random part of them."""
    table = _table(source)
    columns, rows = read_table(table)
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(
            f"{table}: the column {', '.join(missing)} is missing; the metadata.csv of WILDS has "
            f"{', '.join(COLUMNS)}"
        )
    cases = [_case(table.parent, source, row.cells) for row in rows]
    home: dict[str, str] = {}
    for case in cases:
        if home.setdefault(case.patient, case.site) != case.site:
            cure = "the column center is wrong; get metadata.csv again"
            source.refuse("patient of two hospitals", f"{case.patient}: {case.name}", cure)
    source.raise_if_any()
    return cases if options.images is None else _subset(cases, options.images, options.seed)


def _table(source: Source) -> Path:
    for depth in ("", "*/", "*/*/"):  # no deeper: there are half a million patches
        tables = sorted(source.root.glob(f"{depth}metadata.csv"))
        if len(tables) > 1:
            raise source.not_understood(f"{tables[0]} and {tables[1]}: which of the two?")
        if tables:
            return tables[0]
    raise source.not_understood("no metadata.csv was found")


def _case(folder: Path, source: Source, row: Mapping[str, str]) -> ClassCase:
    slide = f"patient_{row['patient']}_node_{row['node']}"
    name = f"patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}"
    site, label = SITES.get(row["center"], ""), CLASSES.get(row["tumor"], "")
    if not site or not label:
        cure = "center is 0 to 4 and tumor 0 or 1 in the metadata.csv of WILDS; get it again"
        source.refuse("row with an unknown value", f"{name}: {row['center']}, {row['tumor']}", cure)
    patch = (folder / "patches" / slide / f"{name}.png").relative_to(source.root).as_posix()
    return ClassCase(source, site, name, {"image": patch}, label, patient=row["patient"])


def _subset(cases: Sequence[ClassCase], count: int, seed: int) -> list[ClassCase]:
    """A random part, alike for every hospital and class, in the order of the table."""
    groups: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        groups.setdefault((case.site, case.label), []).append(case.name)
    smallest = min(map(len, groups.values()))
    each, rest = divmod(count, len(groups))
    chosen: set[str] = set()
    for number, ((site, label), names) in enumerate(sorted(groups.items())):
        wanted = each + (number < rest)
        if not 0 < wanted <= len(names):
            raise DataError(
                f"images = {count}: that would be {wanted} of class {label} at {site}, which has "
                f"{len(names)}; ask for {len(groups)} to {len(groups) * smallest}"
            )
        chosen.update(sorted(names, key=lambda name: derive(seed, "import", name))[:wanted])
    return [case for case in cases if case.name in chosen]
