"""The folder that imports write into: its sites, its federation file, and who made them.

Sites are built in a hidden folder. The finished ones are renamed into place, and the federation
file, which makes them count, is written last: a killed import leaves nothing that anybody takes
for a site, and is simply repeated.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from konsil.config import parse_yaml
from konsil.data.manifest import NAME, Shared, read_manifest
from konsil.errors import DataError
from konsil.files import write_text
from konsil.prepare.importers.base import Case, Head, Importer, ImportReport, Options, Written
from konsil.version import __version__

BUILDING = ".importing"
RECORDS = "imported"
LIST = "list.csv"
HEADER = (
    "# Written by `konsil data import`; a further import into this folder adds its sites. Values\n"
    "# that you change stay then, but comments are lost.\n"
)
Pairs = list[tuple[Case, Written]]


class Destination:
    """One folder, seen by one importer."""

    def __init__(self, folder: Path, importer: Importer, head: Head) -> None:
        self.folder, self._importer = folder, importer
        self._content = _read_federation(folder / NAME, importer.name, head)
        # What the file says otherwise for all its sites, the new ones say for themselves.
        self._own = {
            key: value
            for key, value in head.items()
            if key in Shared.model_fields and self._content.get(key) != value
        }
        self._record = folder / RECORDS / f"{importer.name}.json"
        self._earlier = _read_record(self._record)

    def check_free(self, sites: Iterable[str], overwrite: bool) -> None:
        """A site counts if the federation file names it; a killed import's leftovers do not."""
        for site in sorted(sites):
            if not (self.folder / site).exists():
                continue
            if site in self._content["sites"]:
                if not overwrite:
                    raise DataError(
                        f"{self.folder / site}: this site was imported already; import with "
                        "overwrite to replace it, or into another folder"
                    )
            elif site not in self._earlier:
                raise DataError(
                    f"{self.folder / site}: is in the way, and {self.folder / NAME} does not name "
                    "it; move it away or import into another folder"
                )

    def publish(
        self, written: Mapping[str, Pairs], source: Path, options: Options, outcome: ImportReport
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

    def _new_record(self, source: Path, options: Options, outcome: ImportReport) -> dict[str, Any]:
        """What was made of what; sites of an earlier import of the same data set stay."""
        how = {
            "source": str(source.resolve()),
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
            "name": self._importer.name,
            "title": self._importer.title,
            "licence": self._importer.licence,
            "home": self._importer.home,
            "paper": self._importer.table,
            "sites": {**self._earlier, **sites},
        }


def _read_federation(path: Path, name: str, head: Head) -> dict[str, Any]:
    """The federation file that is there, if its sites and the new ones can live together."""
    if not path.exists():
        return {**head, "sites": {}}
    labels = read_manifest(path).labels
    present: dict[str, Any] = parse_yaml(path, "federation file")
    wanted = list(head.get("structures") or head.get("classes") or [])
    if present.get("task", "segmentation") != head["task"] or set(labels or []) != set(wanted):
        raise DataError(
            f"{path}: is a {present.get('task', 'segmentation')} of {', '.join(labels or [])}, and "
            f"{name} is a {head['task']} of {', '.join(wanted)}; import it into another folder"
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
    found = sorted({".nii.gz" if p.endswith(".nii.gz") else PurePosixPath(p).suffix for p in paths})
    return found[0] if len(found) == 1 else ".{" + ",".join(s[1:] for s in found) + "}"


def _write_list(path: Path, pairs: Pairs) -> None:
    """Image, label, and if known patient and split of every case."""
    known = {
        "patient": any(case.patient for case, _ in pairs),
        "split": any(case.part for case, _ in pairs),
    }
    columns = ["image", "label", *(column for column, there in known.items() if there)]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for case, result in pairs:
        row = {"image": result.image, "label": result.label}
        table.writerow({**row, "patient": case.whose, "split": case.part})
    write_text(path, text.getvalue())
