"""Writers of small volumes, with the real libraries and without Konsil's own writer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import highdicom
import nibabel
import numpy as np
import SimpleITK as sitk
from PIL import Image
from pydicom import Dataset, dcmread
from pydicom.dataset import FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.uid import (
    EnhancedMRImageStorage,
    ExplicitVRLittleEndian,
    MRImageStorage,
    generate_uid,
)

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
PATIENT = "Doe^Jane", "4711-secret"  # must never appear in a message
WORLD = (4, 5, 6)  # voxels to the right, to the front, to the head
SPACING = (0.5, 1.25, 3.0)


def grid(
    axes: Sequence[int] = (0, 1, 2),
    signs: Sequence[int] = (1, 1, 1),
    turn: float = 0.0,
    corner: Sequence[float] = (-7.0, 11.0, 23.0),
) -> tuple[tuple[int, int, int], np.ndarray]:
    """Shape and affine of a grid over the box `WORLD`: voxel axis a runs along world axis axes[a],
    backwards where signs[a] is -1; `turn` degrees about an oblique line.
    """
    affine = np.eye(4)
    affine[:3, 3] = corner
    affine[:3, :3] = 0
    for a, (w, sign) in enumerate(zip(axes, signs, strict=True)):
        affine[w, a] = sign * SPACING[w]
        if sign < 0:
            affine[w, 3] += (WORLD[w] - 1) * SPACING[w]
    return tuple(WORLD[w] for w in axes), _rotation(turn) @ affine  # type: ignore[return-value]


def _rotation(degrees: float) -> np.ndarray:
    """About the line through (1, 2, 2), by Rodrigues' formula."""
    x, y, z = 1 / 3, 2 / 3, 2 / 3
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.deg2rad(degrees)
    rotation = np.eye(4)
    rotation[:3, :3] += np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return rotation


def noise(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, shape).astype(np.uint16)


def write_nifti(path: Path, array: np.ndarray, affine: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, affine), path)
    return path


