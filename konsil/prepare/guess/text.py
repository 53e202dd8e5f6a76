"""The draft as YAML with comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from konsil.prepare.guess.draft import Draft, SiteDraft

ORDER = (
    *("task", "structures", "background", "classes", "channels", "patient"),
    *("split", "window", "slices", "channel", "series"),
)
HEAD = """\
# Written by `konsil data init` from what lies in this folder. Paths are relative to it.
# Lines after a (!) were guessed and need a look. `konsil data check` opens every file.
"""


def as_yaml(draft: Draft) -> str:
    """The whole federation file."""
    top = {"task": draft.task, **draft.top}
    lines = [HEAD]
    for key in sorted(top, key=ORDER.index):
        lines += [f"# {line}" for line in draft.comments.get(key, [])]
        lines += _entry(key, top[key], "")
    lines.append("sites:")
    for site in draft.sites:
        lines += _site(site, {k: v for k, v in draft.comments.items() if k not in top})
    return "\n".join(lines) + "\n"


def _site(site: SiteDraft, comments: dict[str, list[str]]) -> Iterator[str]:
    yield f"  {scalar(site.name)}:"
    for key, value in site.keys.items():
        yield from (f"    # {line}" for line in comments.get(key, []))
        yield from _entry(key, value, "    ")


def _entry(key: str, value: Any, indent: str) -> list[str]:
    """A key with its value; structures, one a line."""
    if key in ("structures", "classes", "labels") and isinstance(value, dict):
        inner = [f"{indent}  {scalar(name)}: {scalar(own)}" for name, own in value.items()]
        return [f"{indent}{key}:", *inner]
    return [f"{indent}{key}: {scalar(value)}"]


def scalar(value: Any) -> str:
    """A value in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")
