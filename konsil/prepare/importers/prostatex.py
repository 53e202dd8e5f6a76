"""PROSTATEx: T2 series of TCIA, with masks that others published; two releases of them.

`zones` (Meyer et al., TCIA's PROSTATEx-Seg-Zones, 98 cases, DICOM SEG) is what the paper's recipe
uses. Its segments are zones, the prostate is all of them; the urethra counts only on slices that
show another zone, as in the recipe, since it is drawn beyond the prostate. `gland` (Cuocolo et al.,
PROSTATEx_masks, 204 cases, NIfTI) has the whole prostate, and most images beside it.

Both layouts are as the recipe and the repositories' lists of files show them.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from konsil.data.volumes import from_planes, planes, read_mask_volume, read_volume
from konsil.data.volumes.headers import SEGMENTATIONS
from konsil.errors import ConfigError, DataError
from konsil.prepare.importers.base import Case, Options, Source, importer
from konsil.prepare.importers.volumes import Scan, VolumeCase, dicom_folders, prostate, read_scan

if TYPE_CHECKING:
    from pydicom import Dataset

SITE = "prostatex"
PATIENT = r"ProstateX-\d{4}"
GLAND = rf"mask_prostate/({PATIENT})\.nii(?:\.gz)?"
RELEASES = ("zones", "gland")
Files = dict[str, list[str]]  # by patient
Found = dict[str, dict[str, str]]  # patient -> image and mask


@importer(
    "prostatex",
    title="PROSTATEx, with zones (Meyer et al.) or whole glands (Cuocolo et al.)",
    sites=(SITE,),
    layout="""
zones:  manifest-*/PROSTATEx/ProstateX-0004/<study>/<T2 series>/*.dcm
        manifest-*/PROSTATEx/ProstateX-0004/<study>/<Segmentation>/1-1.dcm
gland:  Files/prostate/image_list.csv
        Files/prostate/mask_prostate/ProstateX-0000.nii.gz ...
        Files/prostate/Images/ProstateX-0000_t2_tse_tra_4.nii.gz ...
        (or the DICOM series beside them: manifest-*/PROSTATEx/ProstateX-0000/<study>/4.000000-*/)
