"""What people call their folders and files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from konsil.data.listing import PARTS

Role = Literal["image", "mask", "split", ""]


def these(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


IMAGES = these(
    "image images img imgs im scan scans picture pictures photo photos original originals raw "
    "volume volumes input inputs t1 t1w t2 t2w flair adc dwi pd mr mri ct imagestr jpegimages "
    "dicom dcm nifti"
)
MASKS = these(
    "mask masks label labels labelmap labelmaps labelstr seg segs segm segmentation segmentations "
    "segmented gt gts truth groundtruth annotation annotations annotated annot delineation "
    "delineations contour contours roi rois"
)
UNLABELLED = frozenset(["imagests"])  # nnU-Net and the Decathlon: a test part without labels
SITES = these(
    "site center centre hospital clinic client institution institute vendor scanner domain"
)
RATERS = these("expert rater reader observer annotator grader ophthalmologist")
# Optic disc and cup. OD is also a right eye: only where OC is beside it does it mean the disc.
OPTIC = {"od": "disc", "disc": "disc", "oc": "cup", "cup": "cup"}
# The last class is the positive one, so these go first.
NEGATIVE = these(
    "normal healthy negative neg control controls benign no non none without background 0"
)


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


def says_mask(name: str) -> bool:
    """Whether a name says that masks are meant."""
    return joined(name) in MASKS or any(word in MASKS for word in words(name))


def discs_and_cups(stems: Iterable[str]) -> set[str]:
    """The names that end in disc and in cup, or in OD and in OC, and are otherwise the same."""
    pairs: dict[str, dict[str, str]] = defaultdict(dict)
    for stem in stems:
        ending = re.fullmatch(r"(.+)[-_ .]([A-Za-z]+)", stem)
        if ending and ending[2].lower() in OPTIC:
            pairs[ending[1]][OPTIC[ending[2].lower()]] = stem
    return {stem for pair in pairs.values() if len(pair) == 2 for stem in pair.values()}


@lru_cache(maxsize=65536)
def role_of(folder: str, depth: int = 1) -> Role:
    """What a folder's name says about what is in it.

    At the top (depth 0) a word among others does not make a folder of images: `MRI North` is
    more likely a site.
    """
    if says_mask(folder):
        return "mask"
    if joined(folder) in PARTS:
        return "split"
    if joined(folder) in IMAGES | UNLABELLED:
        return "image"
    named = words(folder)
    return "image" if depth and named and named[0] in IMAGES else ""


def preference(name: str) -> tuple[int, str]:
    """Of several images of one patient, which is meant: T2 first, then what is called an image."""
    named = {*words(name), joined(name)}
    if named & {"t2", "t2w"}:
        return 0, name
    return (1 if named & IMAGES or name.endswith("0000") else 2), name


def skeleton(name: str) -> str:
    """A name with its numbers taken out."""
    return re.sub(r"\d+", "#", name)


def class_order(names: set[str]) -> list[str]:
    """Classes with the negative ones first."""
    return sorted(names, key=lambda name: (not NEGATIVE & set(words(name)), name))
