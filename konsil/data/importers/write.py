"""The common form, written whole or not at all.

Everything is built in a hidden folder of the destination. The finished sites are then renamed
into place, and the federation file, which makes them count, is written last: a killed import
leaves nothing that anybody takes for a site, and is simply repeated.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from konsil import __version__
from konsil.config import parse_yaml
from konsil.data.findings import BadFile, Findings
from konsil.data.importers.base import (
    Case,
    Head,
    Importer,
    ImportReport,
    LeftOut,
    Options,
    Progress,
    Row,
    Source,
    Written,
)
from konsil.data.manifest import NAME
from konsil.data.recipe import THREADS
from konsil.data.sources import SPLITS
from konsil.errors import DataError
from konsil.files import locked, write_text

BUILDING = ".importing"
RECORDS = "imported"
HEADER = (
    "# Written by `konsil data import`; a further import into this folder adds its sites. Values\n"
    "# that you change stay then, but comments are lost.\n"
)
Result = Written | LeftOut | BadFile
Pairs = list[tuple[Case, Written]]


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
    present = _read_federation(dest / NAME, importer.name, importer.head_of(source))
    cases = _complete_parts(importer.find(source, options), options)
    _check_cases(source, cases)
    earlier = _read_record(dest, importer)
    _check_free(dest, {case.site for case in cases}, present, earlier, options)
    building = dest / BUILDING
    shutil.rmtree(building, ignore_errors=True)
    try:
        results = _write_cases(source, building, cases, options, report)
        outcome = _report(importer, dest, cases, results)
        written = _by_site(cases, results, outcome)
        record = _new_record(importer, source, options, outcome, earlier)
        _publish(importer, dest, record, written, present)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return outcome


# --- before anything is written -------------------------------------------------------------------


def _check_places(source: Path, dest: Path) -> None:
    if dest.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{dest}: lies inside {source}; import into a folder beside it")
    if dest.exists() and not dest.is_dir():
        raise DataError(f"{dest}: is a file; name a folder to import into")


def _read_federation(path: Path, name: str, head: Head) -> dict[str, Any]:
    """The federation file that is there, if its sites and the new ones can live together."""
    if not path.exists():
        return {**head, "sites": {}}
    present: dict[str, Any] = parse_yaml(path, "federation file")
    for key in ("task", "structures", "classes"):
        if present.get(key) != head.get(key):
            raise DataError(
                f"{path}: {key} is {present.get(key)}, and {name} has {head.get(key)}; import it "
                "into another folder"
            )
    return present


def _check_free(
    dest: Path,
    sites: Iterable[str],
    present: Mapping[str, Any],
    earlier: Mapping[str, Any],
    options: Options,
) -> None:
    """A site counts if the federation file names it; a killed import's leftovers do not."""
    for site in sorted(sites):
        if not (dest / site).exists():
            continue
        if site in present["sites"]:
            if not options.overwrite:
                raise DataError(
                    f"{dest / site}: this site was imported already; import with overwrite to "
                    "replace it, or into another folder"
                )
        elif site not in earlier:
            raise DataError(
                f"{dest / site}: is in the way, and {dest / NAME} does not name it; move it away "
                "or import into another folder"
            )


