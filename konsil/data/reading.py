"""How the file of an image is read: what a model must know of the files it is asked about."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from konsil.data.readers import Percentiles, Window
from konsil.data.volumes import View


@dataclass(frozen=True)
class ImageReading:
    """From a file's intensities to 8 bit, and from a volume to its slices."""

    window: Window | None = None  # None: all of the pixel type, or volumes' usual one
    view: View = "axial"  # volumes: how they are sliced
    channel: int | None = None  # volumes of several: which
    series: str | None = None  # DICOM folders of several: which, by its description

    def to_json(self) -> dict[str, Any]:
        """Plain data, in the words of a federation file."""
        words = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.window, Percentiles):
            words["window"] = {"percentiles": [self.window.low, self.window.high]}
        elif isinstance(self.window, tuple):
            words["window"] = list(self.window)
        return words

    @classmethod
    def from_json(cls, words: Any) -> ImageReading:
        """What `to_json` wrote; ValueError says what is wrong."""
        known = {field.name for field in fields(cls)}
        if not isinstance(words, Mapping) or not set(words) <= known:
            raise ValueError(f"reading: {', '.join(sorted(known))}, and nothing else")
        window, view = words.get("window"), words.get("view", "axial")
        channel, series = words.get("channel"), words.get("series")
        if view not in get_args(View):
            raise ValueError(f"reading: view = {view!r}: one of {', '.join(get_args(View))}")
        if channel is not None and (type(channel) is not int or channel < 0):
            raise ValueError(f"reading: channel = {channel!r}: a whole number from 0")
        if series is not None and not _is_pattern(series):
            raise ValueError(f"reading: series = {series!r}: not a regular expression")
        return cls(_window(window), view, channel, series)

    def __str__(self) -> str:
        said = [f"{key} {value}" for key, value in self.to_json().items() if value is not None]
        return ", ".join(said)


def _window(words: Any) -> Window | None:
    if words is None or words == "full":
        return "full" if words else None
    ends = words.get("percentiles") if isinstance(words, Mapping) and len(words) == 1 else words
    if not isinstance(ends, list | tuple) or len(ends) != 2 or not all(map(_is_number, ends)):
        raise ValueError(f"reading: window = {words!r}: two numbers, percentiles, or full")
    low, high = map(float, ends)
    if not low < high or (isinstance(words, Mapping) and not 0 <= low < high <= 100):
        raise ValueError(f"reading: window = {words!r}: the smaller number first")
    return Percentiles(low, high) if isinstance(words, Mapping) else (low, high)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_pattern(text: Any) -> bool:
    try:
        re.compile(text)
    except (re.error, TypeError, RecursionError):
        return False
    return isinstance(text, str)
