"""NIfTI by nibabel, MetaImage and NRRD by SimpleITK: reading as they mean it, and writing."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.volumes.grid import Affine, Volume
from konsil.errors import DataError
from konsil.files import replacing

if TYPE_CHECKING:
    import SimpleITK

NIFTI = (".nii", ".nii.gz")
ITK = {".mhd": "MetaImage", ".mha": "MetaImage", ".nrrd": "NRRD", ".nhdr": "NRRD"}
ITK_READERS = {"MetaImage": "MetaImageIO", "NRRD": "NrrdImageIO", "DICOM": "GDCMImageIO"}
WRITABLE = (*NIFTI, ".mha", ".mhd", ".nrrd")
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # ITK and DICOM count to the left and the back
HEADER_BYTES = 65536


def suffix_of(path: Path) -> str:
    """The suffix in small letters; `.nii.gz` counts as one."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix


def unreadable(path: Path, kind: str) -> BadFile:
    """A file that its library refuses."""
    size = path.stat().st_size if path.exists() else 0
    detail = f"not a whole {kind} file, or of an unknown kind; {size} bytes"
    if not size:
        detail = "empty file"
    cure = "export or copy it again, or take it away"
    return BadFile("volume that cannot be read", cure, detail)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Says which file of a folder is refused: the folder's name is all that others know."""
    try:
        yield
    except BadFile as bad:
        bad.detail = f"{file.name}: {bad.detail}" if bad.detail else file.name
        raise


def read_file(path: Path, channel: int | None) -> Volume:
    """The volume of a NIfTI, MetaImage or NRRD file."""
    return (_read_nifti if suffix_of(path) in NIFTI else _read_itk)(path, channel)


# --- NIfTI --------------------------------------------------------------------------------------


def _read_nifti(path: Path, channel: int | None) -> Volume:
    """The affine is nibabel's choice of sform, qform or the voxel size alone."""
    import nibabel

    try:
        image: Any = nibabel.load(path, mmap=False)
        array = _nifti_values(image.dataobj)
        affine = np.asarray(image.affine, dtype=np.float64)
    except Exception:  # whatever nibabel, gzip and zlib stumble over in a damaged file
        raise unreadable(path, "NIfTI") from None
    array = _three_axes(array, array.ndim, channel)
    if array.dtype.names:
        array = np.stack([array[name] for name in "RGB"], axis=-1)
    return Volume(array, affine)


def _nifti_values(proxy: Any) -> NDArray[Any]:
    """Scaled values; integers stay integers if the scaling only adds a whole number."""
    raw: NDArray[Any] = proxy.get_unscaled()
    if not raw.dtype.isnative and not raw.dtype.names:
        raw = raw.astype(raw.dtype.newbyteorder("="))
    if proxy.slope == 1 and proxy.inter == 0:
        return raw
    if raw.dtype.kind not in "iu" or proxy.slope != 1 or not float(proxy.inter).is_integer():
        return raw * np.float64(proxy.slope) + proxy.inter
    wide = raw.astype(np.int64) + int(proxy.inter)
    narrow = wide.astype(raw.dtype)
    return narrow if np.array_equal(narrow, wide) else wide


def _three_axes(array: NDArray[Any], axes: int, channel: int | None) -> NDArray[Any]:
    """An array of three axes, and of what else comes after these `axes` of space and time."""
    ones = tuple(axis for axis in range(3, axes) if array.shape[axis] == 1)
    array = np.expand_dims(np.squeeze(array, ones), tuple(range(axes, 3)))
    return _one_channel(array, channel, 3) if axes - len(ones) > 3 else array


def _one_channel(array: NDArray[Any], channel: int | None, axis: int) -> NDArray[Any]:
    """One of the volumes that a file holds along an axis."""
    count = array.shape[axis]
    if channel is None or not 0 <= channel < count or array.ndim > axis + 1:
        cure = f"say which by `channel: 0` (or up to {count - 1}) in federation.yaml"
        if array.ndim > axis + 1:
            cure = "save every volume as a file of its own"
        shape = " x ".join(map(str, array.shape))
        raise BadFile("file of several volumes", cure, f"{count} channels, {shape}")
    return np.take(array, channel, axis=axis)


# --- MetaImage and NRRD -------------------------------------------------------------------------


def itk_image(path: Path, kind: str) -> SimpleITK.Image:
    """A file read by SimpleITK as the kind that it should be, not as what else it might be."""
    import SimpleITK as sitk

    reader = sitk.ImageFileReader()
    reader.SetImageIO(ITK_READERS[kind])
    reader.SetFileName(str(path))
    try:
        return reader.Execute()
    except RuntimeError:
        raise unreadable(path, kind) from None


def itk_values(image: SimpleITK.Image) -> NDArray[Any]:
    """The voxels as [i, j(, k)(, component)]; SimpleITK's order is the opposite."""
    import SimpleITK as sitk

    array: NDArray[Any] = sitk.GetArrayFromImage(image)
    axes = image.GetDimension()
    return array.transpose((*range(axes)[::-1], *range(axes, array.ndim)))


