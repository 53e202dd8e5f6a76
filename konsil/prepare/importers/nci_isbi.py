"""NCI-ISBI 2013: prostate zones at 3 T (surface coil) and 1.5 T (endorectal coil), two sites.

The layout is certain: DICOM series as TCIA's tools download them, labels in three archives of
NRRD files (1 peripheral zone, 2 central gland; the prostate is both). Some labels have a suffix
(_truth, _correctedLabels). ProstateDx-01-0055's label has 23 slices, its image 34; TCIA says that
it is rightly placed, and so it is used by its position. The published recipe leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from konsil.data.findings import Findings
from konsil.prepare.importers.base import Case, Importer, LeftOut, Options, Source
from konsil.prepare.importers.volumes import (
    PROSTATE_HEAD,
    TABLES,
    Scan,
    VolumeCase,
    counted,
    dicom_folders,
    read_scan,
    why,
)

ZONES = (1, 2)  # peripheral zone, central gland
PARTS = {"training": "train", "leaderboard": "val", "test": "test"}
LAYOUT = """
manifest-*/{collection}/{case}/<study>/<series>/*.dcm ...
Training/{case}.nrrd, {case}_correctedLabels.nrrd ...
Leaderboard/{prefix}-*.nrrd ...
Test/{prefix}-*_truth.nrrd ...   (folders around them may have other names)
"""


def find(site: str, prefix: str, source: Source, options: Options) -> Sequence[Case]:
    """Series by the folder of their case, labels by their names."""
    found = Findings()
    images = dicom_folders(source, rf"{prefix}-\d\d-\d{{4}}")
    masks = _labels(source, prefix, found)
    if not images or not masks:
        raise source.not_understood(f"no series of a case {prefix}-*, or no {prefix}-*.nrrd")
    for key in sorted(masks.keys() - images.keys()):
        cure = "download the images that the challenge lists for it, or take the label away"
        found.add("label without an image", masks[key], cure)
    for key in sorted(masks.keys() & images.keys()):
        if len(images[key]) > 1:
            cure = (
                "download the challenge's own three image lists (one T2 series a case), or take "
                "the folders of the other series away"
            )
            found.add("case with several series", ", ".join(images[key]), cure)
        if options.splits == "given" and not _part(masks[key]):
            cure = "put it below Training, Leaderboard or Test, or import with splits: drawn"
            found.add("label of an unknown part", masks[key], cure)
    found.raise_if_any(source.root)
    return [_case(site, prefix, source, images[key][0], masks.get(key)) for key in sorted(images)]


def _case(site: str, prefix: str, source: Source, image: str, mask: str | None) -> Case:
    name = re.findall(rf"{prefix}-\d\d-\d{{4}}", image, re.IGNORECASE)[-1]
    read = _unlabelled if mask is None else partial(_read, source, image, mask)
    return VolumeCase(site=site, name=name, part=_part(mask or ""), image=image, read=read)


def _read(source: Source, image: str, mask: str) -> Scan:
    return read_scan(source.root, image, mask, None, ZONES)


def _unlabelled() -> Scan:
    raise LeftOut("no label: the collection holds more cases than the challenge")


def _labels(source: Source, prefix: str, found: Findings) -> dict[str, str]:
    """Labels by case; a corrected one replaces the first."""
    plain = source.named(rf"({prefix}-\d\d-\d{{4}})(?:_truth)?\.nrrd", found)
    corrected = source.named(rf"({prefix}-\d\d-\d{{4}})_correctedLabels\.nrrd", found)
    return {**plain, **corrected}


def _part(mask: str) -> str:
    """The challenge's part, from the innermost folder that names one."""
    words = re.findall("|".join(PARTS), mask.rpartition("/")[0].lower())
    return PARTS[words[-1]] if words else ""


def _importer(
    site: str,
    prefix: str,
    collection: str,
    title: str,
    paper: tuple[int, int],
    recipe: tuple[int, int],
    *more: str,
) -> Importer:
    parts = {"collection": collection, "prefix": prefix, "case": f"{prefix}-01-0006"}
    return Importer(
        name=site.replace("_", "-"),
        title=f"NCI-ISBI 2013 challenge, {title}",
        sites=(site,),
        layout=LAYOUT.format(**parts),
        certainty="certain; at any depth, and beside the other half of the challenge",
        licence="CC BY 3.0, as far as we know; read TCIA's page",
        home="https://www.cancerimagingarchive.net/analysis-result/isbi-mr-prostate-2013",
        table=TABLES,
        paper={site: counted(*paper)},
        head=PROSTATE_HEAD,
        find=partial(find, site, prefix),
        differs={site: why(paper, recipe, "the paper has 35 of the challenge's 40 cases", *more)},
        options=("splits", "seed"),
    )


IMPORTERS = (
    _importer(
        "nci_isbi_3t", "Prostate3T", "Prostate-3T", "3 T, surface coil", (35, 881), (40, 555)
    ),
    _importer(
        "nci_isbi_dx",
        "ProstateDx",
        "PROSTATE-DIAGNOSIS",
        "1.5 T, endorectal coil",
        (35, 673),
        (39, 483),
        "the recipe leaves ProstateDx-01-0055 out",
    ),
)
