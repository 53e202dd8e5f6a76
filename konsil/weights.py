"""Weights: one flat float32 buffer and its layout.

A layout orders a network's entries as trainable parameters, then running statistics, then
counters, so that `flat[:layout.trainable]` is what an optimiser moves and every method's
arithmetic is one operation on one vector. `bind` turns a network's own parameters into views of
such a buffer: loading is one copy, reading is none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from pathlib import Path
from typing import Any, Literal

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from konsil.errors import ConfigError, StateError
from konsil.files import replacing_by_name

Kind = Literal["trainable", "statistic", "counter"]
Group = Literal["body", "head", "norm"]
KINDS: tuple[Kind, ...] = ("trainable", "statistic", "counter")

# Asked by type: names such as `downsample.1` or `adn.N` hide that a layer normalises.
NORM_LAYERS = (
    nn.modules.batchnorm._NormBase,  # batch and instance norm of every dimension
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
)
SMALLEST_VARIANCE = 1e-5
ROUNDING = 1e-6  # by which the factors of a mean may miss 1


@dataclass(frozen=True)
class Entry:
    """One named tensor and its place in the flat buffer."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    group: Group
    start: int

    @property
    def span(self) -> slice:
        """Its part of the flat buffer."""
        return slice(self.start, self.start + prod(self.shape))


