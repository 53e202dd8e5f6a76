"""A federation file in the making, and as YAML with comments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from konsil.data.image_file import is_picture
from konsil.data.sources import RESERVED_SITES, Item

EXAMPLES = 3  # of whatever is not used or not understood
ORDER = (
    *("task", "structures", "background", "classes", "channels", "patient"),
    *("split", "window", "slices", "channel", "series"),
)
HEAD = """\
# Written by `konsil data init` from what lies in this folder. Paths are relative to it.
# Lines after a (!) were guessed and need a look. `konsil data check` opens every file."""


class _Writer(yaml.SafeDumper):
    """One line a key, and one a list."""


_Writer.add_representer(
    list, lambda to, data: to.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


@dataclass
class SiteDraft:
    """What is known of one site."""

    name: str
    keys: dict[str, Any]  # its block of the file, without what it shares with others
    settings: dict[str, Any] = field(default_factory=dict)  # go to the top if all sites agree
    items: list[Item] = field(default_factory=list)  # what the block leads to

    @property
    def structures(self) -> list[str]:
        """The structures that have a mask file each; none if one file has them all."""
        labels = self.keys.get("labels")
        return list(labels) if isinstance(labels, dict) else []

    @property
    def pictures(self) -> bool:
        """Whether its images are pictures, not volumes."""
        return all(is_picture(item.image) for item in self.items)


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
        text = yaml.dump(
            self.content(), Dumper=_Writer, width=10_000, allow_unicode=True, sort_keys=False
        )
        lines = [HEAD, *(["# Left to you:"] if self.to_do else [])]
        lines += [f"#   {line}" for text in self.to_do for line in f"- {text}".splitlines()]
        for line in ["", *text.splitlines()]:
            key = re.match(r"(|    )(\w+):", line)  # of the file, or of a site
            above = self.comments.get(key[2], []) if key else []
            lines += [*(f"{key[1]}# {comment}" for comment in above if key), line]
        return "\n".join(lines) + "\n"


def site_name(folder: str) -> str:
    """A folder's name as a site's."""
    name = folder.strip().lstrip(".") or "site"
    return f"{name}_site" if name in RESERVED_SITES else name


def some_of(paths: Sequence[str]) -> str:
    """The first few of some files, and how many there are."""
    shown = ", ".join(paths[:EXAMPLES])
    return shown + (f", ... ({len(paths)} files)" if len(paths) > EXAMPLES else "")
