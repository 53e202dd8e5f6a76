"""A pretrained start: the file whose weights stand in the place of random ones."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import torch

from konsil.errors import ConfigError, StateError
from konsil.networks import NetworkSpec, build_network
from konsil.weights import Entry, Layout, Weights

CURE = (
    "give a file that Konsil wrote for this network (konsil pretrain, or a run's "
    "checkpoints/best/global.safetensors), or leave initial out"
)


@dataclass(frozen=True)
class Pretrained:
    """The weights of a file, and the hash of its content, which a plan is made with."""

    path: Path
    sha256: str
    weights: Weights

    def __str__(self) -> str:
        return f"{self.path.name} (sha256 {self.sha256[:8]})"

    def fitted(self, drawn: Weights, spec: NetworkSpec) -> Weights:
        """These weights for a network; what the number of outputs reshapes stays as drawn."""
        theirs, mine = self.weights.layout, drawn.layout
        reshaped = self.reshaped(mine)
        free = _shaped_by_outputs(spec) if reshaped else frozenset()
        if difference := _first_difference(mine, theirs, free):
            raise ConfigError(f"network.initial: {self.path}: {difference}; {CURE}")
        names = {e.name for e in mine.entries}
        return drawn.replaced(self.weights.only(names.difference(reshaped)))

    def reshaped(self, layout: Layout) -> list[str]:
        """The entries of a layout that have another shape here."""
        shapes = {e.name: e.shape for e in self.weights.layout.entries}
        return [e.name for e in layout.entries if shapes.get(e.name, e.shape) != e.shape]


def content_of(path: Path) -> str:
    """The sha256 of a file with weights."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ConfigError(f"network.initial: {path}: no such file; {CURE}") from None
    except OSError as error:
        raise ConfigError(
            f"network.initial: {path}: cannot be read ({error.strerror}); {CURE}"
        ) from None


def read_pretrained(path: Path, agreed: str | None = None) -> Pretrained:
    """The weights of a file; `agreed`: the content that a plan was made with, and no other."""
    sha256 = content_of(path)
    if agreed is not None and sha256 != agreed:
        raise ConfigError(
            f"network.initial: {path}: this file has changed since the run began; put it back, or "
            "begin another run"
        )
    try:
        weights = Weights.load(path)
    except StateError as error:
        raise ConfigError(f"network.initial: {error}; {CURE}") from None
    for entry in weights.layout.entries:
        if not torch.isfinite(weights.flat[entry.span]).all():
            raise ConfigError(
                f"network.initial: {path}: {entry.name} has values that are not finite; {CURE}"
            )
    return Pretrained(path, sha256, weights)


def _shaped_by_outputs(spec: NetworkSpec) -> frozenset[str]:
    """The entries whose shape follows from the number of outputs: the head, perhaps more."""
    fewer, more = (_layout(spec, spec.outputs + further) for further in (0, 1))
    pairs = zip(fewer.entries, more.entries, strict=False)
    return frozenset(a.name for a, b in pairs if a.shape != b.shape)


def _layout(spec: NetworkSpec, outputs: int) -> Layout:
    with torch.random.fork_rng(devices=[]):  # the weights do not matter, nor shall their draw
        return Layout.of(build_network(replace(spec, outputs=outputs)))


def _first_difference(mine: Layout, theirs: Layout, free: Collection[str]) -> str:
    """In words, where a file is of another network; entries in `free` may have any shape."""
    for own, found in zip_longest(mine.entries, theirs.entries):
        if not (own and found and _alike(own, found, free)):
            return (
                f"weights of another network: where this one has {_words(own)}, the file has "
                f"{_words(found)}"
            )
    return ""


def _alike(own: Entry, found: Entry, free: Collection[str]) -> bool:
    shapes = own.shape == found.shape or own.name in free
    return shapes and (own.name, own.kind) == (found.name, found.kind)


def _words(entry: Entry | None) -> str:
    if entry is None:
        return "no further entry"
    return f"{entry.name} ({entry.kind}, {' x '.join(map(str, entry.shape)) or 'one value'})"
