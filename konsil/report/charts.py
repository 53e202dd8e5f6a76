"""Charts and pictures as parts of a page: drawn once, for the page and as files."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from konsil.files import replacing
from konsil.report.style import look, write_figure

# What of a figure is ink, paper or a grid takes the page's colours, which are dark at night.
OF_THE_PAGE = {
    "#222222": "var(--ink)",
    "#000000": "var(--ink)",
    "#777777": "var(--faint)",
    "#e4e4e4": "var(--line)",
    "#ffffff": "var(--paper)",
}
NOT_THE_DRAWING = re.compile(r"<metadata>.*?</metadata>|<style .*?</style>", re.DOTALL)
SIZE = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')
IDS = re.compile(r'(\bid="|href="#|url\(#)')
WIDEST = 1100  # pixels of a picture on a page
QUALITY = 82  # of its WebP


@dataclass(frozen=True)
class Chart:
    """A figure that the page draws, with what is said below it."""

    name: str  # of its files
    figure: Figure
    caption: str

    @property
    def markup(self) -> str:
        """An element of a page, in the page's own colours."""
        file = io.StringIO()
        with look():
            self.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        text = file.getvalue()
        text = NOT_THE_DRAWING.sub("", text[text.index("<svg") :])
        for own, of_page in OF_THE_PAGE.items():
            text = text.replace(own, of_page)
        text = IDS.sub(lambda found: f"{found[1]}{self.name}-", text)
        label = escape(self.caption, quote=True)
        head = f'<svg class="chart" role="img" aria-label="{label}" viewBox='
        return SIZE.sub(lambda found: f'{head}"{found[1]}">', text, count=1)

    def write(self, folder: Path) -> list[Path]:
        """As PNG and SVG."""
        with look():
            path = write_figure(self.figure, folder / f"{self.name}.png")
        return [path, path.with_suffix(".svg")]


@dataclass(frozen=True)
class Picture:
    """A picture that is there as PNG, of a file or drawn with images of patients."""

    name: str
    png: bytes
    caption: str
    svg: bytes | None = None
    of_patients: bool = False  # whether it shows their images

    @property
    def address(self) -> str:
        """Small enough for a page, as a data address."""
        image = Image.open(io.BytesIO(self.png)).convert("RGB")
        image.thumbnail((WIDEST, 10 * WIDEST), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "webp", quality=QUALITY, method=4)
        return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"

    def write(self, folder: Path) -> list[Path]:
        """As PNG, and as SVG where there is one."""
        path = folder / f"{self.name}.png"
        written = [path] if self.svg is None else [path, path.with_suffix(".svg")]
        for file, content in zip(written, (self.png, self.svg), strict=False):
            with replacing(file) as part:
                part.write(content or b"")
        return written


def left_by_others(
    folders: Sequence[Path], kinds: Mapping[str, str], of_patients: bool = False
) -> list[Picture]:
    """Figures that other commands have left in runs, by the beginnings of their names.

    `kinds`: beginning -> caption. Of several runs with a figure of one name the first has it, and
    the others' carry their folders' names.
    """
    found: dict[str, Picture] = {}
    for kind, caption in kinds.items():
        for folder in folders:
            for path in sorted((folder / "figures").glob(f"{kind}*.png")):
                name = path.stem if path.stem not in found else f"{path.stem}-{folder.name}"
                rest = path.stem.removeprefix(kind).strip("-").replace("-", " ")
                words = f"{caption}: {rest}" if rest else caption
                drawn = path.with_suffix(".svg")
                svg = drawn.read_bytes() if drawn.exists() else None
                found[name] = Picture(name, path.read_bytes(), words, svg, of_patients)
    return list(found.values())
