"""Everything that `konsil export` does: round if asked, write, check, and put it in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from konsil.errors import ConfigError, RunError
from konsil.export.half import Loss, halved, halves_of, loss_on_files, loss_on_random, with_loss
from konsil.supermodel import SuperModel

if TYPE_CHECKING:
    from konsil.data.origin import FileSource

Kind = Literal["onnx", "bundle", "folder"]
KINDS: tuple[Kind, ...] = get_args(Kind)
REAL = 8  # images of a federation file that ONNX is compared on
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Exported:
    """What is there now."""

    folder: Path
    kind: Kind
    difference: float | None = None  # ONNX: the largest from torch
    loss: Loss | None = None  # of 16 bit


def export(
    model: SuperModel,
    kind: str,
    out: Path,
    *,
    half: bool = False,
    source: FileSource | None = None,
    report: Report = lambda what, done, total: None,
) -> Exported:
    """Write the super model as `kind` into the folder `out`, which is there whole or not at all.

    `half`: its models in 16 bit. `source`: labelled images, to measure what that costs, and to
    compare ONNX on.
    """
    known = next((one for one in KINDS if one == kind), None)
    if known is None:
        raise ConfigError(f"--to {kind}: one of {', '.join(KINDS)}")
    _check_empty(out)
    loss = None
    if half:
        small = halved(model)
        loss = (
            loss_on_files(model, small, source, report) if source else loss_on_random(model, small)
        )
        model = with_loss(small, loss)
    with _whole(out) as folder:
        difference = _write(model, known, folder, half, source)
    return Exported(out, known, difference, loss)


def _write(
    model: SuperModel, kind: Kind, folder: Path, half: bool, source: FileSource | None
) -> float | None:
    if kind == "onnx":
        from konsil.export.onnx_pipeline import write_onnx

        images = _real_images(model, source) if source else None
        return write_onnx(model, folder, half=half, images=images).largest
    stored = halves_of(model) if half else {}
    if kind == "bundle":
        from konsil.export.monai_bundle import write_bundle

        write_bundle(model, folder, stored)
    else:
        model.save(folder, stored)
    return None


def _check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out}: not an empty folder; choose another -o")


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place if all goes well."""
    out = out.absolute()  # "." has no name
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror or error})") from None
    try:
        yield part
        if out.exists():
            out.rmdir()
        part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _real_images(model: SuperModel, source: FileSource) -> Tensor:
    """Some images of a federation file, from all over it, read as its own file says."""
    from konsil.data.findings import BadFile
    from konsil.data.image_file import open_image

    items = source.listing(None).items
    size, channels = model.facts.network["image_size"], model.facts.network["in_channels"]
    found = []
    for item in items[:: max(1, len(items) // REAL)][:REAL]:
        try:
            reading = source.manifest.reading(item.site).of_image
            opened = open_image(source.root / item.image, reading)
        except BadFile as bad:
            raise RunError(f"{item.image}: {bad}") from None
        plane = opened.plane(len(opened.pictures) // 2, channels, size)
        found.append(torch.tensor(plane).float() / 255)
    return torch.stack(found)
