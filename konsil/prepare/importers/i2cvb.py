"""I2CVB, multi-parametric MRI of the prostate from two scanners, DICOM throughout.

The layout is as the authors' own code and the paper's published recipe read it: the T2 series in
T2W, the whole gland in GT/prostate as a series of mask slices. GE 1.5 T has 21 cases, Siemens 3 T
19; the paper's 19 cases are as many as the Siemens ones, its recipe takes both scanners.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from konsil.data.findings import BadFile, Findings
from konsil.prepare.importers.base import Case, Importer, LeftOut, Options, Source, refuse_unpaired
from konsil.prepare.importers.volumes import (
    PROSTATE_HEAD,
    TABLES,
    Scan,
    VolumeCase,
    counted,
    read_scan,
    why,
)

SITE = "i2cvb"
SCANNERS = ("ge", "siemens")
PAPER, RECIPE = (19, 291), (39, 762)
KNOWN = {"patient_428260": "its ground truth lacks a slice (the published recipe says so too)"}
LAYOUT = """
GE/Patient <number>/T2W/*.dcm           (ge-1-5t.*, siemens-3t.*: join the parts, then unpack)
GE/Patient <number>/GT/prostate/*.dcm
Siemens/Patient <number>/T2W/*.dcm
Siemens/Patient <number>/GT/prostate/*.dcm   (other sequences and regions are not looked at)
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """A case is a folder with T2W and GT/prostate in it."""
    found = Findings()
    images, masks = _folders(source, "T2W"), _folders(source, "GT/prostate")
    if not images or not masks:
        raise source.not_understood("no folder T2W, or no folder GT/prostate")
    refuse_unpaired(images, masks, found)
    if options.centres:
        _refuse_unknown_scanner(source, images, found)
    found.raise_if_any(source.root)
    return [_case(source, options, patient, images[patient], masks[patient]) for patient in images]


def _case(source: Source, options: Options, patient: str, image: str, mask: str) -> Case:
    name = re.sub(r"\W+", "_", PurePosixPath(patient).name)
    return VolumeCase(
        site=f"{SITE}_{_scanner(source, patient)}" if options.centres else SITE,
        name=name,
        image=image,
        read=partial(_read, source.root, image, mask, KNOWN.get(name.lower())),
    )


def _read(root: Path, image: str, mask: str, known: str | None) -> Scan:
    try:
        return read_scan(root, image, mask)
    except BadFile:
        if known is None:
            raise
        raise LeftOut(known) from None


def _folders(source: Source, ending: str) -> dict[str, str]:
    """Folders of this name that hold files, by the patient's folder."""
    folders = sorted({PurePosixPath(name).parent for name in source.files})
    depth = ending.count("/") + 1
    return {
        str(folder.parents[depth - 1]): str(folder)
        for folder in folders
        if "/".join(folder.parts[-depth:]).lower() == ending.lower() and len(folder.parts) > depth
    }


def _scanner(source: Source, patient: str) -> str:
    """ge or siemens, from the folders above; empty if none of them says so."""
    above = f"{source.root.resolve().name}/{patient}".lower()
    match = re.search(rf"(?:^|/)({'|'.join(SCANNERS)})(?![a-z])", above)
    return match.group(1) if match else ""


def _refuse_unknown_scanner(source: Source, patients: Iterable[str], found: Findings) -> None:
    for patient in patients:
        if not _scanner(source, patient):
            cure = "put it below GE or Siemens, or import without centres"
            found.add("case of an unknown scanner", patient, cure)


IMPORTERS = (
    Importer(
        name="i2cvb",
        title="I2CVB prostate, 1.5 T (GE) and 3 T (Siemens)",
        sites=(SITE, *(f"{SITE}_{scanner}" for scanner in SCANNERS)),
        layout=LAYOUT,
        certainty="sure of the folders, from the authors' code; the files' names do not matter",
        licence="not known to us; read its Zenodo record",
        home="https://i2cvb.github.io (Zenodo record 162231)",
        table=TABLES,
        paper={SITE: counted(*PAPER)},
        head=PROSTATE_HEAD,
        find=find,
        differs={SITE: why(PAPER, RECIPE, "19 is the number of the Siemens cases (see centres)")},
        options=("centres",),
    ),
)
