import numpy as np
import pytest
import torch
from methods import hand, layered
from torch import nn

from konsil import testing as toy
from konsil.data import TrainingData
from konsil.ingredients.context import Shared, TrainedNetwork, Upload
from konsil.ingredients.finetune import fine_tune
from konsil.ingredients.site import Site
from konsil.weights import Weights


def site_of(data: TrainingData, model=layered.network, only=None, policy="reset", **training):
    """A site after the last round, with a learner `personal`."""
    linear = toy.Linear("fedavg", {"a": data}, model=model, rounds=1, training=training)
    network = linear.method.context.network
    linear.networks.trained["personal"] = TrainedNetwork(network, policy, only=only)
    return linear, linear.site("a", 2, {})


def test_no_epoch_gives_the_same_weights():
    linear, site = site_of(layered.SITES["a"])
    weights = linear.weights(*layered.START)
    assert fine_tune(site, "personal", weights, 0) is weights


@pytest.mark.parametrize(("epochs", "best"), [(1, 1), (2, 2), (4, 3), (6, 3)])
def test_the_best_epoch_by_hand(epochs, best):
    data = layered.TUNED_SITES["b"]
    linear, site = site_of(data)
    start = linear.weights(-0.5, 1.2, 0.8)
    expected, found = layered.tuned(start.flat.double().numpy(), data, np.ones(3), epochs)
    assert found == best
    tuned = fine_tune(site, "personal", start, epochs)
    np.testing.assert_allclose(tuned.flat.numpy(), expected, atol=1e-6)


def test_of_equals_the_earliest_wins():
    """The validation image is black, and no weight changes what the network says of it."""
    data = TrainingData(layered.SITES["a"].train, toy.points([[0, 0]], [1]).val)
    linear, site = site_of(data)
    weights = linear.weights(*layered.START)
    assert fine_tune(site, "personal", weights, 3).equals(weights)


def test_every_epoch_has_an_order_of_its_own():
    """And none is that of the round's batches; fewer epochs are the beginning of more."""
    rng = np.random.default_rng(0)
    data = toy.points(rng.integers(0, 256, (12, 2)).tolist(), rng.integers(0, 2, 12).tolist())
    linear, _ = site_of(data, batch_size=1)
    seen: list[list[int]] = []

    class Noted(Site):
        def indexed_batches(self, images, purpose="", epochs=None):
            seen.append([])
            for index, x, y in super().indexed_batches(images, purpose, epochs):
                seen[-1] += index.tolist()
                yield index, x, y

    orders = {}
    for epochs in (2, 3):
        seen.clear()
        site = Noted("a", 2, linear.networks, data, linear.states["a"], {})
        fine_tune(site, "personal", linear.weights(*layered.START), epochs)
        orders[epochs] = list(seen)
    list(site.batches())  # those of the round
    assert [sorted(order) for order in seen] == [list(range(12))] * 4
    assert len({tuple(order) for order in seen}) == 4
    assert orders[2] == orders[3][:2]


def test_the_optimiser_is_fresh():
    """Adam's first step has the length of the learning rate, whatever was before."""
    linear, site = site_of(layered.TUNED_SITES["a"], optimizer="adam", lr=0.01)
    w = linear.weights(*layered.START)
    site.train(site.learner("personal", w))
    first = fine_tune(site, "personal", w, 1)
    np.testing.assert_allclose(np.abs((first.flat - w.flat).numpy()), 0.01, rtol=1e-4)
    assert fine_tune(site, "personal", w, 1).equals(first)


def test_what_is_not_trained_stays_with_its_statistics():
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    data = toy.points([[0, 51], [255, 102], [51, 255]], [0, 1, 0])
    start = Weights.of(normed())
    for only, moved in ((frozenset({"1.weight", "1.bias"}), False), (None, True)):
        _, site = site_of(data, normed, only)
        tuned = fine_tune(site, "personal", start, 5)
        assert site.score(tuned) > site.score(start)
        assert not torch.equal(tuned["1.weight"], start["1.weight"])
        for name in ("0.weight", "0.bias", "0.running_mean", "0.num_batches_tracked"):
            assert torch.equal(tuned[name], start[name]) != moved


def test_asked_again_a_site_tunes_alike():
    """After a kill, say: nothing of the first time is left in the optimiser."""
    linear = toy.Linear("ft", hand.two_clouds(), rounds=1, epochs=3, training={"optimizer": "adam"})
    shared = Shared({"global": linear.weights(*hand.START)})
    found = []
    for _ in range(2):
        site = linear.site("a", 2, shared)
        linear.method.receive(site, shared)
        site.finish_learners(Upload())
        found.append(linear.method.answers(site, shared)["personal"])
    assert found[0].equals(found[1])
    assert not found[0].equals(shared["global"])


def test_without_early_stopping_it_is_just_so_many_epochs(monkeypatch):
    """Also where each epoch makes the model worse, and no validation image is looked at."""
    linear, site = site_of(layered.SITES["a"])
    start = linear.weights(*layered.START)
    monkeypatch.setattr(Site, "score", lambda *_: pytest.fail("it looked"))
    tuned = fine_tune(site, "personal", start, 2, early_stopping=False)
    learner = site.learner("personal", start)
    for epoch in (1, 2):
        for x, y in site.batches(f"fine-tuning {epoch}", epochs=1):
            learner.step(site.task.loss(learner(x), y))
    assert tuned.equals(learner.weights())
