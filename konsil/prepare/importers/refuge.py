"""REFUGE (MICCAI 2018): 1,200 fundus pictures of two cameras, with disc and cup.

The layout is certain: lists of its files in public code agree with the challenge's archives.
A file's first letter says the part: g and n (glaucoma or not) train, V val, T test. The masks of
the test part lie in further folders G and N. Folders around the files differ between the original
archives and REFUGE2's, so only the names of the files are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from konsil.data.findings import Findings
from konsil.prepare.importers.base import Case, Importer, Options, Source, refuse_unpaired
from konsil.prepare.importers.pictures import (
    CUP,
    DISC,
    FUNDUS_HEAD,
    FundusCase,
    blaming,
    read_values,
    recode,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SITE = "refuge"
PARTS = {"g": "train", "n": "train", "v": "val", "t": "test"}
LAYOUT = """
Training400/{Glaucoma,Non-Glaucoma}/g0001.jpg, n0001.jpg ...
Annotation-Training400/Disc_Cup_Masks/{Glaucoma,Non-Glaucoma}/g0001.bmp, n0001.bmp ...
REFUGE-Validation400/V0001.jpg ...
REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp ...
Test400/T0001.jpg ...
REFUGE-Test-GT/Disc_Cup_Masks/{G,N}/T0001.bmp ...
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """Images and masks by their names."""
    found = Findings()
    images = source.named(r"([gntv]\d{4})\.jpg", found)
    masks = source.named(r"([gntv]\d{4})\.bmp", found)
    if not images or not masks:
        raise source.not_understood("no REFUGE image or no mask was found")
    refuse_unpaired(images, masks, found)
    source.refuse_unexplained([*images.values(), *masks.values()], found)
    found.raise_if_any(source.root)
    return [
        FundusCase(
            site=SITE,
            name=key,
            part=PARTS[key[0]],
            root=source.root,
            image=image,
            mask=partial(_mask, source.root, masks[key]),
        )
        for key, image in images.items()
    ]


def _mask(root: Path, name: str) -> tuple[NDArray[np.uint8], str]:
    with blaming(name):
        stated = "0 (cup), 128 (rim of the disc) and 255 (background)"
        return recode(read_values(root / name), {0: CUP, 128: DISC, 255: 0}, stated), ""


IMPORTERS = (
    Importer(
        name="refuge",
        title="REFUGE, Retinal Fundus Glaucoma Challenge",
        sites=(SITE,),
        layout=LAYOUT,
        certainty="certain; the masks' values and folders are as public lists of the files say",
        licence="the challenge's terms, agreed to at registration; we found no open licence stated",
        home="https://refuge.grand-challenge.org (REFUGE2's download holds all three parts)",
        table="FedSM, Table 1",
        paper={SITE: {"images": 800, "train": 400, "val": 200, "test": 200}},
        head=FUNDUS_HEAD,
        find=find,
        differs={
            SITE: "the paper has 400 / 200 / 200 of the 1,200 images; which, it does not say "
            "(400 / 400 / 400 are published; 800 are the training and validation parts)"
        },
        options=("splits", "seed", "crop"),
    ),
)
