"""Drishti-GS1: 101 fundus pictures of one hospital in India, disc and cup by four experts.

The layout is certain: public lists name every file. A soft map holds the share of the experts
who marked a pixel; what at least three of the four marked counts, which is usual for this set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from konsil.data.findings import Findings
from konsil.prepare.importers.base import Case, Importer, Options, Source, refuse_unpaired
from konsil.prepare.importers.pictures import (
    FUNDUS_HEAD,
    FundusCase,
    blaming,
    disc_and_cup,
    read_values,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SITE = "drishti_gs1"
NAME = r"(drishtigs_\d+)"
PART = {"training": "train", "test": "test"}
# Between two of four experts (127 or 128) and three (191); files round differently.
THREE_OF_FOUR = 159
LAYOUT = """
Training/Images/drishtiGS_002.png ...               (perhaps in folders GLAUCOMA and NORMAL)
Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_ODsegSoftmap.png
Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_cupsegSoftmap.png
Test/Images/drishtiGS_001.png ...
Test/Test_GT/drishtiGS_001/SoftMap/drishtiGS_001_{ODseg,cupseg}Softmap.png
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """Images by their names, with the soft maps of disc and cup."""
    found = Findings()
    images = source.named(rf"{NAME}\.(?:png|jpe?g)", found)
    discs = source.named(rf"{NAME}_odsegsoftmap\.png", found)
    cups = source.named(rf"{NAME}_cupsegsoftmap\.png", found)
    if not images or not discs:
        raise source.not_understood("no Drishti-GS1 image or no soft map was found")
    refuse_unpaired(images, discs, found, "soft map of the disc")
    refuse_unpaired(images, cups, found, "soft map of the cup")
    source.refuse_unexplained([*images.values(), *discs.values(), *cups.values()], found)
    found.raise_if_any(source.root)
    parts = source.matching(rf"(training|test)/images/(?:[^/]+/)?{NAME}\.[a-z]+")
    return [
        FundusCase(
            site=SITE,
            name=key,
            part=PART[parts[image].group(1).lower()] if image in parts else "",
            root=source.root,
            image=image,
            mask=partial(_mask, source.root, discs[key], cups[key]),
        )
        for key, image in images.items()
    ]


def _mask(root: Path, disc: str, cup: str) -> tuple[NDArray[np.uint8], str]:
    with blaming(disc):
        agreed_disc = read_values(root / disc) > THREE_OF_FOUR
    with blaming(cup):
        agreed_cup = read_values(root / cup) > THREE_OF_FOUR
        return disc_and_cup(agreed_disc, agreed_cup), ""


IMPORTERS = (
    Importer(
        name="drishti-gs1",
        title="Drishti-GS1, Aravind Eye Hospital and IIIT Hyderabad",
        sites=(SITE,),
        layout=LAYOUT,
        certainty="certain: public lists name every file",
        licence="free for research on request at its home page; no open licence is stated",
        home="https://cvit.iiit.ac.in/projects/mip/drishti-gs/mip-dataset2/Home.php",
        table="FedSM, Table 1",
        paper={SITE: {"images": 101}},
        head=FUNDUS_HEAD,
        find=find,
        differs={SITE: "the published set has 50 training and 51 test images: is a part missing?"},
        options=("splits", "seed", "crop"),
    ),
)
