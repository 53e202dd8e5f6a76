"""Public data sets, from the folders people download to one form with a federation file.

One file a data set; each states the layout it expects, the licence, where the data come from and
the paper's counts, and finds its cases. Found without a list of them, in this package, in a plugin
(`--plugin`) or through entry points (`konsil.importers`); light to import.
"""

from __future__ import annotations

from pathlib import Path

from konsil.prepare.importers.base import (
    IMPORTERS,
    Case,
    Importer,
    ImportReport,
    LeftOut,
    Options,
    Progress,
    Written,
    importer,
)
from konsil.prepare.importers.pictures import ClassCase, PictureCase
from konsil.prepare.importers.source import Source
from konsil.prepare.importers.volumes import Scan, VolumeCase, read_scan

__all__ = [
    "IMPORTERS",
    "Case",
    "ClassCase",
    "ImportReport",
    "Importer",
    "LeftOut",
    "Options",
    "PictureCase",
    "Scan",
    "Source",
    "VolumeCase",
    "Written",
    "import_dataset",
    "importer",
    "read_scan",
]


def import_dataset(
    name: str,
    source: Path,
    dest: Path,
    options: Options | None = None,
    report: Progress | None = None,
) -> ImportReport:
    """Write the data set in `source` into `dest` in the common form; all of it or nothing.

    Sites that earlier imports wrote into `dest` stay, and its federation.yaml gets the new ones.
    `report` is called with a site, the cases done and the cases in all.
    """
    from konsil.prepare.importers.write import write_import

    options = options or Options()
    chosen = IMPORTERS.find(name, "konsil data import")
    chosen.check(options)
    return write_import(chosen, chosen.source(source), dest, options, report)
