"""The common look of the figures: colours, markers, sizes, and how a picture reaches the disk."""

import io
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS
from konsil.config import MethodConfig
from konsil.files import replacing

WIDTH = 9.0  # inches; 900 pixels and more
DPI = 150
SMALLER_DPI = (DPI, 130, 110, 100, 80)
MOST_BYTES = 400_000
GREYS = range(0, 256, 17)  # black to white
INK, FAINT, GRID = "#222222", "#777777", "#E4E4E4"

RIGHT, WRONG = "#0072B2", "#D55E00"
MARKERS = {"global": "o", "personal": "s", "super": "D", "local": "|", "centralized": "|"}
DASHES: dict[str, Any] = {"personal": (0, (4, 1.5)), "super": (0, (1, 1))}

LOOK: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "konsil",
    "grid.color": GRID,
}


def method_colours(methods: Iterable[MethodConfig]) -> dict[str, str]:
    """A colour for every method by its title: always the same for the well-known ones."""
    colours: dict[str, str] = {}
    further = cycle(FURTHER_COLOURS)
    for method in methods:
        colour = FIXED_COLOURS.get(method.name)
        if colour is None or colour in colours.values():
            colour = next(further)
        colours[method.title] = colour
    return colours


def look() -> Any:
    """A context in which matplotlib draws in Konsil's style; nothing outside it changes."""
    return matplotlib.rc_context(LOOK)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure that belongs to nobody's global state."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def write_figure(figure: Figure, path: Path) -> Path:
    """A PNG below the limit, and beside it an SVG; each is there whole or not at all."""
    for encoded in _encodings(figure):
        if len(encoded) <= MOST_BYTES:
            break
    with replacing(path) as file:
        file.write(encoded)
    with replacing(path.with_suffix(".svg")) as file:  # the same figure is the same file
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
    return path


def _encodings(figure: Figure) -> Iterator[bytes]:
    """The figure as PNG: as drawn, or else with few colours and ever fewer pixels."""
    for dpi in SMALLER_DPI:
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=dpi, facecolor="white")
        if dpi == DPI:
            yield drawn.getvalue()
        yield _with_palette(Image.open(drawn).convert("RGB"))


def _with_palette(picture: Image.Image) -> bytes:
    """256 colours: the picture's own, and greys, so that text and paper do not take on a tint."""
    own = picture.quantize(256 - len(GREYS)).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*own, *(level for level in GREYS for _ in range(3))])
    indexed = picture.quantize(palette=palette, dither=Image.Dither.NONE)
    paper = picture.convert("L").point(lambda level: 255 * (level == 255), mode="1")
    indexed.paste(255, mask=paper)  # Pillow's search for the nearest colour is not exact
    packed = io.BytesIO()
    indexed.save(packed, "png", optimize=True)
    return packed.getvalue()
