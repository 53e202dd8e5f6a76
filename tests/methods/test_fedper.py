import pytest
import torch
from methods import layered

from konsil import testing as toy
from konsil.weights import Weights


def test_three_rounds_by_hand():
    """Both are trained on every batch; the head stays, also while its site is away."""
    linear = toy.Linear("fedper", layered.SITES, model=layered.network, initial=layered.START)
    layered.check_rounds(linear, lambda w, data: layered.step(w, data, layered.BODY + layered.HEAD))


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_a_head_it_is_fedavg(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "fedper", "head": "none"}],
        network={"name": "small", "norm": norm},
    )
    layered.same_as_fedavg(plan, tmp_path, "fedper")


def test_heads_part_and_do_not_travel(make_plan, outlines, tmp_path):
    """A head of a whole block, norm layers included: what is in it is at the sites alone."""
    plan = make_plan(
        methods=[{"name": "fedper", "head": r"net\.model\.2\."}],
        **(outlines | {"network": outlines["network"] | {"norm": "batch"}}),
    )
    server = toy.server(plan, tmp_path)
    for number in (1, 2):
        server._round(number)
    states = [toy.state_of(plan, tmp_path, site) for site in plan.sites]
    heads: list[Weights] = [s.private["global.own"] for s in states]
    names = {e.name for e in heads[0].layout.entries}
    assert {e.kind for e in heads[0].layout.entries} == {"trainable", "statistic", "counter"}
    assert all(name.startswith("net.model.2.") for name in names)
    assert not torch.equal(heads[0].flat, heads[1].flat)
    for part in (server.record.shared["global"], *(s.upload["global"] for s in states)):
        assert not any(e.name.startswith("net.model.2.") for e in part.layout.entries)


def test_a_newcomer_begins_with_the_common_head(make_plan, tmp_path):
    """A site that was away in round 1 trains in round 2 from the initial head."""
    plan = make_plan(
        methods=["fedper"], server={"absences": {"north": [1]}, "min_sites": 1},
        training={"batch_size": 3, "optimizer": "sgd", "lr": 1e-12},
    )  # fmt: skip
    server = toy.server(plan, tmp_path)
    for number in (1, 2):
        server._round(number)
    [method] = server.method.composition
    own = toy.state_of(plan, tmp_path, "north").private["global.own"]
    torch.testing.assert_close(own.flat, method.initial.only(method.own).flat)


def test_a_site_answers_with_its_own_statistics_if_those_stay_local(make_plan, tmp_path):
    plan = make_plan(
        methods=["fedper"],
        network={"name": "small", "norm": "batch"},
        training={"batch_size": 3, "running_statistics": "local"},
    )
    shared = toy.train(plan, tmp_path).shared["global"]
    [method] = toy.server(plan, tmp_path).method.composition
    for site in plan.sites:
        state = toy.state_of(plan, tmp_path, site)
        joined = method.initial.replaced(state.private["global.own"]).replaced(shared)
        expected = joined.with_statistics_of(state.private["global.statistics"])
        assert state.last["personal"].equals(expected)
        assert not expected.equals(joined)
