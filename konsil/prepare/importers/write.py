"""From the cases of a downloaded folder to the sites of a federation, whole or not at all.

Sites are built in a hidden folder. The finished ones are renamed into place, and the federation
file, which makes them count, is written last: a killed import leaves nothing that anybody takes
for a site, and is simply repeated.
"""

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import yaml

from konsil.config import parse_yaml
from konsil.data.findings import BadFile
from konsil.data.manifest import NAME, Shared, read_manifest
from konsil.data.recipe import THREADS
from konsil.data.sources import SPLITS
from konsil.data.volumes.formats import suffix_of
from konsil.errors import DataError
from konsil.files import locked, write_text
from konsil.prepare.importers.base import IMPORTERS, Case, LeftOut, Options, Source, Written
from konsil.randomness import derive
from konsil.version import __version__

HEADER = (
    "# Written by `konsil data import`; a further import into this folder adds its sites. Values\n"
    "# that you change stay then, but comments are lost.\n"
)
Progress = Callable[[str, int, int], None]  # site, cases done, cases in all
Pairs = list[tuple[Case, Written]]  # of a site


@dataclass(frozen=True)
class Row:
    """One count, beside the paper's."""

    site: str
    what: str
    made: int
    paper: int | None


@dataclass(frozen=True)
class ImportReport:
    """What an import made, against the paper's counts."""

    name: str
    table: str
    dest: Path
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {**asdict(self), "dest": str(self.dest)}

    def text(self) -> str:
        """A table and the notes below it."""
        cells = [("site", "what", "made", "paper")]
        cells += [
            (r.site, r.what, f"{r.made:,}", "-" if r.paper is None else f"{r.paper:,}")
            for r in self.rows
        ]
        a, b, c, d = (max(map(len, column)) for column in zip(*cells, strict=True))
        lines = [f"{w:<{a}}  {x:<{b}}  {y:>{c}}  {z:>{d}}".rstrip() for w, x, y, z in cells]
        paper = [f"paper: {self.table}"] if self.table else []
        return "\n".join([*lines, *paper, *(f"- {note}" for note in self.notes)])


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
            return _Import(origin, dest, options).run(report or (lambda *_: None))
    except OSError as error:
        raise DataError(
            f"{error.filename or dest}: {error.strerror or error}; nothing was imported. Make "
            f"room, or check that {dest} can be written and {source} can be read"
        ) from None


