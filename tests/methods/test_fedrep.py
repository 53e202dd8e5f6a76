import numpy as np
import pytest
import torch
from methods import hand, layered

from konsil import testing as toy
from konsil.federation.site_worker import SiteWorker
from konsil.weights import Weights


@pytest.mark.parametrize("epochs", [1, 2])
def test_three_rounds_by_hand(epochs):
    """The head is fitted to the body as it came; then the body moves under the new head."""

    def train(w, data):
        for _ in range(epochs):
            w = layered.step(w, data, layered.HEAD)
        return layered.step(w, data, layered.BODY)

    linear = toy.Linear("fedrep", layered.SITES, model=layered.network, initial=layered.START,
                        head_epochs=epochs)  # fmt: skip
    layered.check_rounds(linear, train)


def test_three_rounds_of_adam_by_hand():
    """Head and body have moments of their own at every site, which go on from round to round."""
    head, body = ({id(d): hand.Adam(layered.LR) for d in layered.SITES.values()} for _ in "hb")

    def train(w, data):
        for optimizer, moved in ((head, layered.HEAD), (head, layered.HEAD), (body, layered.BODY)):
            stepped = optimizer[id(data)].step(w, moved * layered.slope(w, data))
            w = np.where(moved > 0, stepped, w)
        return w

    linear = toy.Linear("fedrep", layered.SITES, model=layered.network, initial=layered.START,
                        training={"optimizer": "adam"}, head_epochs=2)  # fmt: skip
    layered.check_rounds(linear, train)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_a_head_it_is_fedavg(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "fedrep", "head": "none"}],
        network={"name": "small", "norm": norm},
    )
    layered.same_as_fedavg(plan, tmp_path, "fedrep")


def test_without_head_epochs_it_is_fedbabu_that_is_not_fine_tuned(make_plan, tmp_path):
    plan = make_plan(
        methods=[{"name": "fedrep", "head_epochs": 0}, {"name": "fedbabu", "finetune_epochs": 0}],
        network={"name": "small", "norm": "batch"},
    )
    records = [toy.train(plan, tmp_path, title) for title in ("fedrep", "fedbabu")]
    assert toy.same_record(*records)
    for site in plan.sites:
        states = [toy.state_of(plan, tmp_path, site, title) for title in ("fedrep", "fedbabu")]
        assert toy.same_parts(states[0].last, states[1].last)


def test_fitting_the_head_leaves_the_body_alone(make_plan, tmp_path):
    """Trained values and running statistics of the body, bit for bit; the head really moves."""
    plan = make_plan(methods=["fedrep"], network={"name": "small", "norm": "batch"}, rounds=1)
    host = SiteWorker(plan, tmp_path)
    request = toy.server(plan, tmp_path)._request("round", "north", 1, True)
    host._begin(request.job)
    site = host._site(request, host._states(request).now())
    [piece], shared = host._method.composition, request.parts
    piece.receive(site, shared)
    before = piece.model(site, shared)
    piece.begin(site, shared)
    after = piece.w.weights()
    assert after.only(piece.others).equals(before.only(piece.others))
    assert not torch.equal(after.only(piece.own).flat, before.only(piece.own).flat)
    assert any(e.kind == "statistic" for e in before.only(piece.others).layout.entries)


def test_the_head_is_not_moved_while_the_body_is_trained(make_plan, tmp_path):
    """With Adam and weight decay, which move whatever they hold."""
    training = {"batch_size": 3, "weight_decay": 0.1}
    plan = make_plan(methods=[{"name": "fedrep", "head_epochs": 0}], training=training, rounds=1)
    server = toy.server(plan, tmp_path)
    server._round(1)
    for site in plan.sites:
        own: Weights = toy.state_of(plan, tmp_path, site).private["global.own"]
        assert own.equals(
            server.method.composition[0].initial.only(server.method.composition[0].own)
        )


def test_work(make_plan):
    def work(epochs: int, **settings) -> float:
        plan = make_plan(
            methods=[{"name": "fedrep", **settings}],
            training={"batch_size": 3, "local_epochs": epochs},
        )
        return plan.method(plan.jobs[0]).work()

    assert work(1) == pytest.approx(4 / 3)
    assert work(2, head_epochs=3) == pytest.approx(1.5)
    assert work(1, head="none") == 1
