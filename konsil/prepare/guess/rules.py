"""What people call their folders, files and columns: one table, and a question for each role.

A further layout is one more row, or one more word in a row. `tests/prepare/test_guess.py` holds
every row to its example.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from konsil.data.listing import PARTS


class Rule(NamedTuple):
    """Words that say what a folder, a file or a column is for."""

    words: str
    role: str
    example: str


RULES = (
    # folders and files
    Rule("image images img imgs im imagestr jpegimages", "image", "north/images/c01.png"),
    Rule("scan scans picture pictures photo photos volume volumes", "image", "north/Scans/1.png"),
    Rule("original originals raw input inputs", "image", "north/original/c01.png"),
    Rule("t1 t1w t2 t2w flair adc dwi pd mr mri ct", "image", "north/P01/T2.nrrd"),
    Rule("dicom dcm nifti", "image", "north/DICOM/P01/001.dcm"),
    Rule("mask masks roi rois contour contours", "mask", "north/c01_mask.png"),
    Rule("label labels labelmap labelmaps labelstr", "mask", "labelsTr/P01.nii.gz"),
    Rule("seg segs segm segmentation segmentations segmented", "mask", "north/P01/P01_seg.nii"),
    Rule("gt gts truth groundtruth", "mask", "north/Ground_Truth/c01.bmp"),
    Rule("annotation annotations annotated annot", "mask", "north/annotations/c01.png"),
    Rule("delineation delineations", "mask", "north/delineations/c01.png"),
    Rule("disc disk cup", "mask at the end of a file", "north/c01_disc.png"),
    Rule("imagests", "unlabelled", "imagesTs/prostate_09.nii.gz"),  # a challenge's test part
    Rule(" ".join(PARTS), "split", "north/training/images/c01.png"),
    Rule("normal healthy negative neg control controls benign", "negative", "north/normal/1.png"),
    Rule("no non none without background 0", "negative", "north/no tumour/1.png"),
    # folders and columns of a CSV
    Rule("site center centre hospital clinic client", "site", "Center 3/images/c01.png"),
    Rule("institution institute vendor domain", "site", "vendor_A/P01/T2.nii.gz"),
    # columns
    Rule("patient patientid patientname subject subjectid pid mrn", "patient", "PatientID"),
    Rule("label class target y category grade outcome", "class", "label"),
    Rule("diagnosis dx disease tumor tumour glaucoma malignant malignancy", "class", "diagnosis"),
)
# Group 1 is the patient. Tried in this order: names that say what they are before bare numbers.
PATIENTS = (
    (r"^(sub-[A-Za-z0-9]+)_", "sub-01_ses-2_T2w"),  # BIDS
    (r"^(TCGA-\w{2}-\w{4})", "TCGA-CS-4941_19960909_11"),
    (r"^((?:[Pp]atient|[Pp]at|[Ss]ubject|[Ss]ubj)[-_ ]?\d+)[-_ ]", "patient_003_node_1"),
    (
        r"^(.+?)[-_ ](?:visit|ses|session|scan|study|exam|timepoint|tp|series)[-_ ]?\d+",
        "P1_visit2_ax",
    ),
    (r"^(.+?)[-_ ]?(?:OD|OS|od|os|[Ll]eft|[Rr]ight|L|R)$", "017OD"),  # both eyes
    (
        r"^(.+)[-_ ](?:slice|sl|s|z|frame|f|image|img|im|view|patch|tile)[-_ ]?\d+$",
        "P1_slice012",
    ),
    (r"^(.+)_\d+$", "anna_01"),
    (r"^(.+)-\d+$", "Case02-1"),
    (r"^([A-Za-z]*\d+)[-_ ]", "P1_ax"),
)

Role = Literal["image", "mask", "unlabelled", "split", ""]


@lru_cache
def called(role: str) -> frozenset[str]:
    """The words of a role."""
    return frozenset(word for rule in RULES if rule.role == role for word in rule.words.split())


@lru_cache(maxsize=65536)
def words(name: str) -> tuple[str, ...]:
    """The words of a name in small letters: parts between separators, and CamelCase apart."""
    found = []
    for part in re.findall(r"[A-Za-z0-9]+", name):
        camel = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", part)
        found += [part.lower(), *(piece.lower() for piece in camel if len(camel) > 1)]
    return tuple(found)


def joined(name: str) -> str:
    """A name as one word: `Ground_Truth` is `groundtruth`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def says(role: str, name: str) -> bool:
    """Whether a name has a word of this role, or is one."""
    return joined(name) in called(role) or not called(role).isdisjoint(words(name))


@lru_cache(maxsize=65536)
def role_of(folder: str, depth: int = 1) -> Role:
    """What a folder's name says about what is in it.

    At the top (depth 0) a word among others does not make a folder of images: `MRI North` is
    more likely a site.
    """
    if says("mask", folder):
        return "mask"
    whole: tuple[Role, ...] = ("split", "unlabelled", "image")
    for role in whole:
        if joined(folder) in called(role):
            return role
    return "image" if depth and words(folder)[:1] and words(folder)[0] in called("image") else ""


def class_order(names: set[str]) -> list[str]:
    """Classes with the negative ones first: the last is the positive one."""
    return sorted(names, key=lambda name: (not says("negative", name), name))
