"""FedSM over a server optimiser: under the means of the global model and of the specialists."""

import numpy as np
import pytest
from methods import hand

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.ingredients.context import Shared
from konsil.weights import Weights

START = (1.0, -1.0, 0.5)
LAMBDA = 0.7
BETA, BETA2, TAU = 0.5, 0.8, 0.05
RATES = {"fedavgm": 0.6, "fedadam": 0.02, "fedyogi": 0.02}
ADAPTIVE = {"beta1": BETA, "beta2": BETA2, "tau": TAU}


class ByHand:
    """One server optimiser's moments for one model, in float64."""

    def __init__(self, name: str) -> None:
        self.name, self.m, self.v = name, np.zeros(3), np.full(3, TAU**2)

    def step(self, w: np.ndarray, mean: np.ndarray) -> np.ndarray:
        way, rate = mean - w, RATES[self.name]
        if self.name == "fedavgm":
            self.m = BETA * self.m + way
            return w + rate * self.m
        self.m = BETA * self.m + (1 - BETA) * way
        if self.name == "fedadam":
            self.v = BETA2 * self.v + (1 - BETA2) * way**2
        else:
            self.v = self.v - (1 - BETA2) * way**2 * np.sign(self.v - way**2)
        return w + rate * self.m / (np.sqrt(self.v) + TAU)


def steps(linear: toy.Linear, w: np.ndarray, site: str, round: int) -> np.ndarray:
    for batch in hand.batches(linear, site, round):
        w = w - 0.1 * hand.gradient(w, batch)
    return w


@pytest.mark.parametrize("name", RATES)
def test_three_rounds_by_hand(name):
    settings = {"momentum": BETA} if name == "fedavgm" else ADAPTIVE
    linear = toy.Linear(
        "fedsm", hand.two_sites(), training={"batch_size": 2}, initial=START,
        server_optimizer={"name": name, "server_lr": RATES[name], **settings},
        selector_optimizer="literal_reset_known_to_fail", **{"lambda": LAMBDA},
    )  # fmt: skip
    shared = Shared({**linear.method.start(), "selector": Weights.of(linear.selector())})
    w = personal = np.array(START)
    own = dict.fromkeys(linear.data, w)
    for_global, for_personal = ByHand(name), ByHand(name)
    share = 2 * LAMBDA - 1  # lambda' of two sites
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        if number > 1:
            own = {s: share * v + (1 - share) * personal for s, v in own.items()}
        own = {s: steps(linear, v, s, number) for s, v in own.items()}
        personal = for_personal.step(personal, sum(own.values()) / 2)
        mean = hand.mean(linear, {s: steps(linear, w, s, number) for s in own})
        w = for_global.step(w, mean)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-5)
        np.testing.assert_allclose(shared["personal"].flat.numpy(), personal, atol=1e-5)
        for site, specialist in own.items():
            kept = linear.states[site].private["personal"].flat.numpy()
            np.testing.assert_allclose(kept, specialist, atol=1e-5)
    assert set(linear.method.sent("a", shared)) == {"global", "personal", "selector"}


def test_without_momentum_it_is_fedsm(make_plan, tmp_path):
    plain = {"name": "fedavgm", "momentum": 0, "server_lr": 1}
    plan = make_plan(
        methods=["fedsm", {"name": "fedsm", "label": "stepped", "server_optimizer": plain}],
        network={"name": "small", "norm": "batch"},
    )
    usual, stepped = (toy.train(plan, tmp_path, title) for title in ("fedsm", "stepped"))
    assert toy.same_parts(usual.shared, stepped.shared.sent())
    assert toy.same_parts(usual.best, stepped.best)
    assert usual.history == stepped.history
    velocities = {"server.global.velocity", "server.personal.velocity"}
    assert stepped.shared.keys() - usual.shared.keys() == velocities
    for site in plan.sites:
        states = [toy.state_of(plan, tmp_path, site, title) for title in ("fedsm", "stepped")]
        assert toy.same_parts(states[0].private, states[1].private)


@pytest.mark.parametrize("personaliser", ["ditto", "perfedavg"])
def test_under_another_personaliser_it_moves_the_global_model_alone(
    make_plan, tmp_path, personaliser
):
    block = {"name": "fedsm", "personaliser": personaliser, "server_optimizer": "fedavgm"}
    plan = make_plan(methods=["fedavg", "fedavgm", personaliser, block], rounds=3)
    titles = ("fedavg", "fedavgm", personaliser, "fedsm")
    records = {title: toy.train(plan, tmp_path, title) for title in titles}
    assert records["fedsm"].shared["global"].equals(records["fedavgm"].shared["global"])
    assert not records["fedsm"].shared["global"].equals(records["fedavg"].shared["global"])
    assert "server.personal.velocity" not in records["fedsm"].shared
    if personaliser == "perfedavg":  # a mean of its own, which stays plain
        alone = records[personaliser].shared["global"]
        assert records["fedsm"].shared["personal"].equals(alone)


@pytest.mark.parametrize("given", ["nobody", "fedavg", {"momentum": 0.5}])
def test_an_unknown_one_is_refused_with_those_there_are(make_plan, given):
    with pytest.raises(
        ConfigError, match=r"fedsm\.server_optimizer.*one of fedadam, fedavgm, fedyogi"
    ):
        make_plan(methods=[{"name": "fedsm", "server_optimizer": given}])


def test_an_unknown_setting_of_it_is_named(make_plan):
    block = {"name": "fedavgm", "momentun": 0.5}
    with pytest.raises(ConfigError, match=r"(?s)server_optimizer.*momentun.*momentum"):
        make_plan(methods=[{"name": "fedsm", "server_optimizer": block}])
