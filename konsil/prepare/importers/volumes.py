"""Cases that are volumes of the prostate, written as NIfTI with their affine.

Masks of public sets do not always lie on their image's voxels as their headers tell it. One rule
for all of them, and a note in the report whenever more than turning was needed:

- voxels that are the image's, in any storage order: turned;
- the image's shape, but other positions: laid on voxel by voxel. A mask is drawn on slices, so
  as many slices are the same slices, and the header is wrong (the published recipe does so too);
- another shape: put where the header says, if every labelled voxel falls inside the image.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.volumes import Volume, from_planes, planes, read_volume, write_volume
from konsil.data.volumes.grid import onto_grid
from konsil.prepare.importers.base import Case, Options, Source, Written

CASES, SLICES = "cases", "labelled slices"
AGAIN = "get the file again, or take the case away"
TOO_FAR = 0.25  # of the image's diagonal: then the header is not wrong but another's


def prostate(
    site: str, paper: tuple[int, int], recipe: tuple[int, int], *more: str
) -> dict[str, Any]:
    """What importers of prostates state alike; cases and slices in the paper and by its recipe."""
    known = (
        f"the paper has {paper[1] / paper[0]:.0f} slices a case and does not say which; its "
        f"published recipe makes {recipe[0]} cases with {recipe[1]:,} labelled slices, "
        f"{recipe[1] / recipe[0]:.0f} a case"
    )
    return {
        "table": "FedSM, Table 8 (cases) and Table 2 (slices)",
        "paper": {site: {CASES: paper[0], SLICES: paper[1]}},
        "differs": {site: "; ".join([known, *more])},
        "head": {
            "task": "segmentation",
            "structures": {"prostate": [1]},
            "channels": 1,
            "slices": {"view": "axial", "which": "labelled"},
        },
    }


@dataclass(frozen=True)
class Scan:
    """A volume and its mask on the same voxels; every value of the mask but 0 is the structure."""

    volume: Volume
    mask: NDArray[Any]
    note: str = ""  # something a person should know of it


@dataclass(frozen=True)
class VolumeCase(Case):
    """A volume with a mask of one structure; each is a file or a DICOM series' folder."""

    read: Callable[[Any], Scan]  # this case; raises BadFile or LeftOut

    def write(self, folder: Path, options: Options) -> Written:
        """Image and mask as .nii.gz; cases and labelled slices are counted."""
        scan = self.read(self)
        mask, affine = (scan.mask != 0).astype(np.uint8), scan.volume.affine
        if not mask.any():
            raise BadFile("empty mask", AGAIN)
        image, label = f"images/{self.name}.nii.gz", f"masks/{self.name}.nii.gz"
        write_volume(folder / image, scan.volume)
        write_volume(folder / label, Volume(mask, affine))
        labelled = int(planes(mask, affine, "axial").any(axis=(1, 2)).sum())
        return Written(image, label, {CASES: 1, SLICES: labelled}, scan.note)


def read_scan(case: Case, channel: int | None = None, allowed: Sequence[int] = ()) -> Scan:
    """The volume and its mask.

    `allowed` lists the values that the data set's masks have beside 0, if that is known.
    """
    volume = read_volume(case.path("image"), channel)
    with case.blaming("mask"):
        labels = read_volume(case.path("mask"))
        strange = np.setdiff1d(labels.array, [0, *allowed]) if allowed else ()
        if len(strange):
            raise BadFile(
                "mask with values that the data set does not know",
                f"its masks hold {', '.join(map(str, (0, *allowed)))}; {AGAIN}",
                ", ".join(f"{value:g}" for value in strange[:5]),
            )
        return Scan(volume, *lay_on(labels, volume))


def dicom_folders(source: Source, case: str) -> dict[str, list[str]]:
    """Folders with DICOM files, by the case (a pattern) that a folder above them is named after."""
    regex = re.compile(rf"(?:^|/)({case})/", re.IGNORECASE)
    found: dict[str, list[str]] = {}
    for folder, files in source.folders.items():
        match = regex.search(f"{folder}/")
        if match and any(path.lower().endswith((".dcm", ".ima")) for path in files):
            found.setdefault(match.group(1).lower(), []).append(folder)
    return {case: sorted(folders) for case, folders in sorted(found.items())}


# --- a mask on its image --------------------------------------------------------------------------


def lay_on(mask: Volume, image: Volume) -> tuple[NDArray[Any], str]:
    """The mask's values on the image's voxels, and a note if its header does not fit them."""
    turned = onto_grid(mask.array, mask.affine, image)
    if turned is not None:
        return turned, ""
    stored = from_planes(planes(mask.array, mask.affine, "axial"), image.affine, "axial")
    if stored.shape != image.shape:
        sizes = [" x ".join(map(str, volume.shape)) for volume in (mask, image)]
        note = f"mask of {sizes[0]} on an image of {sizes[1]} voxels, placed by its position"
        return _by_position(mask, image), note
    ours, theirs = _corners(mask), _corners(image)
    off = np.linalg.norm(ours[:, None] - theirs, axis=2).min(axis=1).max()
    if off > TOO_FAR * np.linalg.norm(theirs[-1] - theirs[0]):
        raise BadFile("mask that lies elsewhere than its image", AGAIN, f"{off:.0f} mm away")
    return stored, f"the mask's header is up to {off:.1f} mm off; laid on voxel by voxel"


def _by_position(mask: Volume, image: Volume) -> NDArray[Any]:
    """The mask's value nearest to each of the image's voxels."""
    from nibabel.affines import apply_affine
    from scipy.ndimage import affine_transform

    labelled = np.argwhere(mask.array)
    step = np.linalg.inv(mask.affine) @ image.affine
    places = apply_affine(np.linalg.inv(step), labelled)
    slack = 0.5 + 1e-3
    inside = (places > -slack) & (places < np.array(image.shape) - 1 + slack)
    lost = int((~inside.all(axis=1)).sum())
    if lost:
        detail = f"{lost} of {len(labelled)} voxels outside"
        raise BadFile("mask that reaches beyond its image", AGAIN, detail)
    values: NDArray[Any] = affine_transform(
        mask.array, step[:3, :3], step[:3, 3], image.shape, order=0, mode="grid-constant"
    )
    return values


def _corners(volume: Volume) -> NDArray[np.float64]:
    """Where the eight outermost voxels lie, in millimetres."""
    voxels = np.indices((2, 2, 2)).reshape(3, 8).T * (np.array(volume.shape) - 1)
    corners: NDArray[np.float64] = voxels @ volume.affine[:3, :3].T + volume.affine[:3, 3]
    return corners