def _read_itk(path: Path, channel: int | None) -> Volume:
    image = itk_image(path, ITK[suffix_of(path)])
    array, axes = itk_values(image), image.GetDimension()
    components = image.GetNumberOfComponentsPerPixel()
    if components > 1 and not (components == 3 and array.dtype == np.uint8 and channel is None):
        array = _one_channel(array, channel, axis=axes)
    used = min(axes, 3)
    affine = np.eye(4)
    direction = np.reshape(image.GetDirection(), (axes, axes))[:used, :used]
    affine[:used, :used] = direction * np.array(image.GetSpacing())[:used]
    affine[:used, 3] = image.GetOrigin()[:used]
    return Volume(_three_axes(array, axes, channel), LPS_TO_RAS @ affine)


def data_file(path: Path) -> Path | None:
    """The file beside a MetaImage or NRRD header that holds its voxels, if it is not the same."""
    name = _data_name(path)
    if name is None:
        return None
    if not name or name.upper().startswith("LIST") or "%" in name:
        cure = "save the volume as one .mha or .nrrd file"
        raise BadFile("header with its voxels in several files", cure, name)
    if Path(name).is_absolute() or os.path.normpath(name).startswith(".."):
        cure = "put the data file beside its header, and its bare name into the header"
        raise BadFile("header whose data file lies outside its folder", cure, name)
    if not (path.parent / name).is_file():
        cure = "put the data file beside its header, or export both again"
        raise BadFile("header without its data file", cure, f"{name} is missing")
    return path.parent / name


def _data_name(path: Path) -> str | None:
    with path.open("rb") as file:
        text = file.read(HEADER_BYTES).decode("latin-1")
    separator = "=" if ITK[suffix_of(path)] == "MetaImage" else ":"
    for line in text.splitlines():
        key, _, value = line.partition(separator)
        if key.strip().lower() in ("elementdatafile", "data file", "datafile"):
            return None if value.strip().upper() == "LOCAL" else value.strip()
        if separator == ":" and not line.strip():
            return None  # an NRRD header ends at the first empty line
    return None


# --- writing ------------------------------------------------------------------------------------


def write_volume(path: Path, volume: Volume) -> None:
    """Write a volume, whole or not at all; the suffix says in which format.

    NIfTI keeps the affine to single precision, as its header does. Of `.mhd` the `.raw` file is
    replaced first.
    """
    suffix = suffix_of(path)
    if suffix not in WRITABLE:
        raise DataError(f"{path}: volumes are written as {', '.join(WRITABLE)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        values = volume.array.astype(np.uint8) if volume.array.dtype == bool else volume.array
        (_write_nifti if suffix in NIFTI else _write_itk)(path, Volume(values, volume.affine))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "SimpleITK refuses"
        raise DataError(f"{path}: cannot be written ({reason}); choose another place") from None


def _write_nifti(path: Path, volume: Volume) -> None:
    import nibabel

    image: Any = nibabel.Nifti1Image(_storable(volume.array), volume.affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(volume.affine, code="scanner")
    # A quaternion cannot say shear: then it says nothing, and readers take the sform.
    image.set_qform(volume.affine, code="unknown" if _is_sheared(volume.affine) else "scanner")
    with replacing(path) as file:
        if suffix_of(path) == ".nii":
            image.to_stream(file)
        else:
            # Neither name nor time inside: equal volumes are equal files.
            with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed:
                image.to_stream(packed)


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 4:
        fields = np.dtype([(name, np.uint8) for name in "RGB"])
        return np.ascontiguousarray(array, dtype=np.uint8).view(fields)[..., 0]
    if array.dtype in (np.int64, np.uint64):  # few programs read 64-bit NIfTI
        low, high = array.min(), array.max()
        return array.astype(np.int32 if low >= -(2**31) and high < 2**31 else np.float64)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _is_sheared(affine: Affine) -> bool:
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return not np.allclose(axes.T @ axes, np.eye(3), atol=1e-5)


def _write_itk(path: Path, volume: Volume) -> None:
    import SimpleITK as sitk

    array = volume.array.transpose((2, 1, 0, 3)[: volume.array.ndim])
    image = sitk.GetImageFromArray(np.ascontiguousarray(array), isVector=array.ndim == 4)
    affine = LPS_TO_RAS @ volume.affine
    image.SetSpacing(volume.spacing)
    image.SetDirection((affine[:3, :3] / volume.spacing).ravel().tolist())
    image.SetOrigin(affine[:3, 3].tolist())
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as beside:
        sitk.WriteImage(image, str(Path(beside) / path.name))
        for part in sorted(Path(beside).iterdir(), key=lambda file: file.name == path.name):
            os.replace(part, path.parent / part.name)
