"""I2CVB, multi-parametric MRI of the prostate from two scanners, DICOM throughout.

The layout is as the authors' own code and the paper's published recipe read it: the T2 series in
T2W, the whole gland in GT/prostate as a series of mask slices. GE 1.5 T has 21 cases, Siemens 3 T
19; the paper's 19 cases are as many as the Siemens ones, its recipe takes both scanners.
"""

import re
from pathlib import PurePosixPath

from konsil.data.findings import BadFile
from konsil.prepare.importers.base import Case, LeftOut, Options, Source, importer
from konsil.prepare.importers.volumes import Scan, VolumeCase, prostate, read_scan

SITE = "i2cvb"
KNOWN = {"patient_428260": "its ground truth lacks a slice (the published recipe says so too)"}


@importer(
    "i2cvb",
    title="I2CVB prostate, 1.5 T (GE) and 3 T (Siemens)",
    sites=(SITE, f"{SITE}_ge", f"{SITE}_siemens"),
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
def find(source: Source, options: Options) -> list[Case]:
    """A case is a folder with T2W and GT/prostate in it."""
    images = source.named("(.+)/T2W", source.folders)
    masks = source.named("(.+)/GT/prostate", source.folders)
    cases: list[Case] = []
    for own in source.pairs(image=images, mask=masks).values():
        patient = own["image"].rpartition("/")[0]
        site = SITE
        if options.centres:
            above = f"{source.root.resolve().name}/{patient}".lower()
            scanner = re.search(r"(?:^|/)(ge|siemens)(?![a-z])", above)
            if scanner is None:
                cure = "put it below GE or Siemens, or import without centres"
                source.refuse("case of an unknown scanner", patient, cure)
            else:
                site = f"{SITE}_{scanner.group(1)}"
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
