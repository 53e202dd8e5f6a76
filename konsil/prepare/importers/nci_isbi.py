"""NCI-ISBI 2013: prostate zones at 3 T (surface coil) and 1.5 T (endorectal coil), two sites.

DICOM series as TCIA's tools download them, labels in three archives of NRRD files (the prostate is
both zones). Some labels have a suffix (_truth, _correctedLabels). ProstateDx-01-0055's label has 23
slices, its image 34; TCIA says that it is rightly placed, and so it is used by its position. The
published recipe leaves it out.
"""

import re
from functools import partial

from konsil.prepare.importers.base import Case, LeftOutCase, Options, Source, importer
from konsil.prepare.importers.volumes import VolumeCase, dicom_folders, prostate, read_scan

ZONES = (1, 2)  # peripheral zone, central gland
PARTS = {"training": "train", "leaderboard": "val", "test": "test"}
LAYOUT = """
manifest-*/{collection}/{prefix}-01-0006/<study>/<series>/*.dcm ...
Training/{prefix}-01-0006.nrrd, {prefix}-01-0006_correctedLabels.nrrd ...
Leaderboard/{prefix}-*.nrrd ...
Test/{prefix}-*_truth.nrrd ...   (folders around them may have other names)
"""
ALIKE = {
    "certainty": "certain; at any depth, and beside the other half of the challenge",
    "licence": "CC BY 3.0, as far as we know; read TCIA's page",
    "home": "https://www.cancerimagingarchive.net/analysis-result/isbi-mr-prostate-2013",
    "options": ("splits", "seed"),
}
FEWER = "the paper has 35 of the challenge's 40 cases"
LEFT_OUT = "the recipe leaves ProstateDx-01-0055 out"
UNLABELLED = "no label: the collection holds more cases than the challenge"


@importer(
    "nci-isbi-3t",
    title="NCI-ISBI 2013 challenge, 3 T, surface coil",
    sites=("nci_isbi_3t",),
    layout=LAYOUT.format(prefix="Prostate3T", collection="Prostate-3T"),
    **ALIKE,
    **prostate("nci_isbi_3t", (35, 881), (40, 555), FEWER),
)
def find_3t(source: Source, options: Options) -> list[Case]:
    """The half of the surface coil."""
    return _find("nci_isbi_3t", "Prostate3T", source, options)


@importer(
    "nci-isbi-dx",
    title="NCI-ISBI 2013 challenge, 1.5 T, endorectal coil",
    sites=("nci_isbi_dx",),
    layout=LAYOUT.format(prefix="ProstateDx", collection="PROSTATE-DIAGNOSIS"),
    **ALIKE,
    **prostate("nci_isbi_dx", (35, 673), (39, 483), FEWER, LEFT_OUT),
)
def find_dx(source: Source, options: Options) -> list[Case]:
    """The half of the endorectal coil."""
    return _find("nci_isbi_dx", "ProstateDx", source, options)


def _find(site: str, prefix: str, source: Source, options: Options) -> list[Case]:
    """Series by the folder of their case, labels by their names."""
    case = rf"{prefix}-\d\d-\d{{4}}"
    images = dicom_folders(source, case)
    masks = {  # a corrected label replaces the first
        **source.named(rf"({case})(?:_truth)?\.nrrd"),
        **source.named(rf"({case})_correctedLabels\.nrrd"),
    }
    if not images or not masks:
        raise source.not_understood(f"no series of a case {prefix}-*, or no {prefix}-*.nrrd")
    parts = {key: _part(mask) for key, mask in masks.items()}
    for key, mask in sorted(masks.items()):
        if key not in images:
            cure = "download the images that the challenge lists for it, or take the label away"
            source.refuse("label without an image", mask, cure)
        elif len(images[key]) > 1:
            cure = (
                "download the challenge's own three image lists (one T2 series a case), or take "
                "the folders of the other series away"
            )
            source.refuse("case with several series", ", ".join(images[key]), cure)
        if options.splits == "given" and not parts[key]:
            cure = "put it below Training, Leaderboard or Test, or import with splits: drawn"
            source.refuse("label of an unknown part", mask, cure)
    read = partial(read_scan, allowed=ZONES)
    cases: list[Case] = []
    for key, (image, *_) in images.items():
        name = re.findall(case, image, re.IGNORECASE)[-1]
        if key in masks:
            files = {"image": image, "mask": masks[key]}
            cases.append(VolumeCase(source, site, name, files, read, part=parts[key]))
        else:
            cases.append(LeftOutCase(source, site, name, {"image": image}, UNLABELLED))
    return cases


def _part(mask: str) -> str:
    """The challenge's part, from the innermost folder that names one."""
    words = re.findall("|".join(PARTS), mask.rpartition("/")[0].lower())
    return PARTS[words[-1]] if words else ""
