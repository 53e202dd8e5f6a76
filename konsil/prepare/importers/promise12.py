"""PROMISE12 (MICCAI 2012): whole prostates from four centres, MetaImage.

The layout is certain. The challenge does not say which case is from which centre. `centres` uses
the blocks of cases that public code of two groups agrees on (ETH Zurich's lists all four centres;
the file names of Liu et al.'s multi-site collection are the same 12 BIDMC cases); matrix sizes and
coils agree with them. The first of them notes that the 13 cases of RUNMC overlap with NCI-ISBI 3T,
which comes from the same hospital.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from konsil.data.findings import Findings
from konsil.prepare.importers.base import Case, Importer, Options, Source
from konsil.prepare.importers.volumes import (
    PROSTATE_HEAD,
    TABLES,
    VolumeCase,
    counted,
    read_scan,
    why,
)

SITE = "promise12"
CENTRES = {
    "bidmc": (0, *range(2, 13)),
    "hk": range(38, 50),
    "runmc": range(13, 26),
    "ucl": (1, *range(26, 38)),
}
PAPER, RECIPE = (50, 1227), (50, 778)
LAYOUT = """
TrainingData_Part1/Case00.mhd, Case00.raw, Case00_segmentation.mhd, Case00_segmentation.raw ...
TrainingData_Part2/, TrainingData_Part3/ likewise   (or all in one folder)
TestData/Case00.mhd ...   (without segmentations: folders named test are not looked at)
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """A case is an image with its segmentation beside it."""
    found = Findings()
    files = [name for name in source.files if "test" not in name.rpartition("/")[0].lower()]
    masks = source.matching(r"(case\d\d)_segmentation\.(mhd|mha)", files)
    images = source.matching(r"(case\d\d)\.(?:mhd|mha)", files)
    if not images or not masks:
        raise source.not_understood("no Case00.mhd, or no Case00_segmentation.mhd")
    pairs = {mask: _beside(mask) for mask in masks}
    cure = "unpack the three training parts again, or take the file away"
    for image in sorted(images.keys() - pairs.values()):
        found.add("image without a segmentation", image, cure)
    for mask, image in pairs.items():
        if image not in images:
            found.add("segmentation without an image", mask, cure)
    found.raise_if_any(source.root)
    return [
        VolumeCase(
            site=_site(images[image].group(1), options),
            name=images[image].group(1).capitalize(),
            image=image,
            read=partial(read_scan, source.root, image, mask, None, (1,)),
        )
        for mask, image in pairs.items()
    ]


def _beside(mask: str) -> str:
    """The image's path: the mask's without _segmentation."""
    folder, slash, name = mask.rpartition("/")
    return f"{folder}{slash}{name[: len('Case00')]}{name[-len('.mhd') :]}"


def _site(case: str, options: Options) -> str:
    number = int(case[-2:])
    centres = [centre for centre, numbers in CENTRES.items() if number in numbers]
    return f"{SITE}_{centres[0]}" if options.centres and centres else SITE


IMPORTERS = (
    Importer(
        name="promise12",
        title="PROMISE12, Prostate MR Image Segmentation",
        sites=(SITE, *(f"{SITE}_{centre}" for centre in CENTRES)),
        layout=LAYOUT,
        certainty="certain; the centres are inferred, not published",
        licence="the challenge's terms, read them there; registration needed",
        home="https://promise12.grand-challenge.org",
        table=TABLES,
        paper={SITE: counted(*PAPER)},
        head=PROSTATE_HEAD,
        find=find,
        differs={SITE: why(PAPER, RECIPE)},
        options=("centres",),
    ),
)
