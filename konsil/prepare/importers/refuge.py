"""REFUGE (MICCAI 2018): 1,200 fundus pictures of two cameras, with disc and cup.

A file's first letter says the part: g and n (glaucoma or not) train, V val, T test. The masks of
the test part lie in further folders G and N. Folders around the files differ between the original
archives and REFUGE2's, so only the names of the files are used.
"""

import numpy as np

from konsil.data.findings import BadFile
from konsil.prepare.importers.base import Case, Options, Source, importer
from konsil.prepare.importers.pictures import CUP, DISC, FUNDUS_HEAD, FundusCase, Masked

SITE = "refuge"
PARTS = {"g": "train", "n": "train", "v": "val", "t": "test"}
VALUES = {0: CUP, 128: DISC, 255: 0}
UNKNOWN = 255
TABLE = np.array([VALUES.get(value, UNKNOWN) for value in range(256)], dtype=np.uint8)


@importer(
    "refuge",
    title="REFUGE, Retinal Fundus Glaucoma Challenge",
    sites=(SITE,),
    layout="""
Training400/{Glaucoma,Non-Glaucoma}/g0001.jpg, n0001.jpg ...
Annotation-Training400/Disc_Cup_Masks/{Glaucoma,Non-Glaucoma}/g0001.bmp, n0001.bmp ...
REFUGE-Validation400/V0001.jpg ...
REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp ...
Test400/T0001.jpg ...
REFUGE-Test-GT/Disc_Cup_Masks/{G,N}/T0001.bmp ...
""",
    certainty="certain; the masks' values and folders are as public lists of the files say",
    licence="the challenge's terms, agreed to at registration; we found no open licence stated",
    home="https://refuge.grand-challenge.org (REFUGE2's download holds all three parts)",
    table="FedSM, Table 1",
    paper={SITE: {"images": 800, "train": 400, "val": 200, "test": 200}},
    differs={
        SITE: "the paper has 400 / 200 / 200 of the 1,200 images; which, it does not say "
        "(400 / 400 / 400 are published; 800 are the training and validation parts)"
    },
    head=FUNDUS_HEAD,
    options=("splits", "seed", "crop"),
)
def find(source: Source, options: Options) -> list[Case]:
    """Images and masks by their names."""
    files = source.pairs((), image=r"([gntv]\d{4})\.jpg", mask=r"([gntv]\d{4})\.bmp")
    return [
        FundusCase(source, SITE, key, own, _mask, part=PARTS[key[0]]) for key, own in files.items()
    ]


def _mask(case: FundusCase) -> Masked:
    values = case.values("mask")
    mask = TABLE.take(values)  # twice as fast as TABLE[values]
    if mask.max() == UNKNOWN:
        strange = sorted(set(np.unique(values).tolist()) - set(VALUES))
        raise BadFile(
            "mask with values that the data set does not know",
            "masks of this data set hold 0 (cup), 128 (rim of the disc) and 255 (background); get "
            "the file again (JPEG changes values)",
            f"{case.files['mask']}: {', '.join(map(str, strange[:5]))}",
        )
    return mask, ""
