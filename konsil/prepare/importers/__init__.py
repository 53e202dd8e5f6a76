"""Public data sets, from the folders people download to one form with a federation file.

One file a data set; each states the layout it expects, the licence, where the data come from and
the paper's counts. Found without a list of them; light to import.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from konsil.errors import ConfigError
from konsil.prepare.importers.base import Importer, ImportReport, Options, Progress, Source

__all__ = ["ImportReport", "Importer", "Options", "import_dataset", "importer", "importers"]

_FRAMEWORK = ("base", "pictures", "publish", "volumes", "write")


def importers() -> dict[str, Importer]:
    """Every importer by its name, in the order of names."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _FRAMEWORK)
    found: dict[str, Importer] = {}
    for module in modules:
        for importer in importlib.import_module(f"{__name__}.{module}").IMPORTERS:
            if importer.name in found:
                raise ConfigError(f"importer {importer.name}: two files register this name")
            found[importer.name] = importer
    return dict(sorted(found.items()))


def importer(name: str) -> Importer:
    """The importer of this name."""
    known = importers()
    if name not in known:
        raise ConfigError(f"{name}: no such importer; there are {', '.join(known)}")
    return known[name]


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
    chosen = importer(name)
    chosen.check(options)
    return write_import(chosen, Source(source, chosen), dest, options, report)
