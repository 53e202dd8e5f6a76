"""What `konsil show` prints of an audit trail: who sent what to whom, in words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from konsil.errors import RunError

FILE = "audit.jsonl"
Event = dict[str, Any]


def find_trail(path: Path) -> Path | None:
    """The audit trail that a person means: the file itself, or the one in a folder."""
    if path.is_file() and path.name.endswith(".jsonl"):
        return path
    return path / FILE if (path / FILE).is_file() else None


def show_trail(console: Console, path: Path) -> None:
    """One line an event, and sums of what left and what came."""
    events = list(read_trail(path))
    table = Table("time", "event", "site", "what", Column("bytes", justify="right"), "sha256")
    for event in events:
        cells = (
            event["time"][:19].replace("T", " "),
            event["event"],
            event.get("site", ""),
            _what(event),
            f"{event['bytes']:,}" if "bytes" in event else "",
            event.get("sha256", "")[:12],
        )
        table.add_row(*map(_cell, cells))
    console.print(table)
    for line in _sums(events):
        console.print(line, highlight=False)


def read_trail(path: Path) -> Iterator[Event]:
    """The events of a trail; a last line that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise RunError(
                    f"{path}, line {number}: not an event; the file is damaged"
                ) from None


def _sums(events: list[Event]) -> Iterator[str]:
    """How many messages and bytes each way, and how many were refused."""
    for kind in ("sent", "received"):
        sizes = [event.get("bytes", 0) for event in events if event["event"] == kind]
        yield f"{kind}: {len(sizes)} messages, {sum(sizes):,} bytes"
    refused = sum(event["event"] == "refused" or "refused" in event for event in events)
    if refused:
        yield f"refused: {refused}"


def _what(event: Event) -> str:
    if "kind" in event:
        parts = ", ".join(f"{n} ({p['values']:,})" for n, p in event["parts"].items())
        return f"{event['job']}, round {event['round']}, {event['kind']}: {parts or 'no weights'}"
    if event["event"] == "agreed":
        methods = ", ".join(method["name"] for method in event["experiment"]["methods"])
        return f"plan {event['plan']}: {methods}, Konsil {event['version']}"
    for key in ("reason", "refused", "topic", "plan"):
        if key in event:
            return next(iter(str(event[key]).splitlines()), "")
    return ""


def _cell(text: object) -> Text:
    """Others wrote it: markup is not obeyed, and no control character reaches the screen."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return Text("".join(shown))
