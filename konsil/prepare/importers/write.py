"""From the cases of a downloaded folder to the sites of a federation, whole or not at all.

Sites are built in a hidden folder. The finished ones are renamed into place, and the federation
file, which makes them count, is written last: a killed import leaves nothing that anybody takes
for a site, and is simply repeated.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import yaml

from konsil.config import parse_yaml
from konsil.data.findings import BadFile, Findings
from konsil.data.manifest import NAME, Shared, read_manifest
from konsil.data.recipe import THREADS
from konsil.data.sources import SPLITS
from konsil.data.volumes.formats import suffix_of
from konsil.errors import DataError
from konsil.files import locked, write_text
from konsil.prepare.importers.base import (
    IMPORTERS,
    Case,
    Head,
    Importer,
    ImportReport,
    LeftOut,
    Options,
    Row,
    Source,
    Written,
)
from konsil.randomness import derive
from konsil.version import __version__

BUILDING = ".importing"
LIST = "list.csv"
HEADER = (
    "# Written by `konsil data import`; a further import into this folder adds its sites. Values\n"
    "# that you change stay then, but comments are lost.\n"
)
Progress = Callable[[str, int, int], None]  # site, cases done, cases in all
Pairs = list[tuple[Case, Written]]  # of a site


def import_dataset(
    name: str,
    source: Path,
    dest: Path,
    options: Options | None = None,
    report: Progress | None = None,
) -> ImportReport:
    """Write the data set in `source` into `dest` in the common form; all of it or nothing.

    Sites that earlier imports wrote into `dest` stay, and its federation.yaml gets the new ones;
    one import at a time works there, others wait. `report` is called with a site, the cases done
    and the cases in all.
    """
    options = options or Options()
    importer = IMPORTERS.find(name, "konsil data import")
    importer.check(options)
    origin = Source(source, importer)
    if dest.resolve().is_relative_to(source.resolve()):
        raise DataError(f"{dest}: lies inside {source}; import into a folder beside it")
    if dest.exists() and not dest.is_dir():
        raise DataError(f"{dest}: is a file; name a folder to import into")
    try:
        with locked(dest):
            return _import(importer, origin, dest, options, report)
    except OSError as error:
        raise DataError(
            f"{error.filename or dest}: {error.strerror or error}; nothing was imported. Make "
            f"room, or check that {dest} can be written and {source} can be read"
        ) from None


def _import(
    importer: Importer, source: Source, dest: Path, options: Options, report: Progress | None
) -> ImportReport:
    """Find, write, publish."""
    head = importer.head(source, options) if callable(importer.head) else importer.head
    destination = Destination(dest, importer, head)
    cases = _find(importer, source, options)
    destination.check_free(sorted({case.site for case in cases}), options.overwrite)
    building = dest / BUILDING
    shutil.rmtree(building, ignore_errors=True)  # of an import that was killed
    try:
        written, notes = _write(source, building, cases, options, report)
        outcome = _report(importer, dest, written, notes)
        destination.publish(written, source, options, outcome)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return outcome


# --- cases ----------------------------------------------------------------------------------------


def _find(importer: Importer, source: Source, options: Options) -> list[Case]:
    found = importer.find(source, options)
    source.raise_if_any()
    if options.splits == "given":
        cases = _with_validation(found, options.seed)
    else:
        cases = [replace(case, part="") for case in found]
    seen: dict[tuple[str, str], Case] = {}
    for case in cases:
        first = seen.setdefault((case.site, case.name.lower()), case)
        if first is not case:
            cure = "keep one of the two: they would get the same name"
            source.refuse("image that is there twice", f"{first} and {case}", cure)
    source.raise_if_any()
    if not cases:
        raise source.not_understood("no image was found")
    return cases


def _with_validation(cases: Sequence[Case], seed: int) -> list[Case]:
    """The data's own parts; where they have no validation part, a third of training is drawn."""
    complete: list[Case] = []
    for site in dict.fromkeys(case.site for case in cases):
        own = [case for case in cases if case.site == site]
        if "val" not in {case.part for case in own}:
            training = {case.whose for case in own if case.part == "train"}
            order = sorted(training, key=lambda who: derive(seed, "validation", site, who))
            drawn = order[: len(order) // 3]
            own = [replace(case, part="val") if case.whose in drawn else case for case in own]
        if {case.part for case in own} != set(SPLITS):
            raise DataError(
                f"site {site}: the data's own split cannot be made out (train, val and test are "
                "needed); get the missing part of the data, or import with splits: drawn"
            )
        complete += own
    return complete


def _write(
    source: Source,
    building: Path,
    cases: Sequence[Case],
    options: Options,
    report: Progress | None,
) -> tuple[dict[str, Pairs], list[str]]:
    """Every case into building/<site>, and what to tell of them; all that is wrong is raised."""
    building.mkdir(parents=True)

    def write(case: Case) -> Written | LeftOut | BadFile:
        try:
            return case.write(building / case.site, options)
        except (BadFile, LeftOut) as refused:
            return refused

    totals, done = Counter(case.site for case in cases), Counter[str]()
    written: dict[str, Pairs] = {site: [] for site in totals}
    notes, found = [], Findings()
    pool = ThreadPool(THREADS)
    try:
        for case, result in zip(cases, pool.imap(write, cases), strict=True):
            if isinstance(result, BadFile):
                found.add_file(str(case), result)
            elif isinstance(result, LeftOut):
                notes.append(f"{case}: left out: {result}")
            else:
                written[case.site].append((case, result))
                notes += [f"{case}: {result.note}"] if result.note else []
            done[case.site] += 1
            if report is not None:
                report(case.site, done[case.site], totals[case.site])
    finally:  # no thread writes any more when the folder is cleared away
        pool.terminate()
        pool.join()
    found.raise_if_any(source.root)
    return written, notes


def _report(
    importer: Importer, dest: Path, written: Mapping[str, Pairs], notes: Sequence[str]
) -> ImportReport:
    """What was made, and in the importer's words why it differs from the paper's."""
    rows: list[Row] = []
    reasons: dict[str, list[str]] = {}  # one for sites alike
    for site, pairs in written.items():
        paper, made = importer.paper.get(site, {}), Counter[str]()
        for case, result in pairs:
            made.update(result.counts)
            made.update({case.part} & paper.keys())
        own = [Row(site, what, count, paper.get(what)) for what, count in made.items()]
        if site in importer.differs and any(row.paper not in (None, row.made) for row in own):
            reasons.setdefault(importer.differs[site], []).append(site)
        rows += own
    told = [f"{', '.join(sites)}: {reason}" for reason, sites in reasons.items()]
    outcome = ImportReport(importer.name, importer.table, dest, tuple(rows), (*told, *notes))
    for site, pairs in written.items():
        if not pairs:
            raise DataError(f"site {site}: every case had to be left out\n{outcome.text()}")
    return outcome


# --- the folder that imports write into -----------------------------------------------------------


class Destination:
    """One folder, seen by one importer: its sites, its federation file, and who made them."""

    def __init__(self, folder: Path, importer: Importer, head: Head) -> None:
        self.folder, self._importer = folder, importer
        self._content = _read_federation(folder / NAME, importer.name, head)
        # What the file says otherwise for all its sites, the new ones say for themselves.
        self._own = {
            key: value
            for key, value in head.items()
            if key in Shared.model_fields and self._content.get(key) != value
        }
        self._record = folder / "imported" / f"{importer.name}.json"
        self._earlier = _read_record(self._record)

    def check_free(self, sites: Sequence[str], overwrite: bool) -> None:
        """A site counts if the federation file names it; a killed import's leftovers do not."""
        for site in sites:
            there = (self.folder / site).exists()
            counts = site in self._content["sites"]
            if there and counts and not overwrite:
                raise DataError(
                    f"{self.folder / site}: this site was imported already; import with "
                    "overwrite to replace it, or into another folder"
                )
            if there and not counts and site not in self._earlier:
                raise DataError(
                    f"{self.folder / site}: is in the way, and {self.folder / NAME} does not name "
                    "it; move it away or import into another folder"
                )

    def publish(
        self,
        written: Mapping[str, Pairs],
        source: Source,
        options: Options,
        outcome: ImportReport,
    ) -> None:
        """Record, rename, and name the sites in the federation file, in this order."""
        blocks = {site: self._block(site, pairs) for site, pairs in written.items()}
        record = self._new_record(source, options, outcome)
        write_text(self._record, json.dumps(record, indent=1) + "\n")
        for site in written:
            _put_in_place(self.folder / BUILDING / site, self.folder / site)
        content = {**self._content, "sites": {**self._content["sites"], **blocks}}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
        write_text(self.folder / NAME, HEADER + text, durable=True)

    def _block(self, site: str, pairs: Pairs) -> dict[str, Any]:
        """A site in the federation file: patterns, or a list where it says more than they can."""
        keys = {**self._own, **self._importer.blocks.get(site, {})}
        if any(case.part or (case.patient and "patient" not in keys) for case, _ in pairs):
            _write_list(self.folder / BUILDING / site / LIST, pairs)
            return {"list": f"{site}/{LIST}", **keys}
        images = _suffixes([result.image for _, result in pairs])
        if all("/" not in result.label for _, result in pairs):
            return {"images": f"{site}/*/*{images}", "labels": "folder", **keys}
        masks = _suffixes([result.label for _, result in pairs])
        return {"images": f"{site}/images/*{images}", "labels": f"{site}/masks/*{masks}", **keys}

    def _new_record(
        self, source: Source, options: Options, outcome: ImportReport
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
        stated = {key: getattr(self._importer, key) for key in ("name", "title", "licence", "home")}
        return {**stated, "paper": outcome.table, "sites": {**self._earlier, **sites}}


def _read_federation(path: Path, name: str, head: Head) -> dict[str, Any]:
    """The federation file that is there, if its sites and the new ones can live together."""
    if not path.exists():
        return {**head, "sites": {}}
    labels = read_manifest(path).labels or []
    present: dict[str, Any] = parse_yaml(path, "federation file")
    task = present.get("task", "segmentation")
    wanted = list(head.get("structures") or head.get("classes") or [])
    if task != head["task"] or set(labels) != set(wanted):
        raise DataError(
            f"{path}: is a {task} of {', '.join(labels)}, and {name} is a {head['task']} of "
            f"{', '.join(wanted)}; import it into another folder"
        )
    return present


def _read_record(path: Path) -> dict[str, Any]:
    """The sites that earlier imports of this data set made, or were about to make."""
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


def _suffixes(paths: Sequence[str]) -> str:
    """.png, or .{jpg,png} where there are several."""
    found = sorted({suffix_of(Path(path)) for path in paths})
    return found[0] if len(found) == 1 else ".{" + ",".join(s[1:] for s in found) + "}"


def _write_list(path: Path, pairs: Pairs) -> None:
    """Image, label, and if known patient and split of every case."""
    rows = [
        {"image": made.image, "label": made.label, "patient": case.whose, "split": case.part}
        for case, made in pairs
    ]
    columns = ["image", "label"]
    columns += ["patient"] if any(case.patient for case, _ in pairs) else []
    columns += ["split"] if any(case.part for case, _ in pairs) else []
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())