def _check_cases(source: Source, cases: Sequence[Case]) -> None:
    found = Findings()
    seen: dict[tuple[str, str], Case] = {}
    for case in cases:
        first = seen.setdefault((case.site, case.name.lower()), case)
        if first is not case:
            cure = "keep one of the two: they would get the same name"
            found.add("image that is there twice", f"{first.where} and {case.where}", cure)
    found.raise_if_any(source.root)
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
            training = {_patient(case) for case in own if case.part == "train"}
            order = sorted(training, key=lambda p: derive(options.seed, "validation", site, p))
            drawn = set(order[: len(order) // 3])
        own = [replace(c, part="val") if _patient(c) in drawn else c for c in own]
        missing = set(SPLITS).symmetric_difference(case.part for case in own)
        if missing:
            raise DataError(
                f"site {site}: the data's own split cannot be made out (train, val and test are "
                "needed); get the missing part of the data, or import with splits: drawn"
            )
        complete += own
    return complete


def _patient(case: Case) -> str:
    return case.patient or case.name


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
    with ThreadPool(THREADS) as pool:
        for case, result in zip(cases, pool.imap(write, cases), strict=True):
            results.append(result)
            if isinstance(result, BadFile):
                found.add_file(case.where, result)
            done[case.site] += 1
            if report is not None:
                report(case.site, done[case.site], totals[case.site])
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
                notes.append(f"{case.where}: {result.note}")
        else:
            notes.append(f"{case.where}: left out: {result}")
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


# --- making it count ------------------------------------------------------------------------------


def _publish(
    importer: Importer,
    dest: Path,
    record: Mapping[str, Any],
    written: Mapping[str, Pairs],
    present: Mapping[str, Any],
) -> None:
    """Record, rename, and name the sites in the federation file, in this order."""
    write_text(_record(dest, importer), json.dumps(record, indent=1) + "\n")
    for site in written:
        _put_in_place(dest / BUILDING / site, dest / site)
    blocks = {site: _block(importer, dest, site, pairs) for site, pairs in written.items()}
    content = {**present, "sites": {**present["sites"], **blocks}}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
    write_text(dest / NAME, HEADER + text, durable=True)


def _new_record(
    importer: Importer,
    source: Source,
    options: Options,
    outcome: ImportReport,
    earlier: Mapping[str, Any],
) -> dict[str, Any]:
    """What was made of what; sites of an earlier import of the same data set stay."""
    how = {
        "source": str(source.root.resolve()),
        "options": options.given(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "konsil": __version__,
        "notes": outcome.notes,
    }
    sites = {
        site: {"counts": [asdict(row) for row in outcome.rows if row.site == site], **how}
        for site in dict.fromkeys(row.site for row in outcome.rows)
    }
    return {
        "name": importer.name,
        "title": importer.title,
        "licence": importer.licence,
        "home": importer.home,
        "paper": importer.table,
        "sites": {**earlier, **sites},
    }


def _record(dest: Path, importer: Importer) -> Path:
    return dest / RECORDS / f"{importer.name}.json"


def _read_record(dest: Path, importer: Importer) -> dict[str, Any]:
    """The sites that earlier imports of this data set made, or were about to make."""
    path = _record(dest, importer)
    try:
        sites: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["sites"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: is no record of an import; move it away") from None
    return sites


def _put_in_place(built: Path, final: Path) -> None:
    if final.exists():
        final.rename(built.with_name(f"{built.name}.replaced"))
    built.rename(final)


def _block(importer: Importer, dest: Path, site: str, pairs: Pairs) -> dict[str, Any]:
    """A site in the federation file: patterns, or a list where it says more than they can."""
    keys = {**importer.blocks.get(site, {})}
    if any(case.part or (case.patient and "patient" not in keys) for case, _ in pairs):
        return {"list": _write_list(dest, site, pairs), **keys}
    images = [PurePosixPath(result.image) for _, result in pairs]
    if all(result.label in image.parts for image, (_, result) in zip(images, pairs, strict=True)):
        return {"images": f"{site}/*/*{_suffixes(images)}", "labels": "folder", **keys}
    masks = [PurePosixPath(result.label) for _, result in pairs]
    return {
        "images": f"{site}/images/*{_suffixes(images)}",
        "labels": f"{site}/masks/*{_suffixes(masks)}",
        **keys,
    }


def _suffixes(paths: Sequence[PurePosixPath]) -> str:
    """.png, or .{jpg,png} where there are several."""
    found = sorted({".nii.gz" if p.name.endswith(".nii.gz") else p.suffix for p in paths})
    return found[0] if len(found) == 1 else ".{" + ",".join(s[1:] for s in found) + "}"


def _write_list(dest: Path, site: str, pairs: Pairs) -> dict[str, str]:
    """Image, label, patient and split of every case, in a CSV beside the federation file."""
    optional = {
        "patient": any(case.patient for case, _ in pairs),
        "split": any(case.part for case, _ in pairs),
    }
    columns = [column for column, there in optional.items() if there]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["image", "label", *columns])
    for case, result in pairs:
        label = f"{site}/{result.label}" if "/" in result.label else result.label
        cells = {"patient": _patient(case), "split": case.part}
        table.writerow([f"{site}/{result.image}", label, *(cells[column] for column in columns)])
    write_text(dest / f"{site}.csv", text.getvalue())
    return {"file": f"{site}.csv", **{column: column for column in columns}}
