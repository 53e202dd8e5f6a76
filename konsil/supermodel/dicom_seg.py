"""A mask as a DICOM SEG object beside the images it was drawn on, written by highdicom.

Every structure is a segment of its own, so that structures may overlap. The object has the
patient and the study of its images; its own UIDs and times are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.volumes.dicom import ordered_slices
from konsil.data.volumes.headers import Slice
from konsil.errors import DataError
from konsil.files import replacing
from konsil.version import __version__

if TYPE_CHECKING:
    from pydicom import Dataset

    from konsil.supermodel.predict import Prediction

SERIES_NUMBER = 700  # of our own; images of a study seldom have one as high
# of patient, study and series: a file without them is read all the same, an object has them empty
USUAL = (
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID",
    "StudyDate", "StudyTime", "ReferringPhysicianName", "PositionReferenceIndicator",
)  # fmt: skip


def write_dicom_seg(prediction: Prediction, path: Path, source: Path) -> None:
    """Write a prediction of a DICOM file or series as a DICOM SEG, whole or not at all."""
    import highdicom
    from pydicom.uid import ExplicitVRLittleEndian

    slices = ordered_slices(source, prediction.opened.series)
    images = _images(slices)
    try:
        found = highdicom.seg.Segmentation(
            source_images=images,
            pixel_array=_frames(prediction.structure_volumes(), slices, images),
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=_descriptions(prediction.facts.labels),
            series_instance_uid=highdicom.UID(),
            series_number=SERIES_NUMBER,
            sop_instance_uid=highdicom.UID(),
            instance_number=1,
            manufacturer="Konsil",
            manufacturer_model_name="Konsil super model",
            software_versions=__version__,
            device_serial_number=prediction.facts.plan or "0",
            content_label="KONSIL",
            content_description="by a super model, for research",
            series_description="Segmentation by Konsil",
            transfer_syntax_uid=ExplicitVRLittleEndian,
            omit_empty_frames=True,
        )
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{source}: its headers do not say what a DICOM SEG needs ({error}); convert the "
            "series to NIfTI for a mask as NIfTI"
        ) from None
    with replacing(path) as file:
        found.save_as(file, enforce_file_format=True)


def _images(slices: list[Slice]) -> Sequence[Dataset]:
    """The images' own headers, in the order of the slices; one if they are frames of it."""
    from pydicom import dcmread

    files = list(dict.fromkeys(one.path for one in slices))
    images = [dcmread(file) for file in files]
    for image in images:
        for name in USUAL:
            if name not in image:
                setattr(image, name, "")
        if not image.get("FrameOfReferenceUID"):
            raise DataError(
                f"{files[0].name}: without a frame of reference nobody can say where a DICOM SEG "
                "lies; convert it to NIfTI for a mask as NIfTI"
            )
    return images


def _frames(
    masks: NDArray[np.bool_], slices: list[Slice], images: Sequence[Dataset]
) -> NDArray[np.uint8]:
    """[frames, rows, columns, segments] in the order of the images, of [segments, i, j, k]."""
    frames = masks.transpose(3, 2, 1, 0).astype(np.uint8)
    if len(images) == len(slices):
        return frames
    order = np.argsort([one.frame for one in slices])
    return frames[order]


def _descriptions(labels: list[str]) -> list[Any]:
    import highdicom
    from pydicom.sr.codedict import codes

    anything = codes.SCT.Tissue, codes.SCT.Tissue
    known = {"prostate": (codes.SCT.AnatomicalStructure, codes.SCT.Prostate)}  # certain by its name
    kinds = [known.get(label, anything) for label in labels]
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name="Konsil super model",
        version=__version__,
        family=codes.cid7162.ArtificialIntelligence,
    )
    return [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=label[:64],
            segmented_property_category=category,
            segmented_property_type=kind,
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        for number, (label, (category, kind)) in enumerate(zip(labels, kinds, strict=True), 1)
    ]
