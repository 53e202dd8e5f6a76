"""Pictures of an answer: structures in colour over the image, and sheets of several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from konsil.colours import structure_colour
from konsil.supermodel.predict import Prediction

FILL = 0.3  # how much of a structure's colour lies over the image
SIDE = 320  # pixels of a picture's longer side on a sheet
LARGEST_ZOOM = 4  # of tiny images
MOST = 20  # planes of a volume that a sheet shows
COLUMNS = 5
LINE, MARGIN = 14, 4  # pixels


@dataclass(frozen=True)
class Tile:
    """A picture of a sheet and the lines under it."""

    picture: Image.Image
    lines: tuple[str, ...]


def overlay(prediction: Prediction, plane: int = 0, fill: float = FILL) -> Image.Image:
    """One plane at its own size, structures filled faintly and outlined."""
    picture = prediction.opened.pictures[plane].convert("RGB")
    if prediction.facts.targets != "masks":
        return picture
    pixels = np.asarray(picture).astype(np.float32)
    for number, probability in enumerate(prediction.at_own_size(plane)):
        mask = probability > 0.5
        colour = np.array(ImageColor.getrgb(structure_colour(number)), np.float32)
        pixels[mask] += fill * (colour - pixels[mask])
        pixels[edge(mask)] = colour
    return Image.fromarray(pixels.round().astype(np.uint8))


def edge(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a mask with a neighbour outside it; the border of the picture is none."""
    inner = np.pad(mask, 1, mode="edge")
    up, down, left, right = inner[:-2, 1:-1], inner[2:, 1:-1], inner[1:-1, :-2], inner[1:-1, 2:]
    return mask & ~(up & down & left & right)


def sheet_of_planes(prediction: Prediction) -> Image.Image:
    """The planes of a volume on which something is marked, or of them all, evenly chosen."""
    planes = list(range(len(prediction.logits)))
    if prediction.facts.targets == "masks":
        marked = (prediction.probabilities > 0.5).flatten(1).any(dim=1)
        planes = [n for n in planes if marked[n]] or planes
    chosen = np.linspace(0, len(planes) - 1, min(MOST, len(planes))).round().astype(int)
    return sheet([tile(prediction, planes[n], f"plane {planes[n] + 1}") for n in chosen])


def sheet_of_answers(answers: Sequence[tuple[str, Prediction]]) -> Image.Image:
    """One plane as several models answer it: the one on which the first of them marks most."""
    plane = most_marked(answers[0][1])
    opened = answers[0][1].opened
    number = f"plane {plane + 1}" if len(opened.pictures) > 1 else ""
    tiles = [Tile(opened.pictures[plane].convert("RGB"), ("image", number))]
    return sheet(tiles + [tile(one, plane, who) for who, one in answers])


def most_marked(prediction: Prediction) -> int:
    """The plane on which most is marked; the middle one of classes."""
    if prediction.facts.targets != "masks":
        return len(prediction.logits) // 2
    return int((prediction.probabilities > 0.5).flatten(1).sum(dim=1).argmax())


def tile(prediction: Prediction, plane: int, title: str) -> Tile:
    """A plane with who answered it, and the class if there is one."""
    lines = [title]
    if prediction.asked[plane] != title:
        lines.append(f"asked: {prediction.asked[plane]}")
    if prediction.facts.targets != "masks":
        probability = float(prediction.probabilities[plane].max())
        lines.append(f"{prediction.classes()[plane]} {probability:.0%}")
    return Tile(overlay(prediction, plane), tuple(lines))


def sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Pictures in rows, each with its lines below it."""
    pictures = [_of_side(one.picture) for one in tiles]
    width = max(picture.width for picture in pictures) + MARGIN
    text = LINE * max(len(one.lines) for one in tiles)
    height = max(picture.height for picture in pictures) + text + MARGIN
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    page = Image.new("RGB", (columns * width + MARGIN, rows * height + MARGIN), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(LINE - 3)
    for place, (one, picture) in enumerate(zip(tiles, pictures, strict=True)):
        left, top = MARGIN + place % columns * width, MARGIN + place // columns * height
        page.paste(picture, (left, top))
        for number, line in enumerate(one.lines):
            draw.text((left, top + picture.height + LINE * number), line, "black", font)
    return page


def _of_side(picture: Image.Image) -> Image.Image:
    zoom = min(LARGEST_ZOOM, SIDE / max(picture.size))
    size = (max(1, round(picture.width * zoom)), max(1, round(picture.height * zoom)))
    return picture.resize(size, Image.Resampling.NEAREST if zoom > 1 else Image.Resampling.LANCZOS)
