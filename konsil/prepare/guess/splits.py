"""Folders called train, val and test."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

from konsil.data.findings import Findings
from konsil.data.listing import PARTS, check_splits_given
from konsil.data.sources import Item
from konsil.errors import DataError
from konsil.prepare.guess.draft import Draft
from konsil.prepare.guess.words import joined

FILE = "federation-splits.csv"


def splits_of_folders(draft: Draft, items: Sequence[Item]) -> list[Item]:
    """The items with the splits that their folders say, if every folder says one."""
    divided = [replace(item, split=_split(item)) for item in items]
    without = [item.image for item in divided if not item.split]
    if len(without) == len(items) or any(item.split for item in items):
        return []  # nothing is said, or a list says it
    if without:
        draft.to_do.append(
            f"folders say train, val or test of some images but not of all, {without[0]} for "
            "example: so splits are drawn"
        )
        return []
    found = Findings()
    check_splits_given(divided, found)
    try:
        found.raise_if_any("folders called train, val and test")
    except DataError as error:
        draft.to_do.append(f"splits are drawn, not taken from folders. {error}")
        return []
    draft.top["split"] = {"file": FILE}
    draft.comments["split"] = ["From the folders; what they leave out is cut from train."]
    draft.found.append(f"folders say which images train, validate and test: {FILE}")
    return divided


def _split(item: Item) -> str:
    names = [PARTS[joined(name)] for name in item.image.split("/")[:-1] if joined(name) in PARTS]
    return names[-1] if names else ""


def splits_table(items: Sequence[Item]) -> str:
    """The splits as the CSV that `split: {file: ...}` reads."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(["site", "image", "split"])
    rows.writerows([item.site, item.image, item.split] for item in items)
    return text.getvalue()
