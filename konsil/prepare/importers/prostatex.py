"""PROSTATEx: T2 series of TCIA, with masks that others published; two releases of them.

`zones` (Meyer et al., TCIA's PROSTATEx-Seg-Zones, 98 cases, DICOM SEG) is what the paper's recipe
uses. Its segments are zones, the prostate is all of them; the urethra counts only on slices that
show another zone, as in the recipe, since it is drawn beyond the prostate. `gland` (Cuocolo et al.,
PROSTATEx_masks, 204 cases, NIfTI) has the whole prostate, and most images beside it.

Both layouts are as the recipe and the repositories' lists of files show them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from konsil.data.findings import Findings
from konsil.errors import ConfigError, DataError
from konsil.prepare.importers.base import Case, Importer, Options, Source
from konsil.prepare.importers.pictures import blaming
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

if TYPE_CHECKING:
    from pydicom import Dataset

SITE = "prostatex"
PATIENT = r"ProstateX-\d{4}"
RELEASES = ("zones", "gland")
PAPER, RECIPE = (99, 2293), (98, 1627)
LAYOUT = """
zones:  manifest-*/PROSTATEx/ProstateX-0004/<study>/<T2 series>/*.dcm
        manifest-*/PROSTATEx/ProstateX-0004/<study>/<Segmentation>/1-1.dcm