class _Import:
    """One data set on its way from the folder it was downloaded into to its sites."""

    def __init__(self, source: Source, dest: Path, options: Options) -> None:
        self.source, self.dest, self.options = source, dest, options
        self.importer = importer = source.importer
        self.building = dest / ".importing"
        self.record = dest / "imported" / f"{importer.name}.json"
        self.earlier = _read_record(self.record)
        self.head = importer.head(source, options) if callable(importer.head) else importer.head
        self.federation = self._read_federation()

    def run(self, report: Progress) -> ImportReport:
        """Find, write, publish."""
        cases = self._find()
        self._check_free(sorted({case.site for case in cases}))
        shutil.rmtree(self.building, ignore_errors=True)  # of an import that was killed
        try:
            written, notes = self._write(cases, report)
            outcome = self._report(written, notes)
            self._publish(written, outcome)
        finally:
            shutil.rmtree(self.building, ignore_errors=True)
        return outcome

    # --- before anything is written ---

    def _read_federation(self) -> dict[str, Any]:
        """The federation file that is there, if its sites and the new ones can live together."""
        path, head = self.dest / NAME, self.head
        if not path.exists():
            return {**head, "sites": {}}
        there = read_manifest(path)
        labels, wanted = there.labels or [], [*head.get("structures", head.get("classes", ()))]
        if there.task != head["task"] or set(labels) != set(wanted):
            raise DataError(
                f"{path}: is a {there.task} of {', '.join(labels)}, and {self.importer.name} is a "
                f"{head['task']} of {', '.join(wanted)}; import it into another folder"
            )
        present: dict[str, Any] = parse_yaml(path, "federation file")
        return present

    def _find(self) -> list[Case]:
        cases = list(self.importer.find(self.source, self.options))
        self.source.raise_if_any()
        if self.options.splits == "given":
            cases = _with_validation(cases, self.options.seed)
        else:
            cases = [replace(case, part="") for case in cases]
        seen: dict[tuple[str, str], Case] = {}
        for case in cases:
            first = seen.setdefault((case.site, case.name.lower()), case)
            if first is not case:
                cure = "keep one of the two: they would get the same name"
                self.source.refuse("image that is there twice", f"{first} and {case}", cure)
        self.source.raise_if_any()
        if not cases:
            raise self.source.not_understood("no image was found")
        return cases

    def _check_free(self, sites: Sequence[str]) -> None:
        """A site counts if the federation file names it; a killed import's leftovers do not."""
        for place in (self.dest / site for site in sites if (self.dest / site).exists()):
            counts = place.name in self.federation["sites"]
            if counts and not self.options.overwrite:
                raise DataError(
                    f"{place}: this site was imported already; import with overwrite to replace "
                    "it, or into another folder"
                )
            if not counts and place.name not in self.earlier:
                raise DataError(
                    f"{place}: is in the way, and {self.dest / NAME} does not name it; move it "
                    "away or import into another folder"
                )

    # --- writing ---

    def _write(self, cases: Sequence[Case], report: Progress) -> tuple[dict[str, Pairs], list[str]]:
        """Every case into its site, and what to tell of them; all that is wrong is raised."""
        self.building.mkdir(parents=True)

        def write(case: Case) -> Written | LeftOut | BadFile:
            try:
                return case.write(self.building / case.site, self.options)
            except (BadFile, LeftOut) as refused:
                return refused

        totals, done = Counter(case.site for case in cases), Counter[str]()
        written: dict[str, Pairs] = {site: [] for site in totals}
        notes: list[str] = []
        pool = ThreadPool(THREADS)
        try:
            for case, result in zip(cases, pool.imap(write, cases), strict=True):
                if isinstance(result, BadFile):
                    self.source.found.add_file(str(case), result)
                elif isinstance(result, LeftOut):
                    notes.append(f"{case}: left out: {result}")
                else:
                    written[case.site].append((case, result))
                    notes += [f"{case}: {result.note}"] if result.note else []
                done[case.site] += 1
                report(case.site, done[case.site], totals[case.site])
        finally:  # no thread writes any more when the folder is cleared away
            pool.terminate()
            pool.join()
        self.source.raise_if_any()
        return written, notes

    def _report(self, written: Mapping[str, Pairs], notes: Sequence[str]) -> ImportReport:
        """What was made, and in the importer's words why it differs from the paper's."""
        rows: list[Row] = []
        reasons: dict[str, list[str]] = {}  # one for sites alike
        for site, pairs in written.items():
            paper, made = self.importer.paper.get(site, {}), Counter[str]()
            for case, result in pairs:
                made.update(result.counts)
                made.update({case.part} & paper.keys())
            own = [Row(site, what, count, paper.get(what)) for what, count in made.items()]
            reason = self.importer.differs.get(site)
            if reason and any(row.paper not in (None, row.made) for row in own):
                reasons.setdefault(reason, []).append(site)
            rows += own
        told = [f"{', '.join(sites)}: {reason}" for reason, sites in reasons.items()]
        outcome = ImportReport(
            self.importer.name, self.importer.table, self.dest, tuple(rows), (*told, *notes)
        )
        for site, pairs in written.items():
            if not pairs:
                raise DataError(f"site {site}: every case had to be left out\n{outcome.text()}")
        return outcome

    # --- publishing ---

    def _publish(self, written: Mapping[str, Pairs], outcome: ImportReport) -> None:
        """Record, rename, and name the sites in the federation file, in this order."""
        blocks = {site: self._block(site, pairs) for site, pairs in written.items()}
        write_text(self.record, json.dumps(self._new_record(outcome), indent=1) + "\n")
        for site in written:
            _put_in_place(self.building / site, self.dest / site)
        content = {**self.federation, "sites": {**self.federation["sites"], **blocks}}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
        write_text(self.dest / NAME, HEADER + text, durable=True)

    def _block(self, site: str, pairs: Pairs) -> dict[str, Any]:
        """A site in the federation file: patterns, or a list where it says more than they can."""
        own = {  # what the file says otherwise for all its sites
            key: value
            for key, value in self.head.items()
            if key in Shared.model_fields and self.federation.get(key) != value
        }
        keys = {**own, **self.importer.blocks.get(site, {})}
        if any(case.part or (case.patient and "patient" not in keys) for case, _ in pairs):
            _write_list(self.building / site / "list.csv", pairs)
            return {"list": f"{site}/list.csv", **keys}
        images = _suffixes([result.image for _, result in pairs])
        if all("/" not in result.label for _, result in pairs):
            return {"images": f"{site}/*/*{images}", "labels": "folder", **keys}
        masks = _suffixes([result.label for _, result in pairs])
        return {"images": f"{site}/images/*{images}", "labels": f"{site}/masks/*{masks}", **keys}

    def _new_record(self, outcome: ImportReport) -> dict[str, Any]:
        """What was made of what; sites of an earlier import of the same data set stay."""
        how = {
            "source": str(self.source.root.resolve()),
            "options": self.options.given(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "konsil": __version__,
            "notes": outcome.notes,
        }
        sites = {
            site: {"counts": [asdict(row) for row in outcome.rows if row.site == site], **how}
            for site in dict.fromkeys(row.site for row in outcome.rows)
        }
        stated = {key: getattr(self.importer, key) for key in ("name", "title", "licence", "home")}
        return {**stated, "paper": outcome.table, "sites": {**self.earlier, **sites}}


def _with_validation(cases: Sequence[Case], seed: int) -> list[Case]:
    """The data's own parts; where they have no validation part, a third of training is drawn."""
    complete: list[Case] = []
    for site in dict.fromkeys(case.site for case in cases):
        own = [case for case in cases if case.site == site]
        if "val" not in {case.part for case in own}:
            training = {case.whose for case in own if case.part == "train"}
            order = sorted(training, key=lambda who: derive(seed, "validation", site, who))
            drawn = set(order[: len(order) // 3])
            own = [replace(case, part="val") if case.whose in drawn else case for case in own]
        if {case.part for case in own} != set(SPLITS):
            raise DataError(
                f"site {site}: the data's own split cannot be made out (train, val and test are "
                "needed); get the missing part of the data, or import with splits: drawn"
            )
        complete += own
    return complete


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
    known = any(case.patient for case, _ in pairs)
    rows = [("image", "label", "patient", "split")]
    rows += [
        (made.image, made.label, case.whose if known else "", case.part) for case, made in pairs
    ]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
    write_text(path, text.getvalue())
