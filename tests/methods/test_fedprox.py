"""The pull by hand, coupled with the optimiser and not, and what is left of it at mu = 0."""

import numpy as np
import pytest
from methods import hand

from konsil import testing as toy

START = (1.0, -1.0, 0.5)
COUPLINGS = ["coupled", "decoupled"]


def federation(method: str, optimizer: str = "sgd", **settings) -> toy.Linear:
    training = {"optimizer": optimizer, "batch_size": 2, "local_epochs": 2}
    return toy.Linear(method, hand.two_sites(), training=training, **settings)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_three_rounds_by_hand(optimizer, coupling):
    mu, lr = 0.7, 0.1
    linear = federation("fedprox", optimizer, mu=mu, coupling=coupling)
    optimizers = {site: hand.OPTIMIZERS[optimizer](lr) for site in linear.data}
    w_g, shared = np.array(START), {"global": linear.weights(*START)}
    for number in (1, 2, 3):
        sent = {}
        for site in linear.data:
            w = w_g
            for batch in hand.batches(linear, site, number):
                pull = mu * (w - w_g)
                if coupling == "coupled":
                    w = optimizers[site].step(w, hand.gradient(w, batch) + pull)
                else:
                    w = optimizers[site].step(w, hand.gradient(w, batch)) - lr * pull
            sent[site] = w
        w_g = hand.mean(linear, sent)
        shared = linear.round(shared, number)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w_g, atol=2e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_the_first_step_feels_no_pull(optimizer, coupling):
    """It begins at the anchor: with one step a round FedProx is FedAvg."""
    training = {"optimizer": optimizer, "batch_size": 8}
    models = []
    for method, settings in (("fedavg", {}), ("fedprox", {"mu": 5.0, "coupling": coupling})):
        linear = toy.Linear(method, hand.two_sites(), training=training, **settings)
        shared = {"global": linear.weights(*START)}
        for number in (1, 2):
            shared = linear.round(shared, number)
        models.append(shared["global"])
    assert models[0].equals(models[1])


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_a_strong_pull_keeps_the_model_near_the_global_one(coupling):
    away = []
    for mu in (0.0, 5.0):
        linear = federation("fedprox", mu=mu, coupling=coupling)
        start = linear.weights(*START)
        away.append((linear.round({"global": start})["global"] - start).norm())
    assert away[1] < 0.7 * away[0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_mu_0_is_fedavg(make_plan, tmp_path, optimizer, norm):
    prox = [{"name": "fedprox", "label": c, "mu": 0, "coupling": c} for c in COUPLINGS]
    plan = make_plan(
        methods=["fedavg", *prox, {"name": "fedprox", "mu": 0.5}],
        network={"name": "small", "norm": norm},
        training={"batch_size": 3, "optimizer": optimizer, "lr": 1e-2},
    )
    fedavg = toy.train(plan, tmp_path, "fedavg")
    for coupling in COUPLINGS:
        record = toy.train(plan, tmp_path, coupling)
        assert toy.same_parts(record.shared, fedavg.shared)
        assert toy.same_parts(record.best, fedavg.best)
    pulled = toy.train(plan, tmp_path, "fedprox")
    assert not pulled.shared["global"].equals(fedavg.shared["global"])
