"""Cases that are volumes, written as NIfTI with their affine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.data.findings import BadFile
from konsil.data.importers.base import Case, Options, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from konsil.data.volumes import Volume


@dataclass(frozen=True, kw_only=True)
class VolumeCase(Case):
    """A volume and its mask on the same grid; every value of the mask but 0 is the structure."""

    image: str  # below the source folder
    read: Callable[[], tuple[Volume, NDArray[Any]]]  # raises BadFile

    @property
    def where(self) -> str:
        """The image's path below the source folder."""
        return self.image

    def write(self, folder: Path, options: Options) -> Written:
        """Image and mask as .nii.gz; cases and labelled slices are counted."""
        import numpy as np

        from konsil.data.volumes import Volume, planes, write_volume

        volume, values = self.read()
        mask = (values != 0).astype(np.uint8)
        if not mask.any():
            raise BadFile("empty mask", "get the file again, or take the case away")
        image, label = f"images/{self.name}.nii.gz", f"masks/{self.name}.nii.gz"
        (folder / "images").mkdir(parents=True, exist_ok=True)
        (folder / "masks").mkdir(parents=True, exist_ok=True)
        write_volume(folder / image, volume)
        write_volume(folder / label, Volume(mask, volume.affine))
        labelled = int(planes(mask, volume.affine, "axial").any(axis=(1, 2)).sum())
        return Written(image, label, {"cases": 1, "labelled slices": labelled})
