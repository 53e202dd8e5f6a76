"""Drishti-GS1: 101 fundus pictures of one hospital in India, disc and cup by four experts.

A soft map holds the share of the experts who marked a pixel; what at least three of the four
marked counts, which is usual for this set.
"""

from konsil.prepare.importers.base import Case, Options, Source, importer
from konsil.prepare.importers.pictures import FUNDUS_HEAD, FundusCase, Masked

SITE = "drishti_gs1"
NAME = r"(drishtigs_\d+)"
PART = {"training": "train", "test": "test"}
# Between two of four experts (127 or 128) and three (191); files round differently.
THREE_OF_FOUR = 159
DISC, CUP = "soft_map_of_the_disc", "soft_map_of_the_cup"


@importer(
    "drishti-gs1",
    title="Drishti-GS1, Aravind Eye Hospital and IIIT Hyderabad",
    sites=(SITE,),
    layout="""
Training/Images/drishtiGS_002.png ...               (perhaps in folders GLAUCOMA and NORMAL)
Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_ODsegSoftmap.png
Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_cupsegSoftmap.png
Test/Images/drishtiGS_001.png ...
Test/Test_GT/drishtiGS_001/SoftMap/drishtiGS_001_{ODseg,cupseg}Softmap.png
""",
    certainty="certain: public lists name every file",
    licence="free for research on request at its home page; no open licence is stated",
    home="https://cvit.iiit.ac.in/projects/mip/drishti-gs/mip-dataset2/Home.php",
    table="FedSM, Table 1",
    paper={SITE: {"images": 101}},
    differs={SITE: "the published set has 50 training and 51 test images: is a part missing?"},
    head=FUNDUS_HEAD,
    options=("splits", "seed", "crop"),
)
def find(source: Source, options: Options) -> list[Case]:
    """Images by their names, with the soft maps of disc and cup."""
    patterns = {
        "image": rf"{NAME}\.(?:png|jpe?g)",
        DISC: rf"{NAME}_odsegsoftmap\.png",
        CUP: rf"{NAME}_cupsegsoftmap\.png",
    }
    files = source.pairs((), **patterns)
    parts = source.matching(rf"(training|test)/images/(?:[^/]+/)?{NAME}\.[a-z]+")
    part = {image: PART[match.group(1).lower()] for image, match in parts.items()}
    return [
        FundusCase(source, SITE, key, own, _mask, part=part.get(own["image"], ""))
        for key, own in files.items()
    ]


def _mask(case: FundusCase) -> Masked:
    disc, cup = (case.values(file) > THREE_OF_FOUR for file in (DISC, CUP))
    return case.disc_and_cup(disc, cup, CUP)
