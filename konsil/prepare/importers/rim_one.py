"""RIM-ONE: pictures around the optic disc from Spanish hospitals, in four releases.

Which release it is shows from the names of the files. Releases 3 and DL have disc and cup; releases
1 and 2 outline the disc alone, so they make a federation of their own. DL unites the others'
pictures after a review: importing several would hold pictures twice.

How certain the layouts are: 3 and DL certain (public lists and loaders, the owners' read-me); 2
fairly (three public readers agree on the text files); 1 less (names of the five experts' masks and
of the folders occur in public code, the place of the masks does not, so any is accepted).
The stereo pictures of release 3 hold two views side by side; the masks belong to the left one.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from konsil.data.findings import BadFile
from konsil.prepare.importers.base import Case, Head, Options, Source, importer
from konsil.prepare.importers.pictures import DISC, FUNDUS_HEAD, FundusCase, Masked

SITE = "rim_one"
DISC_HEAD = {"task": "segmentation", "structures": {"disc": [DISC]}, "channels": 3}
# What only this release has.
SIGNS = {
    "r1": r"im\d+-exp\d\.(?:bmp|png|jpg)",
    "r2": r"im\d+-gs\.txt",
    "r3": r"stereo images/[gns]-\d+-[lr]\.jpg",
    "dl": r"r\d_.*-disc-t\.png",
}
OF_DISC, OF_CUP = "mask_of_the_disc", "mask_of_the_cup"
OUTLINE = "text_file_of_the_outline_(-gs.txt)"
Found = tuple[dict[str, dict[str, str]], Callable[[FundusCase], Masked]]  # files, how to read them


def head(source: Source, options: Options) -> Head:
    """Disc and cup, or the disc alone."""
    return FUNDUS_HEAD if release_of(source, options) in ("r3", "dl") else DISC_HEAD


@importer(
    "rim-one",
    title="RIM-ONE, retinal image database for optic nerve evaluation, La Laguna",
    sites=(SITE,),
    layout="""
r3   {Healthy,Glaucoma and suspects}/Stereo Images/N-10-R.jpg ...
     {Healthy,Glaucoma and suspects}/Average_masks/N-10-R-{Disc,Cup}-Avg.png
DL   RIM-ONE_DL_images/partitioned_by_hospital/{training_set,test_set}/{glaucoma,normal}/
         r1_Im001.png ...
     RIM-ONE_DL_reference_segmentations/{glaucoma,normal}/r1_Im001-1-{Disc,Cup}-T.png