@dataclass(frozen=True)
class Layout:
    """Names, shapes, kinds and groups of the entries of a flat buffer, in order."""

    entries: tuple[Entry, ...]

    @classmethod
    def build(cls, items: Iterable[tuple[str, Sequence[int], Kind, Group]]) -> Layout:
        """A layout of (name, shape, kind, group): trainable first, then statistics, counters."""
        items = list(items)
        entries, start = [], 0
        for kind in KINDS:
            for name, shape, _, group in (i for i in items if i[2] == kind):
                entries.append(Entry(name, tuple(shape), kind, group, start))
                start += prod(shape)
        return cls(tuple(entries))

    @classmethod
    def of(cls, net: nn.Module) -> Layout:
        """The layout of a network, partitioned by the type of its modules."""
        head = head_module(net)
        items: list[tuple[str, Sequence[int], Kind, Group]] = []
        for path, module in net.named_modules():
            group: Group = "head" if path == head else "body"
            if isinstance(module, NORM_LAYERS):
                group = "norm"
            prefix = f"{path}." if path else ""
            for name, p in module.named_parameters(recurse=False):
                items.append((prefix + name, p.shape, "trainable", group))
            for name, b in module.named_buffers(recurse=False):
                kind: Kind = "statistic" if b.is_floating_point() else "counter"
                items.append((prefix + name, b.shape, kind, group))
        return cls.build(items)

    @cached_property
    def size(self) -> int:
        """How many values the buffer has."""
        return sum(prod(e.shape) for e in self.entries)

    @cached_property
    def trainable(self) -> int:
        """Number of trainable values: the first of the buffer."""
        return sum(prod(e.shape) for e in self.entries if e.kind == "trainable")

    @cached_property
    def counters(self) -> slice:
        """The counters: the last of the buffer."""
        count = sum(prod(e.shape) for e in self.entries if e.kind == "counter")
        return slice(self.size - count, self.size)

    @property
    def statistics(self) -> slice:
        """The running statistics: between the trainable values and the counters."""
        return slice(self.trainable, self.counters.start)

    @cached_property
    def variances(self) -> tuple[slice, ...]:
        """Running variances, which no mixture may make negative."""
        return tuple(
            e.span
            for e in self.entries
            if e.kind == "statistic" and e.name.rpartition(".")[2] == "running_var"
        )

    def only(self, names: Collection[str]) -> Layout:
        """The layout of these entries alone."""
        kept = (e for e in self.entries if e.name in names)
        return Layout.build((e.name, e.shape, e.kind, e.group) for e in kept)

    def spans(self, names: Collection[str]) -> tuple[slice, ...]:
        """The parts of the buffer that these entries take up, neighbours joined."""
        joined: list[slice] = []
        for entry in self.entries:
            if entry.name in names:
                if joined and joined[-1].stop == entry.span.start:
                    joined[-1] = slice(joined[-1].start, entry.span.stop)
                else:
                    joined.append(entry.span)
        return tuple(joined)

    @cached_property
    def key(self) -> str:
        """Equal for equal layouts: what an upload is checked against."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:16]

    def to_json(self) -> list[list[Any]]:
        """Plain data, in order."""
        return [[e.name, list(e.shape), e.kind, e.group] for e in self.entries]

    @classmethod
    def from_json(cls, data: Iterable[Sequence[Any]]) -> Layout:
        """The layout of `to_json`."""
        return cls.build((name, shape, kind, group) for name, shape, kind, group in data)


def digest_of(values: Tensor) -> str:
    """Alike for the same bits, and otherwise, as good as certainly, different."""
    return xxhash.xxh3_128_hexdigest(values.cpu().contiguous().numpy().data)


def head_module(net: nn.Module) -> str:
    """The dotted name of the head: the last convolution or linear layer in definition order.

    Found by the module's type, because names differ between networks.
    """
    layers = [name for name, m in net.named_modules() if isinstance(m, _ConvNd | nn.Linear)]
    if not layers:
        raise ConfigError(f"{type(net).__name__} has no convolution and no linear layer as head")
    return layers[-1]


@dataclass(frozen=True, eq=False)
class Weights:
    """A flat float32 buffer with its layout. Counters are whole numbers (exact below 2**24)."""

    layout: Layout
    flat: Tensor

    def __post_init__(self) -> None:
        if self.flat.dtype != torch.float32 or self.flat.shape != (self.layout.size,):
            raise StateError(
                f"weights: {tuple(self.flat.shape)} {self.flat.dtype} do not fit a layout of "
                f"{self.layout.size} float32 values"
            )

    @classmethod
    def zeros(cls, layout: Layout) -> Weights:
        """Weights that are all zero."""
        return cls(layout, torch.zeros(layout.size))

    @classmethod
    def of(cls, net: nn.Module) -> Weights:
        """A copy of a network's parameters and buffers."""
        layout, state = Layout.of(net), net.state_dict()
        pieces = [state[e.name].detach().reshape(-1).float() for e in layout.entries]
        return cls(layout, torch.cat(pieces) if pieces else torch.zeros(0))

    def __getitem__(self, name: str) -> Tensor:
        """The entry of that name, as a view."""
        for entry in self.layout.entries:
            if entry.name == name:
                return self.flat[entry.span].view(entry.shape)
        raise KeyError(name)

    def clone(self) -> Weights:
        """A copy that shares nothing."""
        return Weights(self.layout, self.flat.clone())

    def equals(self, other: Weights) -> bool:
        """Same layout and same bits."""
        return self.layout.key == other.layout.key and torch.equal(self.flat, other.flat)

    def __add__(self, other: Weights) -> Weights:
        return mix([(1.0, self), (1.0, other)])

    def __sub__(self, other: Weights) -> Weights:
        return mix([(1.0, self), (-1.0, other)])

    def __mul__(self, factor: float) -> Weights:
        return mix([(factor, self)])

    __rmul__ = __mul__

    @property
    def trainable(self) -> Tensor:
        """The trainable values, as a view."""
        return self.flat[: self.layout.trainable]

    def digest(self) -> str:
        """Alike for the same bits, and otherwise, as good as certainly, different."""
        return digest_of(self.flat)

    def dot(self, other: Weights) -> float:
        """Inner product of the trainable values, in float64."""
        return float(torch.dot(self.trainable.double(), other.trainable.double()))

    def norm(self) -> float:
        """Euclidean norm of the trainable values, in float64."""
        return sqrt(self.dot(self))

    def cosine(self, other: Weights) -> float:
        """Cosine between the trainable values; 0 if one of them is all zero."""
        size = self.norm() * other.norm()
        return self.dot(other) / size if size else 0.0

    def only(self, names: Collection[str]) -> Weights:
        """A copy of these entries alone."""
        pieces = [self.flat[span] for span in self.layout.spans(names)]
        return Weights(self.layout.only(names), torch.cat([self.flat[:0], *pieces]))

    def replaced(self, part: Weights) -> Weights:
        """These weights with the entries of `part` (made by `only`) in their places."""
        result, start = self.clone(), 0
        for span in self.layout.spans({e.name for e in part.layout.entries}):
            stop = start + span.stop - span.start
            result.flat[span] = part.flat[start:stop]
            start = stop
        return result

    def with_statistics_of(self, other: Weights) -> Weights:
        """These trainable values with the running statistics and counters of `other`."""
        return Weights(
            self.layout, torch.cat([self.trainable, other.flat[self.layout.trainable :]])
        )

    def save(self, path: Path, *, half: Collection[str] = (), **facts: str) -> None:
        """A safetensors file with every entry under its own name, and the layout beside it.

        The entries of `half` are stored as float16; `load` gives float32 again.
        """
        tensors = {e.name: self._typed(e).contiguous() for e in self.layout.entries}
        tensors |= {name: tensors[name].half() for name in half}
        with replacing_by_name(path) as part:
            save_file(tensors, part, {"layout": json.dumps(self.layout.to_json()), **facts})

    def _typed(self, entry: Entry) -> Tensor:
        values = self.flat[entry.span].view(entry.shape)
        return values.long() if entry.kind == "counter" else values.clone()

    @classmethod
    def load(cls, path: Path) -> Weights:
        """The weights of `save`."""
        try:
            with safe_open(path, "pt") as file:
                layout = Layout.from_json(json.loads(file.metadata()["layout"]))
                pieces = [file.get_tensor(e.name).reshape(-1).float() for e in layout.entries]
            return cls(layout, torch.cat(pieces))
        except Exception as error:
            raise StateError(f"{path}: not weights that Konsil wrote ({error})") from None


Parts = Mapping[str, Weights]


