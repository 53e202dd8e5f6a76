"""A federation file in the making, and as YAML with comments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from konsil.data.sources import RESERVED_SITES
from konsil.prepare.guess.files import Unit

EXAMPLES = 3  # of whatever is not used or not understood
ORDER = (
    *("task", "structures", "background", "classes", "channels", "patient"),
    *("split", "window", "slices", "channel", "series"),
)
HEAD = """\
# Written by `konsil data init` from what lies in this folder. Paths are relative to it.
# Lines after a (!) were guessed and need a look. `konsil data check` opens every file.
"""


@dataclass
class SiteDraft:
    """What is known of one site."""

    name: str
    keys: dict[str, Any]  # its block of the file, without what it shares with others
    images: list[Unit] = field(default_factory=list)
    masks: dict[str, list[Unit]] = field(default_factory=dict)  # structure, or "" for all
    settings: dict[str, Any] = field(default_factory=dict)  # go to the top if all sites agree


@dataclass
class Draft:
    """What is known of the federation."""

    task: str
    sites: list[SiteDraft] = field(default_factory=list)
    top: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)  # key -> lines above it
    found: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """What all sites say alike is said once, at the top."""
        for key in dict.fromkeys(key for site in self.sites for key in site.settings):
            values = [site.settings.get(key) for site in self.sites]
            if all(value == values[0] for value in values):
                self.top[key] = values[0]
            else:
                for site, value in zip(self.sites, values, strict=True):
                    if value is not None:
                        site.keys[key] = value

    def as_yaml(self) -> str:
        """The whole federation file."""
        top = {"task": self.task, **self.top}
        lines = [HEAD]
        for key in sorted(top, key=ORDER.index):
            lines += [f"# {line}" for line in self.comments.get(key, [])]
            lines += _entry(key, top[key], "")
        lines.append("sites:")
        for site in self.sites:
            lines.append(f"  {_scalar(site.name)}:")
            for key, value in site.keys.items():
                above = [] if key in top else self.comments.get(key, [])
                lines += [f"    # {line}" for line in above]
                lines += _entry(key, value, "    ")
        return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    """A key with its value; structures, one a line."""
    if key in ("structures", "classes", "labels") and isinstance(value, dict):
        yield f"{indent}{key}:"
        yield from (f"{indent}  {_scalar(name)}: {_scalar(own)}" for name, own in value.items())
    else:
        yield f"{indent}{key}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    """A value in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def site_name(folder: str) -> str:
    """A folder's name as a site's."""
    name = folder.strip().lstrip(".") or "site"
    return f"{name}_site" if name in RESERVED_SITES else name


def some_of(things: Sequence[Unit | str]) -> str:
    """The first few of some files, and how many there are."""
    paths = [thing if isinstance(thing, str) else thing.path for thing in things]
    shown = ", ".join(paths[:EXAMPLES])
    return shown + (f", ... ({len(paths)} files)" if len(paths) > EXAMPLES else "")
