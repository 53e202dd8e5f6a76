"""One network as an ONNX graph: written, and held against torch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from konsil.errors import ConfigError, StateError
from konsil.networks import Network, NetworkSpec, build_network
from konsil.weights import BoundNetwork, Weights

CLOSE = 1e-4  # by how much ONNX may differ from torch, in units of the largest logit beyond 1
MOST_IMAGES = 4096  # at once; the exporter wants to know an end
LARGE = 16  # values: smaller tensors gain nothing from 16 bit
INPUT, OUTPUTS = "images", ("logits", "features")


class _WithFeatures(nn.Module):
    """A selector: its logits, and what novelty is judged by."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.network.with_features(images)


def write_graph(
    spec: Mapping[str, Any], weights: Weights, path: Path, *, features: bool = False
) -> nn.Module:
    """Write the network with these weights; the same in torch, to be compared with.

    Images [n, channels, size, size] go in, for any n; `features`: a selector's come out, too.
    """
    known = NetworkSpec.from_json(dict(spec))
    network = build_network(known)
    BoundNetwork(network).load(weights)
    whole: nn.Module = _WithFeatures(network) if features else network
    whole.eval()
    names = OUTPUTS[: 1 + features]
    example = torch.rand(2, known.in_channels, known.image_size, known.image_size)
    with _explaining(known.name), _quietly(), torch.no_grad():
        torch.onnx.export(
            whole,
            (example,),
            str(path),
            input_names=[INPUT],
            output_names=list(names),
            dynamic_shapes=({0: torch.export.Dim("n", min=1, max=MOST_IMAGES)},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    _forget_places(path)
    return whole


def _forget_places(path: Path) -> None:
    """The exporter notes at every node which line of whose files it came from."""
    import onnx

    model = onnx.load(str(path))
    for part in (*model.graph.node, *model.graph.value_info, model.graph, model):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(model, str(path))


def check_installed() -> None:
    """ConfigError if what ONNX needs beyond Konsil is not there."""
    try:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs more than Konsil does ({error}): python -m pip install 'konsil[export]'"
        ) from None


@contextlib.contextmanager
def _explaining(name: str) -> Iterator[None]:
    """Whatever the exporter stumbles over, it is this network that cannot be exported."""
    try:
        yield
    except Exception as error:  # the exporter raises whatever it finds in somebody's network
        first = str(error).strip().splitlines()[:1]
        why = ": ".join([type(error).__name__, *first])
        raise ConfigError(f"network {name}: torch cannot write it as ONNX ({why})") from None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of every operator that it has no use for."""
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        loud.setLevel(level)


def store_in_16_bit(path: Path) -> None:
    """Let tensors whose values are all 16-bit floats be stored as such; no value changes.

    They are cast back when the graph is loaded: it computes with 32 bit as before.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    graph, casts = model.graph, []
    for tensor in list(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < LARGE or not fits_16_bit(values):
            continue
        name = tensor.name
        graph.initializer.remove(tensor)
        small = numpy_helper.from_array(values.astype(np.float16), f"{name}.half")
        graph.initializer.append(small)
        to = onnx.TensorProto.FLOAT
        casts.append(onnx.helper.make_node("Cast", [small.name], [name], name=f"{name}.up", to=to))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def fits_16_bit(values: NDArray[Any]) -> bool:
    """Whether these float32 values come back from float16 as they are."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))


@torch.no_grad()
def check_graph(name: str, whole: nn.Module, path: Path, images: Tensor) -> float:
    """The largest difference between the file and torch; StateError if it is too large.

    Relative to the largest value where that is above 1. One image alone is asked about, too.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    apart: list[float] = []
    for batch in (images[:1], images):
        said = whole(batch)
        expected = said if isinstance(said, tuple) else (said,)
        apart += map(difference, session.run(None, {INPUT: batch.numpy()}), expected)
    worst = float(np.max(apart))  # nan if there is one, unlike Python's max
    if not worst <= CLOSE:  # nan, too
        raise StateError(
            f"{name}: its ONNX file answers otherwise than torch does, by {worst:.2g}, and no more "
            f"than {CLOSE:g} is allowed; nothing was written"
        )
    return worst


def difference(found: NDArray[Any], expected: Tensor) -> float:
    """The largest, in units of the largest expected value where that is above 1."""
    wanted = expected.detach().numpy()
    return float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max())))


def random_images(spec: Mapping[str, Any], count: int) -> Tensor:
    """Noise, bright and dark, coarse and fine: the same at every call."""
    own = torch.Generator().manual_seed(0)
    size, channels = spec["image_size"], spec["in_channels"]
    images = torch.rand(count, channels, size, size, generator=own)
    coarse = torch.rand(count, channels, max(2, size // 8), max(2, size // 8), generator=own)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    fine = torch.linspace(0, 1, count).view(-1, 1, 1, 1)
    bright = torch.linspace(0.3, 1, count).view(-1, 1, 1, 1)
    return (bright * (fine * images + (1 - fine) * smooth)).contiguous()


def names_of(files: Collection[str]) -> dict[str, str]:
    """A file name for each model: readable, and no two alike."""
    plain = {n: "".join(c if c.isascii() and c.isalnum() else "_" for c in n) for n in files}
    return {name: f"{k:03d}-{plain[name]}" for k, name in enumerate(sorted(files))}
