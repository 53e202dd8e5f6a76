"""PROMISE12 (MICCAI 2012): whole prostates from four centres, MetaImage.

The challenge does not say which case is from which centre. `centres` uses the blocks of cases that
public code of two groups agrees on (ETH Zurich's lists all four centres; the file names of Liu et
al.'s multi-site collection are the same 12 BIDMC cases); matrix sizes and coils agree with them.
The first of them notes that the 13 cases of RUNMC overlap with NCI-ISBI 3T, which comes from the
same hospital.
"""

from functools import partial

from konsil.prepare.importers.base import Case, Options, Source, importer
from konsil.prepare.importers.volumes import VolumeCase, prostate, read_scan

SITE = "promise12"
CENTRES = {
    "bidmc": (0, *range(2, 13)),
    "hk": range(38, 50),
    "runmc": range(13, 26),
    "ucl": (1, *range(26, 38)),
}


@importer(
    "promise12",
    title="PROMISE12, Prostate MR Image Segmentation",
    sites=(SITE, *(f"{SITE}_{centre}" for centre in CENTRES)),
    layout="""
TrainingData_Part1/Case00.mhd, Case00.raw, Case00_segmentation.mhd, Case00_segmentation.raw ...
TrainingData_Part2/, TrainingData_Part3/ likewise   (or all in one folder)
TestData/Case00.mhd ...   (without segmentations: folders named test are not looked at)
""",
    certainty="certain; the centres are inferred, not published",
    licence="the challenge's terms, read them there; registration needed",
    home="https://promise12.grand-challenge.org",
    options=("centres",),
    **prostate(SITE, (50, 1227), (50, 778)),
)
def find(source: Source, options: Options) -> list[Case]:
    """A case is an image with its segmentation; the test part has none."""
    files = [name for name in source.files if "test" not in name.rpartition("/")[0].lower()]
    images = source.named(r"(case\d\d)\.(?:mhd|mha)", files)
    masks = source.named(r"(case\d\d)_segmentation\.(?:mhd|mha)", files)
    centre = {number: f"_{name}" for name, block in CENTRES.items() for number in block}
    read = partial(read_scan, allowed=(1,))
    cases: list[Case] = []
    for key, own in source.pairs(image=images, mask=masks).items():
        site = SITE + (centre.get(int(key[-2:]), "") if options.centres else "")
        cases.append(VolumeCase(source, site, key.capitalize(), own, read))
    return cases