""",
    certainty="certain of zones; of gland, whose list has all 204 images, nearly",
    licence="masks: zones CC BY 3.0, gland CC BY 4.0; images: see TCIA's PROSTATEx collection",
    home="https://www.cancerimagingarchive.net/analysis-result/prostatex-seg-zones, "
    "or https://github.com/rcuocolo/PROSTATEx_masks",
    options=("release",),
    **prostate(
        SITE, (99, 2293), (98, 1627), "98 cases have zones; which the 99th is, is not known"
    ),
)
def find(source: Source, options: Options) -> list[Case]:
    """The cases of one release of masks."""
    folders = dicom_folders(source, PATIENT)
    segmentations = _segmentations(source, folders)
    zones = _release(source, options, bool(segmentations)) == "zones"
    found = _zones(source, folders, segmentations) if zones else _glands(source, folders)
    read = _read_zones if zones else read_scan
    return [
        VolumeCase(source, SITE, patient.replace("prostatex", "ProstateX"), files, read)
        for patient, files in found.items()
    ]


def _release(source: Source, options: Options, zones: bool) -> str:
    if options.release not in (None, *RELEASES):
        raise ConfigError(f"release = {options.release!r}: there are {' and '.join(RELEASES)}")
    there = {"zones": zones, "gland": bool(source.matching(GLAND))}
    fitting = [name for name in RELEASES if there[name] and options.release in (None, name)]
    if len(fitting) > 1:
        raise DataError(
            f"{source.root}: holds the masks of both releases; choose by release: zones (the "
            "paper's) or release: gland"
        )
    if not fitting and options.release is not None:
        raise source.not_understood(f"no masks of the release {options.release}")
    if not fitting:
        raise source.not_understood("no DICOM SEG of a case ProstateX-*, and no mask_prostate")
    return fitting[0]


# --- zones: DICOM SEG -----------------------------------------------------------------------------


def _segmentations(source: Source, folders: Files) -> Files:
    """DICOM SEG files by patient. One is a file alone in its folder: no other header is opened."""
    found: Files = {}
    for patient, own in folders.items():
        alone = [source.folders[folder][0] for folder in own if len(source.folders[folder]) == 1]
        segs = [path for path in alone if _header(source, path).get("SOPClassUID") in SEGMENTATIONS]
        if segs:
            found[patient] = segs
    return found


def _zones(source: Source, folders: Files, segmentations: Files) -> Found:
    """Each segmentation with the folder of the series that it was drawn on."""
    found: Found = {}
    for patient, (seg, *others) in segmentations.items():
        references = _header(source, seg).get("ReferencedSeriesSequence", [])
        drawn_on = {str(item.SeriesInstanceUID) for item in references}
        firsts = {folder: _header(source, source.folders[folder][0]) for folder in folders[patient]}
        fitting = [f for f, first in firsts.items() if first.get("SeriesInstanceUID") in drawn_on]
        if others:
            cure = "keep the zones (PROSTATEx-Seg-Zones) and take the others away"
            source.refuse("case with several segmentations", ", ".join([seg, *others]), cure)
        elif not fitting:
            cure = "download the T2 series that PROSTATEx-Seg-Zones lists for it"
            source.refuse("segmentation without its image", seg, cure)
        else:
            found[patient] = {"image": fitting[0], "mask": seg}
    return found


def _header(source: Source, name: str) -> Dataset:
    from pydicom import Dataset, dcmread

    tags = ["SOPClassUID", "SeriesInstanceUID", "ReferencedSeriesSequence", "SegmentSequence"]
    try:
        return dcmread(source.root / name, stop_before_pixels=True, specific_tags=tags)
    except Exception:  # whatever pydicom stumbles over: then the file is none of those looked for
        return Dataset()


def _read_zones(case: Case) -> Scan:
    """The union of the zones; the urethra only where there is another one."""
    image = case.path("image")
    volume = read_volume(image)
    with case.blaming("mask"):
        values = read_mask_volume(case.path("mask"), image, volume)
    segments = _header(case.source, case.files["mask"]).get("SegmentSequence", [])
    named = {int(one.SegmentNumber): str(one.get("SegmentLabel", "")).lower() for one in segments}
    urethra = next((number for number, label in named.items() if "urethra" in label), 0)
    stack = planes(values, volume.affine, "axial")
    gland = ((stack != 0) & (stack != urethra)).any(axis=(1, 2))
    whole = (stack != 0) & gland[:, None, None]
    return Scan(volume, from_planes(whole, volume.affine, "axial"))


# --- gland: NIfTI ---------------------------------------------------------------------------------


def _glands(source: Source, folders: Files) -> Found:
    """Each mask with the T2 series that image_list.csv names, as NIfTI or DICOM."""
    listed = _image_list(source)
    volumes = source.by_name(rf"({PATIENT})_t2_tse_tra[^/]*\.nii(?:\.gz)?")
    found: Found = {}
    for patient, mask in sorted(source.named(GLAND).items()):
        series = listed.get(patient)  # None: any, those of the lesions' folder last
        stems = {
            v: PurePosixPath(v).name.lower().partition(".")[0] for v in volumes.get(patient, ())
        }
        fitting = [volume for volume, stem in stems.items() if series in (None, stem)]
        fitting.sort(key=lambda path: "lesions/" in path.lower())
        if series is not None:
            begin = re.compile(rf"0*{series.rpartition('_')[2]}(?:\.0*)?-")
            fitting += [f for f in folders.get(patient, []) if begin.match(PurePosixPath(f).name)]
        if fitting:
            found[patient] = {"image": fitting[0], "mask": mask}
        else:
            cure = (
                "put Files/prostate/Images or TCIA's PROSTATEx collection, and image_list.csv, "
                "beside the masks"
            )
            source.refuse("mask without its image", mask, cure)
    return found


def _image_list(source: Source) -> dict[str, str]:
    """What image_list.csv says: patient -> ProstateX-0000_t2_tse_tra_4."""
    listed: dict[str, str] = {}
    for name in source.matching(r"image_list\.csv"):
        if "lesions/" not in name.lower():  # another list, of other series
            text = (source.root / name).read_text(encoding="utf-8").lower()
            found = re.findall(rf"{PATIENT.lower()}_\w+", text)
            listed |= {line.partition("_")[0]: line for line in found}
    return listed
