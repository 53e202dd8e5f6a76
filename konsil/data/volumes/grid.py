"""Voxel grids: where a volume lies in the body, and the planes one looks at.

World coordinates are nibabel's: millimetres to the patient's Right, Anterior, Superior (RAS+).
Planes are made by flips and transpositions only, so nothing is resampled and the way back is
exact. An oblique volume is seen along the voxel axis that is nearest to the view's.
"""

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
    of_voxels, of_planes = _orientations(affine, view)
    return _turned(array, of_voxels, of_planes)


def from_planes(stack: NDArray[Any], affine: Affine, view: View) -> NDArray[Any]:
    """The array on the original grid whose `planes` these are."""
    of_voxels, of_planes = _orientations(affine, view)
    return _turned(stack, of_planes, of_voxels)


def plane_spacing(volume: Volume, view: View) -> tuple[float, float]:
    """Millimetres from row to row and from column to column of a view's planes."""
    of_voxels, of_planes = _orientations(volume.affine, view)
    axes = of_voxels[:, 0].tolist()
    _, row, column = (volume.spacing[axes.index(world)] for world in of_planes[:, 0])
    return row, column


def _orientations(affine: Affine, view: View) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each axis of the voxels, and of a view's planes, the nearest world axis and its sign."""
    from nibabel.orientations import axcodes2ornt, io_orientation

    return io_orientation(affine), axcodes2ornt(DIRECTIONS[view])


def _turned(array: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    from nibabel.orientations import apply_orientation, ornt_transform

    turned: NDArray[Any] = apply_orientation(array, ornt_transform(start, end))
    return turned


# --- one grid on another ------------------------------------------------------------------------


def onto_grid(array: NDArray[Any], affine: Affine, grid: Volume) -> NDArray[Any] | None:
    """The array turned so that its voxels are the grid's; None if they are others."""
    whole = _whole_steps(array.shape[:3], affine, grid.affine)
    if whole is None:
        return None
    steps = whole[:3, :3]
    axes = np.stack([np.abs(steps).argmax(axis=0), steps.sum(axis=0)], axis=1)
    turned = _turned(array, axes, np.array([[0, 1], [1, 1], [2, 1]]))
    # A flipped axis begins at the grid's far end.
    begins = np.where(steps.sum(axis=1) < 0, np.array(turned.shape[:3]) - 1, 0)
    fits = turned.shape == grid.shape and (whole[:3, 3] == begins).all()
    return turned if fits else None


def put_plane(plane: NDArray[Any], affine: Affine, target: NDArray[Any], grid: Affine) -> bool:
    """Write a plane [i, j] into the voxels of `target` on which it lies; False if it lies on none.

    The affine's third column is not looked at: a single plane has no next one.
    """
    whole = _whole_steps(plane.shape, affine, grid)
    if whole is None:
        return False
    along_i, along_j, start = whole[:3, [0, 1, 3]].astype(int).T[:, :, None, None]
    i, j = np.arange(plane.shape[0])[:, None], np.arange(plane.shape[1])
    places = tuple(start + along_i * i + along_j * j)
    if any(p.min() < 0 or p.max() >= n for p, n in zip(places, target.shape, strict=True)):
        return False
    target[places] = plane
    return True


def _whole_steps(shape: tuple[int, ...], affine: Affine, grid: Affine) -> Affine | None:
    """From an array's voxels to a grid's, in whole voxels; None if they are others.

    Axes must run along the grid's, voxel by voxel, and no corner may lie off its voxel.
    """
    steps = np.linalg.inv(grid) @ affine
    whole = np.rint(steps)
    axes = len(shape)
    used = np.abs(whole[:3, :axes])
    if (used.sum(axis=0) != 1).any() or (used.sum(axis=1) > 1).any():
        return None
    corners = np.indices((2,) * axes).reshape(axes, -1) * (np.array(shape)[:, None] - 1)
    rest = (steps - whole)[:3]
    off = np.abs(rest[:, :axes] @ corners + rest[:, 3:]).max()
    return whole if off <= TOLERANCE else None


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