def write_itk(path: Path, array: np.ndarray, affine: np.ndarray, compress: bool = False) -> Path:
    """MetaImage or NRRD, by the suffix; a fourth axis holds the components of a voxel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = (2, 1, 0, 3)[: array.ndim]
    image = sitk.GetImageFromArray(np.ascontiguousarray(array.transpose(axes)), array.ndim == 4)
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection(((LPS @ affine)[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin((LPS @ affine)[:3, 3].tolist())
    sitk.WriteImage(image, str(path), compress)
    return path


# --- DICOM --------------------------------------------------------------------------------------


def dicom_slice(pixels: np.ndarray, affine: np.ndarray | None, **attributes: Any) -> Dataset:
    """A file in memory: pixels [column, row(, 3)], or [column, row, frame]; the affine of its
    plane.
    """
    colour = pixels.ndim == 3 and pixels.shape[2] == 3
    frames = 1 if pixels.ndim == 2 or colour else pixels.shape[2]
    stored = pixels.transpose((1, 0, 2)[: pixels.ndim] if frames == 1 else (2, 1, 0))
    data = Dataset()
    data.SOPClassUID = attributes.pop("SOPClassUID", MRImageStorage)
    data.SOPInstanceUID = generate_uid()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.PatientName, data.PatientID = PATIENT
    data.PatientBirthDate = data.PatientSex = data.StudyDate = data.StudyTime = ""
    data.AccessionNumber = data.StudyID = data.ReferringPhysicianName = ""
    data.StudyInstanceUID, data.SeriesInstanceUID = generate_uid(), generate_uid()
    data.FrameOfReferenceUID = generate_uid()
    data.Modality, data.SeriesNumber, data.InstanceNumber = "MR", 1, 1
    data.Columns, data.Rows = pixels.shape[:2]
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        data.PlanarConfiguration = 0
    if frames > 1:
        data.NumberOfFrames = frames
    data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    data.PixelData = np.ascontiguousarray(stored).tobytes()
    if affine is not None:
        for name, value in _place(affine).items():
            setattr(data, name, value)
    for name, value in attributes.items():
        setattr(data, name, value)
    return data


def _place(affine: np.ndarray) -> dict[str, Any]:
    lps = LPS @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    along = (lps[:3, :2] / spacing[:2]).T.ravel()
    return {
        "ImagePositionPatient": [f"{x:.10g}" for x in lps[:3, 3]],
        "ImageOrientationPatient": [f"{x:.10g}" for x in along],
        "PixelSpacing": [f"{spacing[1]:.10g}", f"{spacing[0]:.10g}"],
        "SliceThickness": f"{spacing[2]:.10g}",
    }


def save_dicom(path: Path, data: Dataset) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def write_series(
    folder: Path,
    array: np.ndarray,
    affine: np.ndarray,
    description: str = "T2 axial",
    name: str = "IM{:03d}.dcm",
    change: Callable[[int, Dataset], Any] = lambda k, data: None,
    **attributes: Any,
) -> Path:
    """One file a slice, [i, j, k(, 3)]. Names count backwards, instance numbers forwards from 1:
    neither says where a slice lies. `change` may edit slice k.
    """
    shared = {
        "SeriesInstanceUID": generate_uid(),
        "StudyInstanceUID": generate_uid(),
        "FrameOfReferenceUID": generate_uid(),
        "SeriesDescription": description,
        **attributes,
    }
    for k in range(array.shape[2]):
        plane = affine.copy()
        plane[:3, 3] += k * affine[:3, 2]
        data = dicom_slice(array[:, :, k], plane, InstanceNumber=k + 1, **shared)
        change(k, data)
        save_dicom(folder / name.format(array.shape[2] - k), data)
    return folder


def write_multiframe(
    path: Path, array: np.ndarray, affine: np.ndarray, order: Sequence[int] | None = None
) -> Path:
    """An enhanced file: every frame has its own position, frames stored in any order."""
    order = order or range(array.shape[2])
    data = dicom_slice(array[:, :, list(order)], None, SOPClassUID=EnhancedMRImageStorage)
    data.SeriesDescription = "enhanced"
    place = _place(affine)
    shared = Dataset()
    shared.PlaneOrientationSequence = [
        _dataset(ImageOrientationPatient=place["ImageOrientationPatient"])
    ]
    shared.PixelMeasuresSequence = [
        _dataset(PixelSpacing=place["PixelSpacing"], SliceThickness=place["SliceThickness"])
    ]
    data.SharedFunctionalGroupsSequence = [shared]
    data.PerFrameFunctionalGroupsSequence = []
    for k in order:
        plane = affine.copy()
        plane[:3, 3] += k * affine[:3, 2]
        position = _dataset(ImagePositionPatient=_place(plane)["ImagePositionPatient"])
        data.PerFrameFunctionalGroupsSequence.append(_dataset(PlanePositionSequence=[position]))
    return save_dicom(path, data)


def _dataset(**attributes: Any) -> Dataset:
    data = Dataset()
    for name, value in attributes.items():
        setattr(data, name, value)
    return data


def write_segmentation(
    path: Path, series: Path, segments: Mapping[int, np.ndarray], kind: str = "BINARY"
) -> Path:
    """A DICOM SEG by highdicom of segments [i, j, k] numbered from 1, k in the order of the
    instance numbers; it leaves out empty frames.
    """
    images = sorted(map(dcmread, series.iterdir()), key=lambda data: data.InstanceNumber)
    masks = np.stack([segments[n].transpose(2, 1, 0) for n in sorted(segments)], axis=-1)
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name="test", version="1", family=codes.cid7162.ArtificialIntelligence
    )
    descriptions = [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=f"segment {number}",
            segmented_property_category=codes.SCT.Organ,
            segmented_property_type=codes.SCT.Prostate,
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        for number in sorted(segments)
    ]
    if kind == "LABELMAP":
        masks = np.max(masks * np.array(sorted(segments)), axis=-1)
    segmentation = highdicom.seg.Segmentation(
        source_images=images,
        pixel_array=masks.astype(np.float32 if kind == "FRACTIONAL" else np.uint8),
        segmentation_type=kind,
        segment_descriptions=descriptions,
        series_instance_uid=generate_uid(),
        series_number=2,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="test",
        manufacturer_model_name="test",
        software_versions="1",
        device_serial_number="1",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    segmentation.save_as(path)
    return path


def write_pictures(folder: Path, mask: np.ndarray, name: Callable[[int], str]) -> Path:
    """A PNG for every slice of [i, j, k]."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(mask.shape[2]):
        Image.fromarray(mask[:, :, k].T.astype(np.uint8)).save(folder / name(k))
    return folder
