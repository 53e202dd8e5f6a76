"""PROSTATEx: T2 series of TCIA, with masks that others published; two releases of them.

`zones` (Meyer et al., TCIA's PROSTATEx-Seg-Zones, 98 cases, DICOM SEG) is what the paper's recipe
uses. Its segments are zones, the prostate is all of them; the urethra counts only on slices that
show another zone, as in the recipe, since it is drawn beyond the prostate. `gland` (Cuocolo et al.,
PROSTATEx_masks, 204 cases, NIfTI) has the whole prostate, and most images beside it.

Both layouts are as the recipe and the repositories' lists of files show them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from konsil.errors import ConfigError, DataError
from konsil.prepare.importers.base import Case, Options, importer
from konsil.prepare.importers.pictures import blaming
from konsil.prepare.importers.source import Source
from konsil.prepare.importers.volumes import Scan, VolumeCase, dicom_folders, prostate, read_scan

if TYPE_CHECKING:
    from pydicom import Dataset

SITE = "prostatex"
PATIENT = r"ProstateX-\d{4}"
RELEASES = ("zones", "gland")
Files = dict[str, list[str]]  # by patient


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
def find(source: Source, options: Options) -> Sequence[Case]:
    """The cases of one release of masks."""
    folders = dicom_folders(source, PATIENT)
    masks = {
        "zones": _segmentations(source, folders),
        "gland": source.by_name(rf"mask_prostate/({PATIENT})\.nii(?:\.gz)?"),
    }
    release = _release(source, options, [name for name, there in masks.items() if there])
    zones = release == "zones"
    images = (_zone_images if zones else _gland_images)(source, folders, masks[release])
    return [
        VolumeCase(
            source,
            SITE,
            key.replace("prostatex", "ProstateX"),
            {"image": image, "mask": masks[release][key][0]},
            _read_zones if zones else read_scan,
        )
        for key, image in sorted(images.items())
    ]


def _release(source: Source, options: Options, there: Sequence[str]) -> str:
    if options.release not in (None, *RELEASES):
        raise ConfigError(f"release = {options.release!r}: there are {' and '.join(RELEASES)}")
    if options.release is not None and options.release not in there:
        raise source.not_understood(f"no masks of the release {options.release}")
    if not there:
        raise source.not_understood("no DICOM SEG of a case ProstateX-*, and no mask_prostate")
    if len(there) > 1 and options.release is None:
        raise DataError(
            f"{source.root}: holds the masks of both releases; choose by release: zones (the "
            "paper's) or release: gland"
        )
    return options.release or there[0]


# --- zones: DICOM SEG -----------------------------------------------------------------------------


def _segmentations(source: Source, folders: Files) -> Files:
    """DICOM SEG files by patient. One is a file alone in its folder: no other header is opened."""
    from konsil.data.volumes.headers import SEGMENTATIONS

    found: Files = {}
    for patient, own in folders.items():
        alone = [source.folders[folder][0] for folder in own if len(source.folders[folder]) == 1]
        segs = [path for path in alone if _header(source, path).get("SOPClassUID") in SEGMENTATIONS]
        if segs:
            found[patient] = segs
    return found


def _zone_images(source: Source, folders: Files, masks: Files) -> dict[str, str]:
    """For each segmentation the folder of the series that it was drawn on."""
    images: dict[str, str] = {}
    for patient, (seg, *others) in masks.items():
        if others:
            cure = "keep the zones (PROSTATEx-Seg-Zones) and take the others away"
            source.refuse("case with several segmentations", ", ".join([seg, *others]), cure)
            continue
        references = _header(source, seg).get("ReferencedSeriesSequence", [])
        drawn_on = {str(item.SeriesInstanceUID) for item in references}
        firsts = {folder: _header(source, source.folders[folder][0]) for folder in folders[patient]}
        fitting = [f for f, first in firsts.items() if first.get("SeriesInstanceUID") in drawn_on]
        if fitting:
            images[patient] = fitting[0]
        else:
            cure = "download the T2 series that PROSTATEx-Seg-Zones lists for it"
            source.refuse("segmentation without its image", seg, cure)
    return images


def _header(source: Source, name: str) -> Dataset:
    from pydicom import Dataset, dcmread

    tags = ["SOPClassUID", "SeriesInstanceUID", "ReferencedSeriesSequence", "SegmentSequence"]
    try:
        return dcmread(source.root / name, stop_before_pixels=True, specific_tags=tags)
    except Exception:  # whatever pydicom stumbles over: then the file is none of those looked for
        return Dataset()


def _read_zones(case: Case) -> Scan:
    """The union of the zones; the urethra only where there is another one."""
    from konsil.data.volumes import from_planes, planes, read_mask_volume, read_volume

    image = case.path("image")
    volume = read_volume(image)
    with blaming(case.files["mask"]):
        values = read_mask_volume(case.path("mask"), image, volume)
    segments = _header(case.source, case.files["mask"]).get("SegmentSequence", [])
    named = {int(one.SegmentNumber): str(one.get("SegmentLabel", "")).lower() for one in segments}
    urethra = next((number for number, label in named.items() if "urethra" in label), 0)
    stack = planes(values, volume.affine, "axial")
    gland = ((stack != 0) & (stack != urethra)).any(axis=(1, 2))
    whole = (stack != 0) & gland[:, None, None]
    return Scan(volume, from_planes(whole, volume.affine, "axial"))


# --- gland: NIfTI ---------------------------------------------------------------------------------


def _gland_images(source: Source, folders: Files, masks: Files) -> dict[str, str]:
    """For each mask the T2 series that image_list.csv names, as NIfTI or DICOM."""
    listed = _image_list(source)
    volumes = source.by_name(rf"({PATIENT})_t2_tse_tra[^/]*\.nii(?:\.gz)?")
    images: dict[str, str] = {}
    for patient, (mask, *others) in masks.items():
        if others:
            cure = "keep one of the two; was the repository unpacked twice?"
            source.refuse("file that is there twice", " and ".join([mask, *others]), cure)
            continue
        fitting = [
            *_named_as(volumes.get(patient, []), listed.get(patient)),
            *_numbered_as(folders.get(patient, []), listed.get(patient)),
        ]
        if fitting:
            images[patient] = fitting[0]
        else:
            cure = (
                "put Files/prostate/Images or TCIA's PROSTATEx collection, and image_list.csv, "
                "beside the masks"
            )
            source.refuse("mask without its image", mask, cure)
    return images


def _image_list(source: Source) -> dict[str, str]:
    """What image_list.csv says: patient -> ProstateX-0000_t2_tse_tra_4."""
    listed: dict[str, str] = {}
    for name in source.matching(r"image_list\.csv"):
        if "lesions/" not in name.lower():  # another list, of other series
            text = (source.root / name).read_text(encoding="utf-8").lower()
            found = re.findall(rf"{PATIENT.lower()}_\w+", text)
            listed |= {line.partition("_")[0]: line for line in found}
    return listed


def _named_as(names: Sequence[str], listed: str | None) -> list[str]:
    """Volumes of the listed name; those of the lesions' folder last, if it is not known."""
    stems = {name: PurePosixPath(name).name.lower().partition(".")[0] for name in names}
    fitting = [name for name in names if listed in (None, stems[name])]
    return sorted(fitting, key=lambda name: "lesions/" in name.lower())


def _numbered_as(folders: Sequence[str], listed: str | None) -> list[str]:
    """Series whose folder begins with the listed number."""
    if listed is None:
        return []
    begin = re.compile(rf"0*{listed.rpartition('_')[2]}(?:\.0*)?-")
    return [folder for folder in folders if begin.match(PurePosixPath(folder).name)]
