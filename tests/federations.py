"""Further federations, for tests of several folders."""

from __future__ import annotations

from pathlib import Path

from PIL import Image


def copy_sites(source: Path, folder: Path, sites: dict[str, tuple[str, int]]) -> Path:
    """A federation: new site -> (site of `source`, how many images of each of its folders).

    Every site is turned by another angle, so that copies of one site differ.
    """
    for place, (site, (origin, count)) in enumerate(sites.items()):
        for kind in sorted((source / origin).iterdir()):
            (folder / site / kind.name).mkdir(parents=True)
            for path in sorted(kind.iterdir())[:count]:
                with Image.open(path) as picture:
                    picture.rotate(90 * place).save(folder / site / kind.name / path.name)
    return folder
