import numpy as np
import pytest
import torch
from methods import layered

from konsil import testing as toy
from konsil.ingredients.finetune import FineTuned
from konsil.ingredients.method import borrowed
from konsil.weights import Weights

DATA = layered.TUNED_SITES
ALL = layered.BODY + layered.HEAD


def test_rounds_and_fine_tuning_by_hand():
    linear = toy.Linear("ft", DATA, model=layered.network, rounds=2, epochs=4)
    shared, w = {"global": linear.weights(*layered.START)}, np.array(layered.START)
    for number in (1, 2):
        for name in DATA:  # nobody has a model of its own before the end
            assert set(linear.method.answers(linear.site(name, number, shared), shared)) == {
                "global"
            }
        shared = linear.round(shared, number)
        w = layered.mean({s: layered.step(w, DATA[s], ALL) for s in DATA})
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-6)
    epochs = {}
    for name in DATA:
        site = linear.site(name, 3, shared)
        linear.method.receive(site, shared)
        answers = linear.method.answers(site, shared)
        expected, epochs[name] = layered.tuned(w, DATA[name], ALL, 4)
        np.testing.assert_allclose(answers["personal"].flat.numpy(), expected, atol=1e-6)
        assert answers["global"].equals(shared["global"])
    assert epochs == {"a": 4, "b": 2}  # all of them, and stopped early


def test_without_early_stopping_site_b_goes_on_to_the_last_epoch():
    """By hand above it stops after two of four; two epochs without a stop are those two."""
    tuned = {}
    for epochs, stops in ((4, True), (2, False), (4, False)):
        settings = {"epochs": epochs, "early_stopping": stops}
        linear = toy.Linear("ft", DATA, model=layered.network, rounds=2, **settings)
        shared = {"global": linear.weights(*layered.START)}
        for number in (1, 2):
            shared = linear.round(shared, number)
        site = linear.site("b", 3, shared)
        linear.method.receive(site, shared)
        tuned[epochs, stops] = site.private["personal"]
    assert tuned[2, False].equals(tuned[4, True])
    assert not tuned[4, False].equals(tuned[4, True])


@pytest.fixture
def trained(make_plan, tmp_path):
    """title -> what FedAvg or FT left at the server and at the sites."""

    def train(methods, **blocks):
        plan = make_plan(methods=methods, **blocks)
        found = {}
        for job in plan.jobs:
            record = toy.train(plan, tmp_path, job.method)
            states = {s: toy.state_of(plan, tmp_path, s, job.method) for s in plan.sites}
            found[job.method] = (record, states)
        return found

    return train


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_the_global_model_is_fedavgs(trained, outlines, norm):
    """Its scores, its best checkpoint and its optimiser too; what is tuned is another model."""
    found = trained(
        ["fedavg", {"name": "ft", "epochs": 3}], training={"batch_size": 2, "lr": 1e-2},
        **(outlines | {"network": outlines["network"] | {"norm": norm}}),
    )  # fmt: skip
    (usual, usual_states), (record, states) = found["fedavg"], found["ft"]
    assert toy.same_parts(record.shared, usual.shared)
    assert toy.same_parts(record.best, usual.best)
    scores = [[h["means"]["global"] for h in r.history] for r in (usual, record)]
    assert scores[0] == scores[1]
    assert ["personal" in h["means"] for h in record.history] == [False, False, True]
    for site, state in states.items():
        moments = [s[site].private["global.moments"] for s in (usual_states, states)]
        assert moments[0].equals(moments[1])
        personal: Weights = state.last["personal"]
        assert not torch.equal(personal.flat, record.shared["global"].flat)
        assert state.best["personal"].equals(personal)
        last = record.history[-1]["sites"][site]
        assert last["personal"] > last["global"]


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("statistics", ["average", "local"])
def test_without_epochs_the_personal_model_is_the_global_one(trained, norm, statistics):
    found = trained(
        [{"name": "ft", "epochs": 0}],
        network={"name": "small", "norm": norm},
        training={"batch_size": 3, "running_statistics": statistics},
    )  # fmt: skip
    record, states = found["ft"]
    for state in states.values():
        expected = record.shared["global"]
        if statistics == "local":  # as the site runs the global model
            expected = expected.with_statistics_of(state.private["global.statistics"])
        assert state.last["personal"].equals(expected)
    last = record.history[-1]["means"]
    assert last["personal"] == last["global"]


def test_it_has_a_learning_rate_of_its_own():
    """With a tenth of the rate, one epoch goes a tenth of the way."""
    ways = []
    for lr in (None, layered.LR / 10):
        linear = toy.Linear("ft", layered.SITES, model=layered.network, rounds=1, epochs=1, lr=lr)
        shared = {"global": linear.weights(*layered.START)}
        site = linear.site("a", 2, shared)
        linear.method.receive(site, shared)
        ways.append(linear.method.answers(site, shared)["personal"].flat - shared["global"].flat)
    assert float(ways[0].norm()) > 0.01
    torch.testing.assert_close(ways[1], ways[0] / 10, atol=1e-6, rtol=1e-4)


def test_the_optimiser_is_fresh():
    """Adam's first step has the length of the rate: FedAvg's moments are not gone on with."""
    training = {"optimizer": "adam", "lr": 0.01}
    linear = toy.Linear(
        "ft", layered.SITES, model=layered.network, rounds=2, epochs=1, training=training
    )
    shared = {"global": linear.weights(*layered.START)}
    for number in (1, 2):
        shared = linear.round(shared, number)
    moments = linear.states["a"].private["global.moments"].clone()
    site = linear.site("a", 3, shared)
    linear.method.receive(site, shared)
    way = linear.method.answers(site, shared)["personal"].flat - shared["global"].flat
    np.testing.assert_allclose(np.abs(way.numpy()), 0.01, rtol=1e-4)
    assert linear.states["a"].private["global.moments"].equals(moments)


def test_fedsm_can_have_it():
    linear = toy.Linear("ft", layered.SITES, model=layered.network)
    lender = borrowed({"name": "ft", "epochs": 2}, "personal", linear.method.context, "here")
    [made] = lender.personal()
    assert isinstance(made, FineTuned)
    assert (made.tuning_epochs, made.work()) == (2, 0)
