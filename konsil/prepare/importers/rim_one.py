"""RIM-ONE: pictures around the optic disc from Spanish hospitals, in four releases.

Which release it is shows from the names of the files. Releases 3 and DL have disc and cup; releases
1 and 2 outline the disc alone, so they make a federation of their own. DL unites the others'
pictures after a review: importing several would hold pictures twice.

How certain the layouts are: 3 and DL certain (public lists and loaders, the owners' read-me); 2
fairly (three public readers agree on the text files); 1 less (names of the five experts' masks and
of the folders occur in public code, the place of the masks does not, so any is accepted).
The stereo pictures of release 3 hold two views side by side; the masks belong to the left one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from konsil.data.findings import BadFile, Findings
from konsil.prepare.importers.base import Case, Head, Importer, Options, Source, refuse_unpaired
from konsil.prepare.importers.pictures import (
    DISC,
    FUNDUS_HEAD,
    FundusCase,
    blaming,
    disc_and_cup,
    picture_size,
    read_binary,
    read_bytes,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Masked = tuple[NDArray[np.uint8], str]

SITE = "rim_one"
DISC_HEAD = {"task": "segmentation", "structures": {"disc": [DISC]}, "channels": 3}
# What only this release has.
SIGNS = {
    "r1": r"im\d+-exp\d\.(?:bmp|png|jpg)",
    "r2": r"im\d+-gs\.txt",
    "r3": r"stereo images/[gns]-\d+-[lr]\.jpg",
    "dl": r"r\d_.*-disc-t\.png",
}
LAYOUT = """
r3   {Healthy,Glaucoma and suspects}/Stereo Images/N-10-R.jpg ...
     {Healthy,Glaucoma and suspects}/Average_masks/N-10-R-{Disc,Cup}-Avg.png
DL   RIM-ONE_DL_images/partitioned_by_hospital/{training_set,test_set}/{glaucoma,normal}/
         r1_Im001.png ...
     RIM-ONE_DL_reference_segmentations/{glaucoma,normal}/r1_Im001-1-{Disc,Cup}-T.png
