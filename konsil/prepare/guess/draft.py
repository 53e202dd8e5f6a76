"""A federation file in the making."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from konsil.data.sources import RESERVED_SITES
from konsil.prepare.guess.walk import Unit

EXAMPLES = 3  # of whatever is not used or not understood


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
    sites: list[SiteDraft]
    top: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)  # key -> lines above it
    found: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    split_folders: bool = False  # folders called train, val, test say which image is where

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


def site_name(folder: str) -> str:
    """A folder's name as a site's."""
    name = folder.strip().lstrip(".") or "site"
    return f"{name}_site" if name in RESERVED_SITES else name


def some_of(paths: list[str]) -> str:
    """The first few of some files, and how many there are."""
    shown = ", ".join(paths[:EXAMPLES])
    return shown + (f", ... ({len(paths)} files)" if len(paths) > EXAMPLES else "")
