"""Public data sets, from the folders people download to one form with a federation file.

One file a data set; each states the layout it expects, the licence, where the data come from and
the paper's counts, and finds its cases. Found without a list of them, in this package, in a plugin
(`--plugin`) or through entry points (`konsil.importers`).
"""

from konsil.prepare.importers.base import IMPORTERS, Case, LeftOut, Options, Source, importer
from konsil.prepare.importers.pictures import ClassCase, PictureCase
from konsil.prepare.importers.volumes import Scan, VolumeCase, read_scan
from konsil.prepare.importers.write import ImportReport, import_dataset

__all__ = [
    "IMPORTERS",
    "Case",
    "ClassCase",
    "ImportReport",
    "LeftOut",
    "Options",
    "PictureCase",
    "Scan",
    "Source",
    "VolumeCase",
    "import_dataset",
    "importer",
    "read_scan",
]
