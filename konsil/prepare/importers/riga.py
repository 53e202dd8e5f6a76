"""RIGA: 750 fundus pictures of three sources, outlined by six ophthalmologists each.

There are no masks: beside every picture (`image1prime`) lie six copies (`image1-1` to `-6`) into
which a grader drew the disc and the cup as two closed lines. The lines are where copy and picture
differ; filled, they are the grader's masks, and what more than half of the graders marked counts. A
grader whose lines are not two closed ones, one inside the other, is left out of that picture and
reported.
"""

from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops

from konsil.prepare.importers.base import Case, LeftOut, LeftOutCase, Options, Source, importer
from konsil.prepare.importers.pictures import FUNDUS_HEAD, FundusCase, Masked

Mask = NDArray[np.bool_]
SITES = {"binrushed": "riga_binrushed", "magrabi": "riga_magrabia", "messidor": "riga_messidor"}
PICTURE = r"((?:binrushed|magrabi|messidor)[^/]*)/image\s*0*(\d+){}\.(?:tiff?|jpe?g|png|bmp)"
GRADERS = "123456"
ENDINGS = {"image": "prime", **{grader: f"-{grader}" for grader in GRADERS}}
CORRECTED = "-corrected"  # BinRushed1-Corrected replaces BinRushed1, which has no prime pictures
DIFFERENT = 30  # grey levels; lines are drawn in a plain colour, compression stays below
BRIDGED = (0, 1, 2)  # pixels by which a line is thickened until it is closed
SHORTEST = 0.01  # of the picture's width; what is smaller is a speck


@importer(
    "riga",
    title="RIGA, retinal fundus images for glaucoma analysis, University of Michigan",
    sites=tuple(SITES.values()),
    layout="""
BinRushed/{BinRushed1-Corrected,BinRushed2,BinRushed3,BinRushed4}/image1prime.jpg
                                                                  image1-1.jpg ... image1-6.jpg
Magrabia/{MagrabiaMale,MagrabiFemale}/image1prime.tif, image1-1.tif ... image1-6.tif
MESSIDOR/image1prime.tif, image1-1.tif ... image1-6.tif
""",
    certainty="certain: several public loaders agree on names and counts",
    licence="CC BY-NC 4.0, as the deposit's metadata say",
    home="https://doi.org/10.7302/Z23R0R29 (Deep Blue Data)",
    table="FedSM, Table 1",
    paper={
        "riga_binrushed": {"images": 195},
        "riga_magrabia": {"images": 94},
        "riga_messidor": {"images": 460},
    },
    differs={
        "riga_binrushed": "the published set has 195 pictures",
        "riga_magrabia": "the published set has 95 pictures, one of them (MagrabiFemale "
        "image48) without a copy free of lines, which leaves the paper's 94",
        "riga_messidor": "the published set has 460 pictures",
    },
    head=FUNDUS_HEAD,
    options=("crop",),
)
def find(source: Source, options: Options) -> list[Case]:
    """Every picture with the copies of its graders; whatever of the three sources is there."""
    pictures: dict[str, dict[str, str]] = {}  # folder_number -> image, 1 ... -> path
    for kind, ending in ENDINGS.items():
        for key, path in source.named(PICTURE.format(ending)).items():
            pictures.setdefault(key, {})[kind] = path
    if not pictures:
        raise source.not_understood("no RIGA picture was found")
    source.refuse_unexplained(path for files in pictures.values() for path in files.values())
    folders = {key.rpartition("_")[0] for key in pictures}
    return [
        _case(source, key, files, f"{key.rpartition('_')[0]}{CORRECTED}" in folders)
        for key, files in pictures.items()
    ]