r2   {Normal,Glaucoma and glaucoma suspicious}/Im001.jpg, Im001-gs.txt        (disc alone)
r1   {Normal,Early,Moderate,Deep,OHT}/Im001.bmp, Im001-exp1.bmp ... -exp5.bmp  (disc alone)
"""


def find(source: Source, options: Options) -> Sequence[Case]:
    """The cases of the release that is there."""
    found = Findings()
    cases = FINDERS[release_of(source, options)](source, found)
    found.raise_if_any(source.root)
    return cases


def head(source: Source, options: Options) -> Head:
    """Disc and cup, or the disc alone."""
    return FUNDUS_HEAD if release_of(source, options) in ("r3", "dl") else DISC_HEAD


def release_of(source: Source, options: Options) -> str:
    """The one release in the folder, or the one asked for."""
    there = [release for release, sign in SIGNS.items() if source.matching(sign)]
    wanted = options.release and options.release.lower()
    if wanted and wanted not in there:
        raise source.not_understood(f"no sign of release {wanted} (releases: {', '.join(SIGNS)})")
    if len(there) > 1 and not wanted:
        raise source.not_understood(
            f"holds the releases {' and '.join(there)}, which share pictures: choose one by release"
        )
    if not there:
        raise source.not_understood("no sign of a RIM-ONE release was found")
    return wanted or there[0]


# --- releases 3 and DL: disc and cup --------------------------------------------------------------


def _find_r3(source: Source, found: Findings) -> list[Case]:
    name = r"([gns]-\d+-[lr])"
    images = source.named(rf"stereo images/{name}\.jpe?g", found)
    discs = source.named(rf"average_masks/{name}-disc-avg\.png", found)
    cups = source.named(rf"average_masks/{name}-cup-avg\.png", found)
    experts = source.matching(r"expert\d_masks/[^/]+")
    return _both(source, images, discs, cups, experts, found, left_half=True)


def _find_dl(source: Source, found: Findings) -> list[Case]:
    name = r"(r\d_[^/]+?)"
    discs = source.named(rf"{name}-\d+-disc-t\.png", found)
    cups = source.named(rf"{name}-\d+-cup-t\.png", found)
    masks = {*discs.values(), *cups.values()}
    pictures = [path for path in source.matching(rf"{name}\.png") if path not in masks]
    # The archive holds all pictures twice, in two divisions into training and test.
    by_hospital = [path for path in pictures if "partitioned_by_hospital/" in path.lower()]
    images = source.named(rf"{name}\.png", found, of=by_hospital or pictures)
    cases = _both(source, images, discs, cups, pictures, found)
    tested = source.matching(r"test_set/(?:[^/]+/)?[^/]+", of=list(images.values()))
    return [replace(case, part="test" if case.where in tested else "train") for case in cases]


def _both(
    source: Source,
    images: Mapping[str, str],
    discs: Mapping[str, str],
    cups: Mapping[str, str],
    unused: Iterable[str],
    found: Findings,
    left_half: bool = False,
) -> list[Case]:
    refuse_unpaired(images, discs, found, "mask of the disc")
    refuse_unpaired(images, cups, found, "mask of the cup")
    source.refuse_unexplained([*images.values(), *discs.values(), *cups.values(), *unused], found)
    found.raise_if_any(source.root)
    return [
        FundusCase(
            site=SITE,
            name=key,
            root=source.root,
            image=image,
            mask=partial(_disc_and_cup, source.root, discs[key], cups[key], left_half),
            left_half=left_half,
        )
        for key, image in images.items()
    ]


def _disc_and_cup(root: Path, disc: str, cup: str, left_half: bool) -> Masked:
    masks = []
    for name in (disc, cup):
        with blaming(name):
            mask = read_binary(root / name)
        # Public readers disagree whether a mask is as wide as both views or as one.
        wide = left_half and mask.shape[1] > mask.shape[0]
        masks.append(mask[:, : mask.shape[1] // 2] if wide else mask)
    with blaming(cup):
        return disc_and_cup(masks[0], masks[1]), ""


# --- releases 1 and 2: the disc alone -------------------------------------------------------------


def _find_r2(source: Source, found: Findings) -> list[Case]:
    images = source.named(r"(im\d+)\.jpe?g", found)
    outlines = source.named(r"(im\d+)-gs\.txt", found)
    refuse_unpaired(images, outlines, found, "text file of the outline (-gs.txt)")
    source.refuse_unexplained(list(images.values()), found)
    found.raise_if_any(source.root)
    return [
        FundusCase(
            site=SITE,
            name=key,
            root=source.root,
            image=image,
            mask=partial(_outline, source.root, image, outlines[key]),
        )
        for key, image in images.items()
    ]


def _outline(root: Path, image: str, name: str) -> Masked:
    """The inside of a smooth closed curve through the points of the text file."""
    import numpy as np
    from PIL import Image, ImageDraw
    from scipy.interpolate import CubicSpline

    points = outline_points(root / name, name)
    closed = np.array([*points, points[0]])
    curve = CubicSpline(np.arange(len(closed)), closed, bc_type="periodic")
    fine = curve(np.linspace(0, len(points), 32 * len(points), endpoint=False))
    mask = Image.new("L", picture_size(read_bytes(root / image)))
    ImageDraw.Draw(mask).polygon([tuple(point) for point in fine], fill=DISC)
    return np.asarray(mask), ""


def outline_points(path: Path, name: str) -> list[tuple[float, float]]:
    """x and y of the points; a title, the disc's centre and an ellipse around them are skipped.

    One number stands in a line: x and y of the centre, then of the points, then a further title.
    """
    numbers: list[float] = []
    try:
        for line in path.read_text(encoding="latin-1").split():
            if re.fullmatch(r"-?\d+(?:\.\d+)?", line):
                numbers.append(float(line))
            elif numbers:
                break
    except OSError as error:
        raise BadFile("outline that cannot be read", "get it again", str(error.strerror)) from None
    points = list(zip(numbers[2::2], numbers[3::2], strict=False))
    if len(numbers) % 2 or len(points) < 3:
        cure = "get the file again: a centre and at least three points are expected"
        raise BadFile("outline that is not understood", cure, f"{name}: {len(numbers)} numbers")
    return points


def _find_r1(source: Source, found: Findings) -> list[Case]:
    stage = r"(?:[^/]*\b)?(normal|early|moderate|deep|oht)\b[^/]*/(?:.*/)?(im\d+)"
    pictures = source.matching(rf"{stage}\.(?:bmp|jpe?g|png)")
    drawn = source.matching(rf"{stage}-exp\d\.(?:bmp|jpe?g|png)")
    images = {_stage(match): path for path, match in pictures.items()}
    experts: dict[str, list[str]] = {}
    for path, match in drawn.items():
        experts.setdefault(_stage(match), []).append(path)
    refuse_unpaired(images, {k: p[0] for k, p in experts.items()}, found, "mask of an expert")
    source.refuse_unexplained([*pictures, *drawn], found)
    found.raise_if_any(source.root)
    return [
        FundusCase(
            site=SITE,
            name=key,
            root=source.root,
            image=image,
            mask=partial(_agreed, source.root, experts[key]),
        )
        for key, image in images.items()
    ]


def _stage(match: re.Match[str]) -> str:
    """Numbers begin anew in every folder, so a name takes its folder along."""
    return f"{match.group(1)}_{match.group(2)}".lower()


def _agreed(root: Path, names: Sequence[str]) -> Masked:
    """What more than half of the experts marked."""
    import numpy as np

    masks = []
    for name in names:
        with blaming(name):
            masks.append(read_binary(root / name))
            if masks[-1].shape != masks[0].shape:
                raise BadFile("masks of different sizes", "get the files again")
    return (2 * np.sum(masks, axis=0) > len(masks)).astype(np.uint8) * np.uint8(DISC), ""


FINDERS = {"r1": _find_r1, "r2": _find_r2, "r3": _find_r3, "dl": _find_dl}
IMPORTERS = (
    Importer(
        name="rim-one",
        title="RIM-ONE, retinal image database for optic nerve evaluation, La Laguna",
        sites=(SITE,),
        layout=LAYOUT,
        certainty="certain for r3 and DL, fairly for r2, less for r1",
        licence="research and education only, no redistribution, as the owners' read-me says",
        home="https://github.com/miag-ull/rim-one-dl (DL), http://medimrg.webs.ull.es (r1 to r3)",
        table="FedSM, Table 1",
        paper={SITE: {"images": 159}},
        head=head,
        find=find,
        differs={
            SITE: "the paper's 159 are release 3; release 1 has 169 pictures, 2 has 455, DL 485"
        },
        options=("release", "splits", "seed", "crop"),
    ),
)
