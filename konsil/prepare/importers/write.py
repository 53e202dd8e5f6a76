"""From the cases of a downloaded folder to the sites of a federation, whole or not at all."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

from konsil.data.findings import BadFile, Findings
from konsil.data.recipe import THREADS
from konsil.data.sources import SPLITS
from konsil.errors import DataError
from konsil.files import locked
from konsil.prepare.importers.base import (
    Case,
    Importer,
    ImportReport,
    LeftOut,
    Options,
    Progress,
    Row,
    Written,
)
from konsil.prepare.importers.publish import BUILDING, Destination, Pairs
from konsil.prepare.importers.source import Source

Result = Written | LeftOut | BadFile


def write_import(
    importer: Importer, source: Source, dest: Path, options: Options, report: Progress | None
) -> ImportReport:
    """Find, write, publish. One import at a time works in a destination; others wait."""
    _check_places(source.root, dest)
    try:
        with locked(dest):
            return _write_locked(importer, source, dest, options, report)
    except OSError as error:
        raise DataError(
            f"{error.filename or dest}: {error.strerror or error}; nothing was imported. Make "
            f"room, or check that {dest} can be written and {source.root} can be read"
        ) from None


def _write_locked(
    importer: Importer, source: Source, dest: Path, options: Options, report: Progress | None
) -> ImportReport:
    destination = Destination(dest, importer, importer.head_of(source, options))
    found = importer.find(source, options)
    source.raise_if_any()
    cases = _complete_parts(found, options)
    _check_cases(source, cases)
    destination.check_free({case.site for case in cases}, options.overwrite)
    building = dest / BUILDING
    shutil.rmtree(building, ignore_errors=True)  # of an import that was killed
    try:
        results = _write_cases(source, building, cases, options, report)
        outcome = _report(importer, dest, cases, results)
        destination.publish(_by_site(cases, results, outcome), source.root, options, outcome)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return outcome


# --- before anything is written -------------------------------------------------------------------


def _check_places(source: Path, dest: Path) -> None:
    if dest.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{dest}: lies inside {source}; import into a folder beside it")
    if dest.exists() and not dest.is_dir():
        raise DataError(f"{dest}: is a file; name a folder to import into")


def _check_cases(source: Source, cases: Sequence[Case]) -> None:
    seen: dict[tuple[str, str], Case] = {}
    for case in cases:
        first = seen.setdefault((case.site, case.name.lower()), case)
        if first is not case:
            cure = "keep one of the two: they would get the same name"
            source.refuse("image that is there twice", f"{first.image} and {case.image}", cure)
    source.raise_if_any()
    if not cases:
        raise source.not_understood("no image was found")


def _complete_parts(cases: Sequence[Case], options: Options) -> list[Case]:
    """The data's own parts; where they have no validation part, a third of training is drawn."""
    if options.splits == "drawn":
        return [replace(case, part="") for case in cases]
    from konsil.randomness import derive

    complete: list[Case] = []
    for site in dict.fromkeys(case.site for case in cases):
        own = [case for case in cases if case.site == site]
        drawn: set[str] = set()
        if "val" not in {case.part for case in own}:
            training = {case.whose for case in own if case.part == "train"}
            order = sorted(training, key=lambda p: derive(options.seed, "validation", site, p))
            drawn = set(order[: len(order) // 3])
        own = [replace(c, part="val") if c.whose in drawn else c for c in own]
        missing = set(SPLITS).symmetric_difference(case.part for case in own)
        if missing:
            raise DataError(
                f"site {site}: the data's own split cannot be made out (train, val and test are "
                "needed); get the missing part of the data, or import with splits: drawn"
            )
        complete += own
    return complete


# --- writing --------------------------------------------------------------------------------------


def _write_cases(
    source: Source,
    building: Path,
    cases: Sequence[Case],
    options: Options,
    report: Progress | None,
) -> list[Result]:
    """Every case into building/<site>; all that is wrong is raised together."""
    building.mkdir(parents=True)

    def write(case: Case) -> Result:
        try:
            return case.write(building / case.site, options)
        except (BadFile, LeftOut) as refused:
            return refused

    totals, done = Counter(case.site for case in cases), Counter[str]()
    results: list[Result] = []
    found = Findings()
    pool = ThreadPool(THREADS)
    try:
        for case, result in zip(cases, pool.imap(write, cases), strict=True):
            results.append(result)
            if isinstance(result, BadFile):
                found.add_file(case.image, result)
            done[case.site] += 1
            if report is not None:
                report(case.site, done[case.site], totals[case.site])
    finally:  # no thread writes any more when the folder is cleared away
        pool.terminate()
        pool.join()
    found.raise_if_any(source.root)
    return results


def _by_site(
    cases: Sequence[Case], results: Sequence[Result], outcome: ImportReport
) -> dict[str, Pairs]:
    written: dict[str, Pairs] = {case.site: [] for case in cases}
    for case, result in zip(cases, results, strict=True):
        if isinstance(result, Written):
            written[case.site].append((case, result))
    for site, pairs in written.items():
        if not pairs:
            raise DataError(f"site {site}: every case had to be left out\n{outcome.text()}")
    return written


def _report(
    importer: Importer, dest: Path, cases: Sequence[Case], results: Sequence[Result]
) -> ImportReport:
    made: dict[str, Counter[str]] = {case.site: Counter() for case in cases}
    notes = []
    for case, result in zip(cases, results, strict=True):
        if isinstance(result, Written):
            made[case.site].update(result.counts)
            if case.part in importer.paper.get(case.site, {}):
                made[case.site][case.part] += 1
            if result.note:
                notes.append(f"{case.image}: {result.note}")
        else:
            notes.append(f"{case.image}: left out: {result}")
    rows = [
        Row(site, what, count, importer.paper.get(site, {}).get(what))
        for site, counts in made.items()
        for what, count in counts.items()
    ]
    notes = [*_reasons(importer, rows), *notes]
    return ImportReport(importer.name, importer.table, dest, tuple(rows), tuple(notes))


def _reasons(importer: Importer, rows: Sequence[Row]) -> list[str]:
    """Why counts differ from the paper's, in the importer's words; once for sites alike."""
    off = dict.fromkeys(row.site for row in rows if row.paper not in (None, row.made))
    sites: dict[str, list[str]] = {}
    for site in off:
        if site in importer.differs:
            sites.setdefault(importer.differs[site], []).append(site)
    return [f"{', '.join(names)}: {reason}" for reason, names in sites.items()]
