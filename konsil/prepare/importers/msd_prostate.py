"""Medical Segmentation Decathlon, task 5: prostate zones on T2 and ADC.

The layout is certain: it is that of all tasks of the Decathlon, and dataset.json describes it.
Volumes are 4-D; the T2 channel is taken. 1 is the peripheral and 2 the transition zone; the
prostate is both. The 16 cases of imagesTs have no labels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from konsil.data.findings import Findings
from konsil.prepare.importers.base import Case, Importer, Options, Source, refuse_unpaired
from konsil.prepare.importers.volumes import (
    PROSTATE_HEAD,
    TABLES,
    VolumeCase,
    counted,
    read_scan,
    why,
)

SITE = "msd"
ZONES = (1, 2)  # peripheral, transition
PAPER, RECIPE = (32, 864), (32, 475)
LAYOUT = """
Task05_Prostate/dataset.json
Task05_Prostate/imagesTr/prostate_00.nii.gz ...   (T2 and ADC in one file)
Task05_Prostate/labelsTr/prostate_00.nii.gz ...
Task05_Prostate/imagesTs/...                      (without labels: not looked at)
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """Images and labels by their names."""
    found = Findings()
    images = source.named(r"imagesTr/(prostate_\d+)\.nii(?:\.gz)?", found)
    masks = source.named(r"labelsTr/(prostate_\d+)\.nii(?:\.gz)?", found)
    if not images or not masks:
        raise source.not_understood("no imagesTr/prostate_*.nii.gz, or no labelsTr/prostate_*")
    refuse_unpaired(images, masks, found)
    channel = _t2(source, found)
    found.raise_if_any(source.root)
    return [
        VolumeCase(
            site=SITE,
            name=key,
            image=image,
            read=partial(read_scan, source.root, image, masks[key], channel, ZONES),
        )
        for key, image in images.items()
    ]


def _t2(source: Source, found: Findings) -> int:
    """Which channel is T2, as dataset.json says; the first if it is not there."""
    for name in source.matching(r"dataset\.json"):
        try:
            modality = json.loads((source.root / name).read_text(encoding="utf-8"))["modality"]
            return next(int(number) for number, kind in modality.items() if kind == "T2")
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            cure = "unpack Task05_Prostate.tar again, or take the file away (T2 is channel 0)"
            found.add("dataset.json that names no T2 channel", name, cure)
    return 0


IMPORTERS = (
    Importer(
        name="msd-prostate",
        title="Medical Segmentation Decathlon, task 5, prostate",
        sites=(SITE,),
        layout=LAYOUT,
        certainty="certain",
        licence="CC BY-SA 4.0, as far as we know; dataset.json states it",
        home="http://medicaldecathlon.com",
        table=TABLES,
        paper={SITE: counted(*PAPER)},
        head=PROSTATE_HEAD,
        find=find,
        differs={SITE: why(PAPER, RECIPE)},
    ),
)
