"""Uploads in fewer bytes: what a site has learned in a round, in 16 or 8 bits a value.

A part that the site was sent travels as the difference to that, d = w - sent + e, rounded to q:
`bf16` keeps the sign, the exponent and 8 bits of each value, `int8` a scale for every thousand
values and 8 bits of each. What rounding took, e <- d - q, the site adds in the next round (error
feedback; Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019), so that nothing is lost
for long. The server adds q to what it sent and sees plain weights again.

Running statistics and counters are few and travel as they are; so do optimiser moments, which
rounding could make negative, and what has no counterpart among the parts that were sent.
"""

from collections.abc import Mapping
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from konsil.federation.messages import BadMessage, shown
from konsil.ingredients.context import Upload, moments_of
from konsil.weights import Layout, Parts, Weights

Coding = Literal["bf16", "int8"]
BLOCK = 1024  # values that share a scale
STEPS = 127  # of an 8-bit code to either side
MOMENTS = moments_of("")


def is_packed(name: str, layout: Layout, sent: Parts) -> bool:
    """Whether a part of this layout travels as a difference to one of the parts that were sent."""
    same = name in sent and sent[name].layout.key == layout.key
    return same and layout.trainable > 0 and not name.endswith(MOMENTS)


def packed_layout(layout: Layout, coding: Coding) -> Layout:
    """A packed part: exact values, and codes, whose bytes lie where floats would."""
    exact, codes = _sizes(layout, coding)
    return Layout.build(
        [("exact", (exact,), "trainable", "body"), (coding, (ceil(codes / 4),), "counter", "body")]
    )


def packed_layouts(
    layouts: Mapping[str, Layout], sent: Parts, coding: Coding | None
) -> dict[str, Layout]:
    """How the parts of an upload travel."""
    return {
        name: packed_layout(layout, coding) if coding and is_packed(name, layout, sent) else layout
        for name, layout in layouts.items()
    }


def pack_upload(upload: Upload, sent: Parts, private: dict[str, Weights], coding: Coding) -> None:
    """Round an upload, in place; what that takes of it is kept for the next round."""
    for name, part in upload.parts.items():
        if not is_packed(name, part.layout, sent):
            continue
        kept, learned = f"{name}.residual", part.trainable - sent[name].trainable
        if kept in private:
            learned += private[kept].flat
        exact, codes = _rounded(learned, coding)
        rest = Layout.build([("residual", (part.layout.trainable,), "trainable", "body")])
        private[kept] = Weights(rest, learned - _values(exact, codes, coding))
        upload.parts[name] = _packed(part, exact, codes, coding)


def unpack_parts(
    parts: Parts, layouts: Mapping[str, Layout], sent: Parts, coding: Coding | None
) -> dict[str, Weights]:
    """The plain parts of an upload; BadMessage if one is no packed part."""
    return {
        name: _unpacked(name, part, layouts[name], sent[name], coding)
        if coding and name in layouts and is_packed(name, layouts[name], sent)
        else part
        for name, part in parts.items()
    }


def _rounded(learned: Tensor, coding: Coding) -> tuple[Tensor, Tensor]:
    """Scales [blocks] and the bytes of all codes."""
    if coding == "bf16":
        return learned[:0], learned.bfloat16().view(torch.uint8)
    blocks = _in_blocks(learned)
    scales = blocks.abs().amax(dim=1) / STEPS
    steps = (blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    return scales, steps.to(torch.int8).flatten()[: len(learned)].view(torch.uint8)


def _values(scales: Tensor, codes: Tensor, coding: Coding) -> Tensor:
    """What scales and codes stand for: the same at both sides, to the bit."""
    if coding == "bf16":
        return codes.view(torch.bfloat16).float()
    steps = codes.view(torch.int8).float()
    return (_in_blocks(steps) * scales[:, None]).flatten()[: len(steps)]


def _in_blocks(values: Tensor) -> Tensor:
    blocks = ceil(len(values) / BLOCK)
    return torch.nn.functional.pad(values, (0, blocks * BLOCK - len(values))).view(blocks, BLOCK)


def _packed(part: Weights, scales: Tensor, codes: Tensor, coding: Coding) -> Weights:
    rest = part.flat[part.layout.trainable :]
    whole = torch.nn.functional.pad(codes, (0, -len(codes) % 4)).view(torch.float32)
    return Weights(packed_layout(part.layout, coding), torch.cat([scales, rest, whole]))


def _unpacked(name: str, part: Weights, layout: Layout, sent: Weights, coding: Coding) -> Weights:
    if part.layout.key != packed_layout(layout, coding).key:
        raise BadMessage(f"{shown(name)}: not packed as {coding}, which the plan wants")
    blocks = 0 if coding == "bf16" else ceil(layout.trainable / BLOCK)
    exact, codes = _sizes(layout, coding)
    scales, rest, whole = part.flat.split([blocks, exact - blocks, part.layout.size - exact])
    # a copy, because a view as bytes wants a beginning that is aligned
    learned = _values(scales, whole.clone().view(torch.uint8)[:codes], coding)
    return Weights(layout, torch.cat([sent.trainable + learned, rest]))


def _sizes(layout: Layout, coding: Coding) -> tuple[int, int]:
    """How many values travel as they are (scales, statistics, counters), and bytes of codes."""
    rest = layout.size - layout.trainable
    if coding == "bf16":
        return rest, 2 * layout.trainable
    return ceil(layout.trainable / BLOCK) + rest, layout.trainable
