"""I2CVB, multi-parametric MRI of the prostate from two scanners, DICOM throughout.

The layout is as the authors' own code and the paper's published recipe read it: the T2 series in
T2W, the whole gland in GT/prostate as a series of mask slices. GE 1.5 T has 21 cases, Siemens 3 T
19; the paper's 19 cases are as many as the Siemens ones, its recipe takes both scanners.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from konsil.data.findings import BadFile
from konsil.prepare.importers.base import Case, LeftOut, Options, importer
from konsil.prepare.importers.source import Source
from konsil.prepare.importers.volumes import Scan, VolumeCase, prostate, read_scan

SITE = "i2cvb"
SCANNERS = ("ge", "siemens")
KNOWN = {"patient_428260": "its ground truth lacks a slice (the published recipe says so too)"}


@importer(
    "i2cvb",
    title="I2CVB prostate, 1.5 T (GE) and 3 T (Siemens)",
    sites=(SITE, *(f"{SITE}_{scanner}" for scanner in SCANNERS)),
    layout="""
GE/Patient <number>/T2W/*.dcm           (ge-1-5t.*, siemens-3t.*: join the parts, then unpack)
GE/Patient <number>/GT/prostate/*.dcm
Siemens/Patient <number>/T2W/*.dcm
Siemens/Patient <number>/GT/prostate/*.dcm   (other sequences and regions are not looked at)
""",
    certainty="sure of the folders, from the authors' code; the files' names do not matter",
    licence="not known to us; read its Zenodo record",
    home="https://i2cvb.github.io (Zenodo record 162231)",
    options=("centres",),
    **prostate(SITE, (19, 291), (39, 762), "19 is the number of the Siemens cases (see centres)"),
)
def find(source: Source, options: Options) -> Sequence[Case]:
    """A case is a folder with T2W and GT/prostate in it."""
    files = {"image": _folders(source, "T2W"), "mask": _folders(source, "GT/prostate")}
    cases: list[Case] = []
    for patient, own in source.together(files).items():
        scanner = _scanner(source, patient) if options.centres else ""
        if options.centres and not scanner:
            cure = "put it below GE or Siemens, or import without centres"
            source.refuse("case of an unknown scanner", patient, cure)
        site = f"{SITE}_{scanner}" if scanner else SITE
        name = re.sub(r"\W+", "_", PurePosixPath(patient).name)
        cases.append(VolumeCase(source, site, name, own, _read))
    return cases


def _read(case: Case) -> Scan:
    try:
        return read_scan(case)
    except BadFile:
        if case.name.lower() not in KNOWN:
            raise
        raise LeftOut(KNOWN[case.name.lower()]) from None


def _folders(source: Source, ending: str) -> dict[str, str]:
    """Folders of this name that hold files, by the patient's folder."""
    found = {folder: re.fullmatch(rf"(.+)/{ending}", folder, re.I) for folder in source.folders}
    return {match.group(1): folder for folder, match in sorted(found.items()) if match}


def _scanner(source: Source, patient: str) -> str:
    """ge or siemens, from the folders above; empty if none of them says so."""
    above = f"{source.root.resolve().name}/{patient}".lower()
    match = re.search(rf"(?:^|/)({'|'.join(SCANNERS)})(?![a-z])", above)
    return match.group(1) if match else ""
