"""A federation file in the making, and as YAML with comments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from konsil.data.sources import RESERVED_SITES, Item

EXAMPLES = 3  # of whatever is not used or not understood
ORDER = (
    *("task", "structures", "background", "classes", "channels", "patient"),
    *("split", "window", "slices", "channel", "series"),
)
HEAD = """\
# Written by `konsil data init` from what lies in this folder. Paths are relative to it.
# Lines after a (!) were guessed and need a look. `konsil data check` opens every file."""


@dataclass
class SiteDraft:
    """What is known of one site."""

    name: str
    keys: dict[str, Any]  # its block of the file, without what it shares with others
    settings: dict[str, Any] = field(default_factory=dict)  # go to the top if all sites agree
    items: list[Item] = field(default_factory=list)  # what the block leads to


@dataclass
class Draft:
    """What is known of the federation."""

    task: str
    sites: list[SiteDraft] = field(default_factory=list)
    top: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)  # key -> lines above it
    found: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)  # what is left to a person, or left out

    def content(self) -> dict[str, Any]:
        """The federation file. What all sites say alike is said once, at the top."""
        top: dict[str, Any] = {"task": self.task, **self.top}
        sites = {site.name: dict(site.keys) for site in self.sites}
        for key in dict.fromkeys(key for site in self.sites for key in site.settings):
            values = [site.settings.get(key) for site in self.sites]
            if all(value == values[0] for value in values):
                top[key] = values[0]
                continue
            for site in self.sites:
                sites[site.name] |= {k: v for k, v in site.settings.items() if k == key}
        return {**{key: top[key] for key in ORDER if key in top}, "sites": sites}

    def as_yaml(self) -> str:
        """The same as text, with comments and with what is left to a person."""
        top = self.content()
        sites = top.pop("sites")
        lines = [HEAD, *(["# Left to you:"] if self.to_do else [])]
        lines += [f"#   {line}" for text in self.to_do for line in f"- {text}".splitlines()]
        lines.append("")
        for key, value in top.items():
            lines += self._entry(key, value, "")
        lines.append("sites:")
        for name, site in sites.items():
            lines.append(f"  {_scalar(name)}:")
            for key, value in site.items():
                lines += self._entry(key, value, "    ")
        return "\n".join(lines) + "\n"

    def _entry(self, key: str, value: Any, indent: str) -> Iterator[str]:
        """A key with its comments and its value; structures, one a line."""
        yield from (f"{indent}# {line}" for line in self.comments.get(key, []))
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


def some_of(paths: Sequence[str]) -> str:
    """The first few of some files, and how many there are."""
    shown = ", ".join(paths[:EXAMPLES])
    return shown + (f", ... ({len(paths)} files)" if len(paths) > EXAMPLES else "")
