"""Voxel grids: where a volume lies in the body, and the planes one looks at.

World coordinates are nibabel's: millimetres to the patient's Right, Anterior, Superior (RAS+).
Planes are made by flips and transpositions only, so nothing is resampled and the way back is
exact. An oblique volume is seen along the voxel axis that is nearest to the view's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

View = Literal["axial", "coronal", "sagittal"]
Affine = NDArray[np.float64]

# Whither plane number, row and column grow. As radiologists look at it: the patient's right is on
# the left of the screen, the head is up; in sagittal planes the face looks to the left.
DIRECTIONS: dict[View, str] = {
    "axial": "SPL",  # from the feet to the head
    "coronal": "AIL",  # from the back to the front
    "sagittal": "LIP",  # from the patient's right to the left
}

TOLERANCE = 0.1  # of a voxel: rounded headers differ by less, a wrong header by more


@dataclass(frozen=True, eq=False)
class Volume:
    """Voxels and where they lie."""

    array: NDArray[Any]  # [i, j, k], or colour [i, j, k, 3]
    affine: Affine  # 4 x 4: voxel indices to RAS+ millimetres

    @property
    def shape(self) -> tuple[int, int, int]:
        """Voxels along i, j, k."""
        i, j, k = self.array.shape[:3]
        return i, j, k

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres from voxel to voxel along i, j, k."""
        i, j, k = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return i, j, k


def planes(array: NDArray[Any], affine: Affine, view: View) -> NDArray[Any]:
    """[N, rows, columns(, 3)] of an array on the grid; a view of its memory, not a copy.

    `DIRECTIONS` says whither N, rows and columns grow.
    """
    return _turned(array, _axes(affine), _axes_of(view))


def from_planes(stack: NDArray[Any], affine: Affine, view: View) -> NDArray[Any]:
    """The array on the original grid whose `planes` these are."""
    return _turned(stack, _axes_of(view), _axes(affine))


def plane_spacing(volume: Volume, view: View) -> tuple[float, float]:
    """Millimetres from row to row and from column to column of a view's planes."""
    axis_of = _axes(volume.affine)[:, 0].astype(int).tolist()
    _, row, column = (volume.spacing[axis_of.index(int(w))] for w in _axes_of(view)[:, 0])
    return row, column


def _turned(array: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    from nibabel.orientations import apply_orientation, ornt_transform

    turned: NDArray[Any] = apply_orientation(array, ornt_transform(start, end))
    return turned


def _axes(affine: Affine) -> NDArray[Any]:
    """For each voxel axis the world axis it is nearest to, and its sign."""
    from nibabel.orientations import io_orientation

    axes: NDArray[Any] = io_orientation(affine)
    return axes


def _axes_of(view: View) -> NDArray[Any]:
    from nibabel.orientations import axcodes2ornt

    axes: NDArray[Any] = axcodes2ornt(DIRECTIONS[view])
    return axes


# --- one grid on another ------------------------------------------------------------------------


def onto_grid(array: NDArray[Any], affine: Affine, grid: Volume) -> NDArray[Any] | None:
    """The array turned so that its voxels are the grid's; None if they are others."""
    step = np.linalg.inv(grid.affine) @ affine
    whole = np.rint(step)
    if not _is_signed_permutation(whole[:3, :3]) or _deviation(step, whole, array) > TOLERANCE:
        return None
    axes = np.stack([np.abs(whole[:3, :3]).argmax(axis=0), whole[:3, :3].sum(axis=0)], axis=1)
    turned = _turned(array, axes, np.array([[0, 1], [1, 1], [2, 1]]))
    first = whole[:3, :3].sum(axis=1) < 0  # a flipped axis begins at the grid's far end
    begins = np.where(first, np.array(turned.shape[:3]) - 1, 0)
    fits = turned.shape == grid.shape and (whole[:3, 3] == begins).all()
    return turned if fits else None


def put_plane(plane: NDArray[Any], affine: Affine, target: NDArray[Any], grid: Affine) -> bool:
    """Write a plane [i, j] into the voxels of `target` on which it lies; False if it lies on none.

    The affine's third column is not looked at: a single plane has no next one.
    """
    step = np.linalg.inv(grid) @ affine
    whole = np.rint(step)
    steps, start = whole[:3, :2].astype(int), whole[:3, 3].astype(int)
    if (np.abs(steps).sum(axis=0) != 1).any() or not (steps[:, 0] * steps[:, 1] == 0).all():
        return False
    if _deviation(step, whole, plane[:, :, None]) > TOLERANCE:
        return False
    i, j = np.arange(plane.shape[0])[:, None], np.arange(plane.shape[1])
    places = tuple(start[d] + steps[d, 0] * i + steps[d, 1] * j for d in range(3))
    if any(p.min() < 0 or p.max() >= n for p, n in zip(places, target.shape, strict=True)):
        return False
    target[places] = plane
    return True


def _is_signed_permutation(matrix: NDArray[Any]) -> bool:
    entries = np.abs(matrix)
    return bool((entries.sum(axis=0) == 1).all() and (entries.sum(axis=1) == 1).all())


def _deviation(step: Affine, whole: Affine, array: NDArray[Any]) -> float:
    """How far, in voxels, the worst corner of an array lies from the whole position."""
    last = np.array(array.shape[:3]) - 1
    corners = np.indices((2, 2, 2)).reshape(3, 8) * last[:, None]
    difference = step - whole
    off: float = np.abs(difference[:3, :3] @ corners + difference[:3, 3:]).max()
    return off


def offset_text(affine: Affine, grid: Affine) -> str:
    """Where an array lies on a grid that it does not fit, for messages."""
    begin = (np.linalg.inv(grid) @ affine)[:3, 3]
    mask, image = (np.linalg.norm(a[:3, :3], axis=0) for a in (affine, grid))
    return (
        f"its first voxel is at voxel {_text(begin, ', ')} of the image; voxels of "
        f"{_text(mask)} mm, the image's of {_text(image)} mm"
    )


def _text(numbers: NDArray[Any], separator: str = " x ") -> str:
    return separator.join(f"{number + 0.0:.4g}" for number in numbers.round(6))