r2   {Normal,Glaucoma and glaucoma suspicious}/Im001.jpg, Im001-gs.txt        (disc alone)
r1   {Normal,Early,Moderate,Deep,OHT}/Im001.bmp, Im001-exp1.bmp ... -exp5.bmp  (disc alone)
""",
    certainty="certain for r3 and DL, fairly for r2, less for r1",
    licence="research and education only, no redistribution, as the owners' read-me says",
    home="https://github.com/miag-ull/rim-one-dl (DL), http://medimrg.webs.ull.es (r1 to r3)",
    table="FedSM, Table 1",
    paper={SITE: {"images": 159}},
    differs={SITE: "the paper's 159 are release 3; release 1 has 169 pictures, 2 has 455, DL 485"},
    head=head,
    options=("release", "splits", "seed", "crop"),
)
def find(source: Source, options: Options) -> list[Case]:
    """The cases of the release that is there."""
    release = release_of(source, options)
    of = {"r1": _release_1, "r2": _release_2, "r3": _release_3, "dl": _release_dl}
    files, mask = of[release](source)
    cases: list[Case] = []
    for key, own in files.items():
        part = "test" if "test_set/" in own["image"].lower() else "train"  # DL alone has parts
        half = release == "r3"
        cases.append(FundusCase(source, SITE, key, own, mask, part=part, left_half=half))
    return cases


def release_of(source: Source, options: Options) -> str:
    """The one release in the folder, or the one asked for."""
    wanted = (options.release or "").lower()
    there = [name for name in SIGNS if wanted in ("", name) and source.matching(SIGNS[name])]
    if len(there) == 1:
        return there[0]
    why = "no sign of a RIM-ONE release was found"
    if wanted:
        why = f"no sign of release {wanted} (releases: {', '.join(SIGNS)})"
    elif there:
        why = (
            f"holds the releases {' and '.join(there)}, which share pictures: choose one by release"
        )
    raise source.not_understood(why)


# --- releases 3 and DL: disc and cup --------------------------------------------------------------


def _release_3(source: Source) -> Found:
    name = r"([gns]-\d+-[lr])"
    patterns = {
        "image": rf"stereo images/{name}\.jpe?g",
        OF_DISC: rf"average_masks/{name}-disc-avg\.png",
        OF_CUP: rf"average_masks/{name}-cup-avg\.png",
    }
    return source.pairs(source.matching(r"expert\d_masks/[^/]+"), **patterns), _disc_and_cup


def _release_dl(source: Source) -> Found:
    name = r"(r\d_[^/]+?)"
    masks = {
        OF_DISC: source.named(rf"{name}-\d+-disc-t\.png"),
        OF_CUP: source.named(rf"{name}-\d+-cup-t\.png"),
    }
    drawn = {path for own in masks.values() for path in own.values()}
    pictures = [path for path in source.matching(rf"{name}\.png") if path not in drawn]
    # The archive holds all pictures twice, in two divisions into training and test.
    by_hospital = [path for path in pictures if "partitioned_by_hospital/" in path.lower()]
    images = source.named(rf"{name}\.png", by_hospital or pictures)
    return source.pairs(pictures, image=images, **masks), _disc_and_cup


def _disc_and_cup(case: FundusCase) -> Masked:
    masks = []
    for file in (OF_DISC, OF_CUP):
        mask = case.binary(file)
        # Public readers disagree whether a mask is as wide as both views or as one.
        wide = case.left_half and mask.shape[1] > mask.shape[0]
        masks.append(mask[:, : mask.shape[1] // 2] if wide else mask)
    return case.disc_and_cup(masks[0], masks[1], OF_CUP)


# --- releases 1 and 2: the disc alone -------------------------------------------------------------


def _release_2(source: Source) -> Found:
    patterns = {"image": r"(im\d+)\.jpe?g", OUTLINE: r"(im\d+)-gs\.txt"}
    return source.pairs((), **patterns), _outline


def _outline(case: FundusCase) -> Masked:
    """The inside of a smooth closed curve through the points of the text file."""
    from scipy.interpolate import CubicSpline

    with case.blaming(OUTLINE):
        points = outline_points(case.path(OUTLINE))
    closed = np.array([*points, points[0]])
    curve = CubicSpline(np.arange(len(closed)), closed, bc_type="periodic")
    fine = curve(np.linspace(0, len(points), 32 * len(points), endpoint=False))
    mask = Image.new("L", case.size())
    ImageDraw.Draw(mask).polygon([tuple(point) for point in fine], fill=DISC)
    return np.asarray(mask), ""


def outline_points(path: Path) -> list[tuple[float, float]]:
    """x and y of the points; a title, the disc's centre and an ellipse around them are skipped.

    One number stands in a line: x and y of the centre, then of the points, then a further title.
    """
    numbers: list[float] = []
    for word in path.read_text(encoding="latin-1").split():
        if re.fullmatch(r"-?\d+(?:\.\d+)?", word):
            numbers.append(float(word))
        elif numbers:
            break
    points = list(zip(numbers[2::2], numbers[3::2], strict=False))
    if len(numbers) % 2 or len(points) < 3:
        cure = "get the file again: a centre and at least three points are expected"
        raise BadFile("outline that is not understood", cure, f"{len(numbers)} numbers")
    return points


def _release_1(source: Source) -> Found:
    # Numbers begin anew in every folder, so a name takes its folder along.
    stage = r"(?:[^/]*\b)?(normal|early|moderate|deep|oht)\b[^/]*/(?:.*/)?(im\d+)"
    images = source.named(rf"{stage}\.(?:bmp|jpe?g|png)")
    experts = source.by_name(rf"{stage}-exp\d\.(?:bmp|jpe?g|png)")
    first = {key: paths[0] for key, paths in experts.items()}
    drawn = [path for paths in experts.values() for path in paths]
    files = source.pairs(drawn, image=images, mask_of_an_expert=first)
    for key, own in files.items():
        own |= {f"expert {number}": path for number, path in enumerate(experts[key], 1)}
    return files, _agreed


def _agreed(case: FundusCase) -> Masked:
    """What more than half of the experts marked."""
    experts = [file for file in case.files if file.startswith("expert")]
    masks = [case.binary(file) for file in experts]
    for file, mask in zip(experts, masks, strict=True):
        if mask.shape != masks[0].shape:
            raise BadFile("masks of different sizes", "get the files again", case.files[file])
    return (2 * np.sum(masks, axis=0) > len(masks)).astype(np.uint8) * np.uint8(DISC), ""
