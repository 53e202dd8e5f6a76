"""Medical Segmentation Decathlon, task 5: prostate zones on T2 and ADC.

The layout is that of all tasks of the Decathlon, and dataset.json describes it. Volumes are 4-D;
the T2 channel is taken. The prostate is both zones. The 16 cases of imagesTs have no labels.
"""

import json
from functools import partial

from konsil.prepare.importers.base import Case, Options, Source, importer
from konsil.prepare.importers.volumes import VolumeCase, prostate, read_scan

SITE = "msd"
ZONES = (1, 2)  # peripheral, transition


@importer(
    "msd-prostate",
    title="Medical Segmentation Decathlon, task 5, prostate",
    sites=(SITE,),
    layout="""
Task05_Prostate/dataset.json
Task05_Prostate/imagesTr/prostate_00.nii.gz ...   (T2 and ADC in one file)
Task05_Prostate/labelsTr/prostate_00.nii.gz ...
Task05_Prostate/imagesTs/...                      (without labels: not looked at)
""",
    certainty="certain",
    licence="CC BY-SA 4.0, as far as we know; dataset.json states it",
    home="http://medicaldecathlon.com",
    **prostate(SITE, (32, 864), (32, 475)),
)
def find(source: Source, options: Options) -> list[Case]:
    """Images and labels by their names."""
    name = r"(prostate_\d+)\.nii(?:\.gz)?"
    files = source.pairs(image=f"imagesTr/{name}", mask=f"labelsTr/{name}")
    read = partial(read_scan, channel=_t2(source), allowed=ZONES)
    return [VolumeCase(source, SITE, key, own, read) for key, own in files.items()]


def _t2(source: Source) -> int:
    """Which channel is T2, as dataset.json says; the first if it is not there."""
    for name in source.matching(r"dataset\.json"):
        try:
            modality = json.loads((source.root / name).read_text(encoding="utf-8"))["modality"]
            return next(int(number) for number, kind in modality.items() if kind == "T2")
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            cure = "unpack Task05_Prostate.tar again, or take the file away (T2 is channel 0)"
            source.refuse("dataset.json that names no T2 channel", name, cure)
    return 0
