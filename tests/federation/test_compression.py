"""Uploads in fewer bytes: what is sent, what is kept, what the server sees, and what it costs."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from konsil import testing as toy
from konsil.errors import UploadRefused
from konsil.federation.compression import (
    BLOCK,
    pack_upload,
    packed_layout,
    packed_layouts,
    unpack_parts,
)
from konsil.federation.messages import BadMessage
from konsil.federation.plan import Plan
from konsil.federation.state import StateFiles
from konsil.ingredients.context import Upload
from konsil.weights import Layout, Weights

NORMED = Layout.build(
    [
        ("w", (6,), "trainable", "body"),
        ("running_var", (2,), "statistic", "norm"),
        ("count", (), "counter", "norm"),
    ]
)


def weights(values: list[float], layout: Layout = NORMED) -> Weights:
    return Weights(layout, torch.tensor(values, dtype=torch.float32))


def plain(count: int) -> Layout:
    return Layout.build([("w", (count,), "trainable", "body")])


def through(
    new: Weights, sent: Weights, private: dict[str, Weights], coding: Any
) -> tuple[Weights, Weights]:
    """What travels, and what the server makes of it."""
    upload = Upload().add("global", new, 1)
    pack_upload(upload, {"global": sent}, private, coding)
    parts = unpack_parts(upload.parts, {"global": new.layout}, {"global": sent}, coding)
    return upload.parts["global"], parts["global"]


def test_eight_bits_by_hand():
    """The largest change is 127 steps of 0.5; others are rounded to the nearest step."""
    sent = weights([1, 1, 1, 1, 1, 1, 9, 9, 9])
    new = weights([64.5, 1.5, 1.2, 1.26, -62.5, 1, 0.3, 0.7, 4])
    private: dict[str, Weights] = {}
    travels, seen = through(new, sent, private, "int8")
    assert seen.flat.tolist() == pytest.approx([64.5, 1.5, 1, 1.5, -62.5, 1, 0.3, 0.7, 4])
    left = [0, 0, 0.2, -0.24, 0, 0]
    assert private["global.residual"].flat.tolist() == pytest.approx(left, abs=1e-6)
    # a scale, two variances, a counter; six codes take two floats' room
    assert travels.layout.size == 1 + 3 + 2
    # in the next round nothing is learned, and what was left is sent: now 0.24 is the largest
    _, seen = through(sent, sent, private, "int8")
    expected = [1, 1, 1.2, 0.76, 1, 1, 9, 9, 9]
    assert seen.flat.tolist() == pytest.approx(expected, abs=1e-3)


def test_sixteen_bits_by_hand():
    sent = weights([0, 0, 0, 0, 0, 0, 1, 1, 1])
    new = weights([1 + 2**-7, 1 + 2**-8, 1 + 2**-9, -3, 0, 2**-60, 2, 3, 4])
    private: dict[str, Weights] = {}
    travels, seen = through(new, sent, private, "bf16")
    # seven bits behind the first; halves go to the even neighbour
    assert seen.flat.tolist() == [1 + 2**-7, 1, 1, -3, 0, 2**-60, 2, 3, 4]
    assert private["global.residual"].flat.tolist() == [0, 2**-8, 2**-9, 0, 0, 0]
    assert travels.layout.size == 3 + 3


@pytest.mark.parametrize("coding", ["bf16", "int8"])
def test_what_does_not_change_arrives_to_the_bit(coding):
    sent = Weights(plain(5000), torch.randn(5000))
    private: dict[str, Weights] = {}
    assert through(sent, sent, private, coding)[1].equals(sent)
    assert not private["global.residual"].flat.any()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.sampled_from([1, 3, 4, BLOCK - 1, BLOCK, BLOCK + 1, 3000]),
    coding=st.sampled_from(["bf16", "int8"]),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e3]),
)
def test_nothing_is_lost_for_long(seed, count, coding, size):
    """All that was sent over the rounds is all that was learned, but for one residual."""
    noise = torch.Generator().manual_seed(seed)
    layout, private = plain(count), {}
    origin = weights([0.0] * count, layout)
    learned, arrived = torch.zeros(count), torch.zeros(count)
    for _ in range(4):
        step = size * torch.randn(count, generator=noise)
        _, seen = through(Weights(layout, step), origin, private, coding)
        learned += step
        arrived += seen.flat
    rest = private["global.residual"].flat
    assert torch.allclose(arrived + rest, learned, rtol=1e-4, atol=1e-5 * size)
    assert float(rest.abs().max()) <= size * (0.1 if coding == "int8" else 0.03)


def test_every_thousand_values_have_a_scale_of_their_own():
    large, small = torch.full((BLOCK,), 100.0), torch.full((5,), 0.01)
    new = Weights(plain(BLOCK + 5), torch.cat([large, small]))
    _, seen = through(new, Weights.zeros(new.layout), {}, "int8")
    assert torch.allclose(seen.flat, new.flat, rtol=1e-5)


def test_only_what_was_sent_and_is_no_moment_is_packed():
    parts = {"global": plain(8), "global.moments": plain(8), "means": plain(8)}
    sent = {n: Weights.zeros(parts[n]) for n in ("global", "global.moments")}
    sent["means"] = Weights.zeros(plain(9))  # another layout: the server asked for something else
    found = packed_layouts(parts, sent, "int8")
    assert found == {**parts, "global": packed_layout(plain(8), "int8")}
    assert packed_layouts(parts, sent, None) == parts


def test_bytes():
    count = 1_625_000
    assert packed_layout(plain(count), "bf16").size == count / 2
    assert packed_layout(plain(count), "int8").size == pytest.approx(count / 4, rel=0.005)


@pytest.mark.parametrize("wrong", ["plain", "other coding", "shorter"])
def test_what_is_not_packed_as_agreed_is_refused(wrong):
    layout, sent = plain(8), Weights.zeros(plain(8))
    part = {
        "plain": sent,
        "other coding": Weights.zeros(packed_layout(layout, "bf16")),
        "shorter": Weights.zeros(packed_layout(plain(4), "int8")),
    }[wrong]
    with pytest.raises(BadMessage, match="global: not packed as int8"):
        unpack_parts({"global": part}, {"global": layout}, {"global": sent}, "int8")


# --- in a run -----------------------------------------------------------------------------------


def compressed(make_plan, coding: str, **keys: Any) -> Plan:
    return make_plan(server={"compression": coding}, **keys)


def test_none_is_the_plan_of_before(make_plan):
    assert compressed(make_plan, "none").hash == make_plan().hash
    plans = [compressed(make_plan, coding) for coding in ("bf16", "int8")]
    assert len({make_plan().hash, *(plan.hash for plan in plans)}) == 3
    assert all(Plan.from_json(p.to_json()).experiment.server == p.experiment.server for p in plans)


@pytest.mark.parametrize(("coding", "farthest"), [("bf16", 0.02), ("int8", 0.05)])
def test_the_servers_mean_is_hardly_another(make_plan, tmp_path, coding, farthest):
    """By the way that the weights have gone in the rounds."""
    found = {}
    for name in ("none", coding):
        plan = compressed(make_plan, name, methods=["fedavg"], rounds=3)
        found[name] = toy.server(plan, tmp_path / name).train().shared["global"]
    start = plan.context(plan.jobs[0], plan.sites)
    way = (found["none"] - start.initial(start.network)).norm()
    assert 0 < (found[coding] - found["none"]).norm() < farthest * way


def test_a_site_keeps_what_was_rounded_off(make_plan, tmp_path):
    plan = compressed(make_plan, "int8", methods=["fedsm"], rounds=2)
    toy.server(plan, tmp_path)._round(1)
    state = StateFiles(tmp_path / "fedsm/seed0/sites/south", plan.hash).latest()
    assert {n for n in state.private if n.endswith(".residual")} == {
        "global.residual",
        "personal.residual",
    }
    assert state.private["global.residual"].flat.any()
    assert [e.name for e in state.upload["global"].layout.entries] == ["exact", "int8"]


def test_a_plain_upload_is_refused_by_name(make_plan, tmp_path):
    plan = compressed(make_plan, "bf16", methods=["fedavg"])
    server = toy.server(plan, tmp_path)
    exchange = server.engine.exchange

    def unpacked(requests, deadline=None):
        for reply in exchange(requests, deadline):
            parts = {"global": server.record.shared["global"]}
            yield type(reply)(**{**vars(reply), "parts": parts})

    server.engine.exchange = unpacked
    with pytest.raises(UploadRefused, match=r"round 1: refused: global: not packed as bf16"):
        server._round(1)