def mix(terms: Sequence[tuple[float, Weights]], *, extrapolate: bool = False) -> Weights:
    """Linear mixture of weights; counters take the maximum.

    Running statistics describe images: a mean of two sites' statistics does, a difference or a
    multiple does not, and an extrapolated variance below zero turns a network's output into NaN.
    So statistics are always a mean, by the positive factors. With `extrapolate` they follow the
    factors like everything else, but for variances, which stay positive.
    """
    layout = terms[0][1].layout
    flat = _sum(terms, slice(0, layout.size))
    factors = [factor for factor, _ in terms]
    if extrapolate:
        for span in layout.variances if min(factors) < 0 else ():
            flat[span].clamp_(min=SMALLEST_VARIANCE)
    elif min(factors) < 0 or abs(sum(factors) - 1) > ROUNDING:
        flat[layout.statistics] = _sum(_as_mean(terms), layout.statistics)
    counters = layout.counters
    if counters.stop > counters.start:
        flat[counters] = torch.stack([w.flat[counters] for _, w in terms]).max(dim=0).values
    return Weights(layout, flat)


def _sum(terms: Sequence[tuple[float, Weights]], span: slice) -> Tensor:
    flat = terms[0][0] * terms[0][1].flat[span]
    for factor, weights in terms[1:]:
        flat.add_(weights.flat[span], alpha=factor)
    return flat


def _as_mean(terms: Sequence[tuple[float, Weights]]) -> list[tuple[float, Weights]]:
    """The positive factors, summing up to 1; where there are none, all alike."""
    positive = [max(factor, 0.0) for factor, _ in terms]
    shares = positive if any(positive) else [1.0] * len(terms)
    return [(s / sum(shares), weights) for s, (_, weights) in zip(shares, terms, strict=True)]


class WeightedMean:
    """A streaming weighted mean: O(one model) of memory, however many sites.

    Sums run in float64 in the order of the calls (the server calls in roster order), so that the
    result does not depend on who answered first. A single weights comes back bit for bit.
    """

    CHUNK = 1 << 18  # values a step: a float64 copy of them stays in the cache

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.total = 0.0
        self._sum = torch.zeros(layout.size, dtype=torch.float64)
        self._counters = torch.zeros(layout.counters.stop - layout.counters.start)

    def add(self, weights: Weights, weight: float) -> None:
        """One more, with its weight."""
        flat = weights.flat
        for piece in self._pieces():
            self._sum[piece].add_(flat[piece].double(), alpha=weight)
        torch.maximum(self._counters, flat[self.layout.counters], out=self._counters)
        self.total += weight

    def result(self) -> Weights:
        """The mean so far."""
        flat = torch.empty(self.layout.size)
        for piece in self._pieces():
            flat[piece] = self._sum[piece].div(self.total)
        flat[self.layout.counters] = self._counters
        return Weights(self.layout, flat)

    def _pieces(self) -> Iterator[slice]:
        for start in range(0, self.layout.size, self.CHUNK):
            yield slice(start, start + self.CHUNK)


class BoundNetwork:
    """A network whose parameters, gradients and statistics are views of flat buffers."""

    def __init__(self, net: nn.Module, device: torch.device | str = "cpu") -> None:
        self.net = net.to(device)
        start = Weights.of(net)
        self.layout = start.layout
        self.flat = start.flat.to(device)
        self.grad = torch.zeros(self.layout.trainable, device=device)
        self._counters: list[tuple[Entry, Tensor]] = []
        self._point_into_flat()

    def _point_into_flat(self) -> None:
        parameters = dict(self.net.named_parameters())
        for entry in self.layout.entries:
            view = self.flat[entry.span].view(entry.shape)
            if entry.kind == "trainable":
                parameters[entry.name].data = view
                parameters[entry.name].grad = self.grad[entry.span].view(entry.shape)
            else:
                path, _, name = entry.name.rpartition(".")
                owner = self.net.get_submodule(path)
                if entry.kind == "statistic":
                    owner._buffers[name] = view
                else:  # torch wants counters as integers: they cannot be views
                    self._counters.append((entry, owner.get_buffer(name)))

    def load(self, weights: Weights) -> None:
        """Take these weights: one copy."""
        if weights.layout.key != self.layout.key:
            raise StateError("weights of another network cannot be loaded")
        self.flat.copy_(weights.flat)
        for entry, counter in self._counters:
            counter.copy_(self.flat[entry.span].view(entry.shape))

    def mode(self, training: bool) -> nn.Module:
        """The network in training or evaluation mode: where it is already, no module is told."""
        return self.net if self.net.training == training else self.net.train(training)

    def weights(self) -> Weights:
        """A copy of what the network holds now, on the CPU."""
        for entry, counter in self._counters:
            self.flat[entry.span] = counter.reshape(-1).float()
        flat = self.flat.detach()
        return Weights(self.layout, flat.clone() if flat.device.type == "cpu" else flat.cpu())

    @property
    def trainable(self) -> Tensor:
        """The trainable values, as a view: what an optimiser moves."""
        return self.flat[: self.layout.trainable]

    def norm_layers(self) -> Iterator[nn.modules.batchnorm._NormBase]:
        """The layers that keep running statistics."""
        for module in self.net.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
                yield module