gland:  Files/prostate/image_list.csv
        Files/prostate/mask_prostate/ProstateX-0000.nii.gz ...
        Files/prostate/Images/ProstateX-0000_t2_tse_tra_4.nii.gz ...
        (or the DICOM series beside them: manifest-*/PROSTATEx/ProstateX-0000/<study>/4.000000-*/)
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """The cases of one release of masks."""
    folders = dicom_folders(source, PATIENT)
    masks = {
        "zones": _segmentations(source, folders),
        "gland": _by_patient(source, rf"mask_prostate/({PATIENT})\.nii(?:\.gz)?"),
    }
    release = _release(source, options, [name for name, there in masks.items() if there])
    found = Findings()
    images = (_zone_images if release == "zones" else _gland_images)(
        source, folders, masks[release], found
    )
    found.raise_if_any(source.root)
    read = _read_zones if release == "zones" else read_scan
    return [
        VolumeCase(
            site=SITE,
            name=key.replace("prostatex", "ProstateX"),
            image=image,
            read=partial(read, source.root, image, masks[release][key][0]),
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


def _by_patient(source: Source, pattern: str) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name, match in source.matching(pattern).items():
        files.setdefault(match.group(1).lower(), []).append(name)
    return files


# --- zones: DICOM SEG -----------------------------------------------------------------------------


def _segmentations(source: Source, folders: dict[str, list[str]]) -> dict[str, list[str]]:
    """DICOM SEG files by patient. One is a file alone in its folder: no other header is opened."""
    from konsil.data.volumes.headers import SEGMENTATIONS

    files = Counter(str(PurePosixPath(name).parent) for name in source.files)
    first = _first_files(source)
    found: dict[str, list[str]] = {}
    for patient, own in folders.items():
        alone = [first[folder] for folder in own if files[folder] == 1]
        segs = [n for n in alone if _header(source, n).get("SOPClassUID") in SEGMENTATIONS]
        if segs:
            found[patient] = segs
    return found


def _zone_images(
    source: Source, folders: dict[str, list[str]], masks: dict[str, list[str]], found: Findings
) -> dict[str, str]:
    """For each segmentation the folder of the series that it was drawn on."""
    first = _first_files(source)
    images: dict[str, str] = {}
    for patient, segs in masks.items():
        if len(segs) > 1:
            cure = "keep the zones (PROSTATEx-Seg-Zones) and take the others away"
            found.add("case with several segmentations", ", ".join(segs), cure)
            continue
        drawn_on = {
            str(item.SeriesInstanceUID)
            for item in _header(source, segs[0]).get("ReferencedSeriesSequence", [])
        }
        series = {f: _header(source, first[f]).get("SeriesInstanceUID") for f in folders[patient]}
        fitting = [folder for folder, uid in series.items() if uid in drawn_on]
        if not fitting:
            cure = "download the T2 series that PROSTATEx-Seg-Zones lists for it"
            found.add("segmentation without its image", segs[0], cure)
        else:
            images[patient] = fitting[0]
    return images


def _first_files(source: Source) -> dict[str, str]:
    """A file of every folder."""
    return {str(PurePosixPath(name).parent): name for name in reversed(source.files)}


def _header(source: Source, name: str) -> Dataset:
    from pydicom import Dataset, dcmread

    tags = ["SOPClassUID", "SeriesInstanceUID", "ReferencedSeriesSequence"]
    try:
        return dcmread(source.root / name, stop_before_pixels=True, specific_tags=tags)
    except Exception:  # whatever pydicom stumbles over: then the file is none of those looked for
        return Dataset()


def _read_zones(root: Path, image: str, mask: str) -> Scan:
    """The union of the zones; the urethra only where there is another one."""
    from konsil.data.volumes import from_planes, planes, read_mask_volume, read_volume

    volume = read_volume(root / image)
    with blaming(mask):
        values = read_mask_volume(root / mask, root / image, volume)
        urethra = _urethra(root / mask)
    stack = planes(values, volume.affine, "axial")
    gland = ((stack != 0) & (stack != urethra)).any(axis=(1, 2))
    whole = (stack != 0) & gland[:, None, None]
    return Scan(volume, from_planes(whole, volume.affine, "axial"))


def _urethra(path: Path) -> int:
    """The number of the segment that is named so; 0 if none is."""
    from pydicom import dcmread

    data = dcmread(path, stop_before_pixels=True, specific_tags=["SegmentSequence"])
    for segment in data.get("SegmentSequence", []):
        if "urethra" in str(segment.get("SegmentLabel", "")).lower():
            return int(segment.SegmentNumber)
    return 0


# --- gland: NIfTI ---------------------------------------------------------------------------------


def _gland_images(
    source: Source, folders: dict[str, list[str]], masks: dict[str, list[str]], found: Findings
) -> dict[str, str]:
    """For each mask the T2 series that image_list.csv names, as NIfTI or DICOM."""
    listed = _image_list(source)
    volumes = _by_patient(source, rf"({PATIENT})_t2_tse_tra[^/]*\.nii(?:\.gz)?")
    images: dict[str, str] = {}
    for patient, own in masks.items():
        if len(own) > 1:
            cure = "keep one of the two; was the repository unpacked twice?"
            found.add("file that is there twice", " and ".join(own), cure)
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
            found.add("mask without its image", own[0], cure)
    return images


def _image_list(source: Source) -> dict[str, str]:
    """What image_list.csv says: patient -> ProstateX-0000_t2_tse_tra_4."""
    listed: dict[str, str] = {}
    for name in source.matching(r"image_list\.csv"):
        if "lesions/" in name.lower():  # another list, of other series
            continue
        text = (source.root / name).read_text(encoding="utf-8")
        for line in re.findall(rf"{PATIENT}_\w+", text, re.IGNORECASE):
            listed[line.partition("_")[0].lower()] = line.lower()
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


IMPORTERS = (
    Importer(
        name="prostatex",
        title="PROSTATEx, with zones (Meyer et al.) or whole glands (Cuocolo et al.)",
        sites=(SITE,),
        layout=LAYOUT,
        certainty="certain of zones; of gland, whose list has all 204 images, nearly",
        licence="masks: zones CC BY 3.0, gland CC BY 4.0; images: see TCIA's PROSTATEx collection",
        home="https://www.cancerimagingarchive.net/analysis-result/prostatex-seg-zones, "
        "or https://github.com/rcuocolo/PROSTATEx_masks",
        table=TABLES,
        paper={SITE: counted(*PAPER)},
        head=PROSTATE_HEAD,
        find=find,
        differs={SITE: why(PAPER, RECIPE, "98 cases have zones; which the 99th is, is not known")},
        options=("release",),
    ),
)