def _case(source: Source, key: str, files: dict[str, str], replaced: bool) -> Case:
    first = next(iter(files.values()))
    folder, number = PurePosixPath(first).parent.name, key.rpartition("_")[2]
    site = next(site for name, site in SITES.items() if key.startswith(name))
    name = f"{folder}_image{number}"
    if list(files) == ["image"]:
        source.refuse("picture without a grader's copy", first)
    if replaced:
        why = f"the corrected folder replaces {folder}"
    elif "image" not in files:
        why = f"there is no picture without lines (image{number}prime)"
    else:
        return FundusCase(source, site, name, files, _majority)
    return LeftOutCase(source, site, name, {"image": first}, why)


# --- from lines to masks --------------------------------------------------------------------------


def _majority(case: FundusCase) -> Masked:
    """What more than half of the usable graders marked, and who was not usable."""
    picture = case.picture("image").convert("RGB")
    votes = np.zeros((2, picture.height, picture.width), dtype=np.uint8)  # disc and cup
    usable, unusable = 0, [f"grader {g} (no file)" for g in GRADERS if g not in case.files]
    for grader in filter(case.files.get, GRADERS):
        copy = case.picture(grader).convert("RGB")
        try:
            votes += outlined(_lines(picture, copy))
            usable += 1
        except LeftOut as why:
            unusable.append(f"grader {grader} ({why})")
    if not usable:
        raise LeftOut("no grader is usable: " + ", ".join(unusable))
    note = f"without {', '.join(unusable)}: {usable} of 6 graders remain" if unusable else ""
    # As every grader's cup is in the disc, the sum is DISC in the rim and CUP in the cup.
    return (votes > usable // 2).sum(axis=0, dtype=np.uint8), note


def _lines(picture: Image.Image, copy: Image.Image) -> Mask:
    """Where a copy differs from the picture."""
    if copy.size != picture.size:
        raise LeftOut("another size than the picture")
    red, green, blue = ImageChops.difference(picture, copy).split()
    largest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return np.asarray(largest) > DIFFERENT


def outlined(lines: Mask) -> Mask:
    """Disc and cup, [2, H, W], inside two closed lines; LeftOut if there are no such two."""
    if not lines.any():
        raise LeftOut("no line")
    rows, columns = np.flatnonzero(lines.any(axis=1)), np.flatnonzero(lines.any(axis=0))
    margin = max(BRIDGED) + 1
    box = (
        slice(max(rows[0] - margin, 0), rows[-1] + margin + 1),
        slice(max(columns[0] - margin, 0), columns[-1] + margin + 1),
    )
    shortest = max(SHORTEST * lines.shape[1], 4)
    why = ""
    for bridge in BRIDGED:
        closed, broken = _closed(lines[box], bridge, shortest)
        if len(closed) == 2 and not broken:
            break
        why = why or f"{len(closed)} closed and {broken} open lines instead of 2 closed ones"
    else:
        raise LeftOut(why)
    disc, cup = sorted(closed, key=np.count_nonzero, reverse=True)
    if (cup & ~disc).any():
        raise LeftOut("neither line is inside the other")
    both = np.zeros((2, *lines.shape), dtype=np.bool_)
    both[0][box], both[1][box] = disc, cup
    return both


def _closed(lines: Mask, bridge: int, shortest: float) -> tuple[list[Mask], int]:
    """The insides of closed lines with the lines themselves, and the number of open ones."""
    from scipy import ndimage

    thick = ndimage.binary_dilation(lines, iterations=bridge) if bridge else lines
    labels, _ = ndimage.label(thick, structure=np.ones((3, 3)))
    insides, broken = [], 0
    for number, box in enumerate(ndimage.find_objects(labels), start=1):
        line = labels[box] == number
        height, width = (side - 2 * bridge for side in line.shape)
        if max(height, width) < shortest:
            continue  # a speck
        filled = ndimage.binary_fill_holes(line)
        if bridge:
            filled = ndimage.binary_erosion(filled, iterations=bridge)
        enclosed = np.count_nonzero(filled & ~lines[box])
        if enclosed < height * width / 4:  # a round line encloses three quarters of its box
            broken += 1
            continue
        inside = np.zeros_like(lines)
        inside[box] = filled
        insides.append(inside)
    return insides, broken
