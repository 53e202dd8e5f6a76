"""Whom to ask: every rule by hand, with selectors that say what the test wants."""

from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from konsil.networks import NetworkSpec, build_network
from konsil.networks.outputs import to_probabilities
from konsil.supermodel import ALL, GLOBAL, SELECTOR, Facts, SuperModel
from konsil.supermodel.rules import (
    RULES,
    Argmax,
    Blend,
    Ensemble,
    Even,
    Fixed,
    Rule,
    Threshold,
    Utility,
    from_json,
    in_words,
    to_json,
)
from konsil.weights import Weights

SITES = ["north", "south"]
NETWORK = NetworkSpec("unet", 1, 1, 32, width=2)
# scores of (global, north, south, north + global, south + global) at north and at south
TABLE = [[0.5, 0.8, 0.2, 0.6, 0.3], [0.5, 0.1, 0.6, 0.4, 0.7]]
ALONE = [row[:3] for row in TABLE]


def shares(rule: Rule, *probabilities: float) -> list[float]:
    return rule.shares(torch.tensor([probabilities]))[0].tolist()


# Algorithm 2


@pytest.mark.parametrize(
    ("gamma", "probabilities", "expected"),
    [
        (0.5, (0.7, 0.3), [0, 1, 0]),
        (0.5, (0.3, 0.7), [0, 0, 1]),
        (0.7, (0.75, 0.25), [0, 1, 0]),
        (0.75, (0.75, 0.25), [1, 0, 0]),  # strictly surer
        (0.5, (0.5, 0.5), [1, 0, 0]),
        (0.0, (0.5, 0.5), [0, 1, 0]),  # always a specialist; of equals the first
        (1.0, (1.0, 0.0), [1, 0, 0]),  # never, though a softmax can be exactly 1
        (0.999, (1.0, 0.0), [0, 1, 0]),
    ],
)
def test_a_threshold(gamma, probabilities, expected):
    assert shares(Threshold(gamma), *probabilities) == expected


# Algorithm 4


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ((0.4, 0.35, 0.25), [1, 0, 0]),
        ((0.2, 0.5, 0.3), [0, 1, 0]),
        ((0.1, 0.2, 0.7), [0, 0, 1]),
        ((0.4, 0.4, 0.2), [1, 0, 0]),  # of equals the global model
        ((0.0, 0.0, 1.0), [0, 0, 1]),
    ],
)
def test_a_selector_that_names_models(probabilities, expected):
    assert shares(Argmax(), *probabilities) == expected
    assert shares(Ensemble(), *probabilities) == pytest.approx(probabilities)


# Beyond the paper


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ((1.0, 0.0), [0, 1, 0]),  # .5, .8, .2
        ((0.0, 1.0), [0, 0, 1]),  # .5, .1, .6
        ((0.5, 0.5), [1, 0, 0]),  # .5, .45, .4: in doubt the global model, and nobody set a gamma
        ((0.7, 0.3), [0, 1, 0]),  # .5, .59, .32
        ((0.2, 0.8), [0, 0, 1]),  # .5, .24, .52
        ((0.3, 0.7), [1, 0, 0]),  # .5, .31, .48
    ],
)
def test_the_highest_expected_score(probabilities, expected):
    assert shares(Utility(ALONE), *probabilities) == expected


def test_the_highest_expected_score_of_pairs_too():
    assert shares(Utility(TABLE), 1.0, 0.0) == [0, 1, 0]  # .8 alone
    assert shares(Utility(TABLE), 0.0, 1.0) == [0.5, 0, 0.5]  # .7 together
    # .5, .45, .4, .5, .5: of equals the global model alone
    assert shares(Utility(TABLE), 0.5, 0.5) == [1, 0, 0]


def test_of_equals_the_cheaper_answers():
    assert shares(Utility([[0.5] * 5] * 2), 0.5, 0.5) == [1, 0, 0]
    assert shares(Utility([[0.5, 0.6, 0.6, 0.6, 0.6]] * 2), 0.5, 0.5) == [0, 1, 0]


def test_a_blend_of_the_likeliest_sites():
    assert shares(Blend(0.75), 0.6, 0.3, 0.1) == [0.25, 0.75, 0, 0]
    assert shares(Blend(0.75, 2), 0.6, 0.3, 0.1) == pytest.approx([0.25, 0.5, 0.25, 0])
    assert shares(Blend(0.5, 3), 0.6, 0.3, 0.1) == pytest.approx([0.5, 0.3, 0.15, 0.05])


@given(arrays("float32", (4, 3), elements=st.floats(0.015625, 1, width=32)))
def test_degenerate_blends_are_the_simpler_rules(drawn):
    probabilities = torch.from_numpy(drawn)
    probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)
    best = probabilities.topk(2, dim=1).values
    clear = best[:, 0] > best[:, 1]  # among equals topk may name any
    assert torch.equal(
        Blend(1.0).shares(probabilities)[clear], Threshold(0.0).shares(probabilities)[clear]
    )
    assert torch.equal(Blend(0.0).shares(probabilities), Fixed(0).shares(probabilities))
    assert torch.equal(Threshold(1.0).shares(probabilities), Fixed(0).shares(probabilities))
    # a table in which every site's specialist is best at home, by as much: the likeliest site's
    home = Utility([[0.0, *(float(k == j) for j in range(3))] for k in range(3)])
    assert torch.equal(
        home.shares(probabilities)[clear], Threshold(0.0).shares(probabilities)[clear]
    )


def test_every_site_alike():
    assert shares(Even(), 0.9, 0.1) == [0, 0.5, 0.5]


@pytest.mark.parametrize("rule", [Threshold(0.3), Utility(TABLE), Blend(0.5, 2), Fixed(1), Even()])
def test_shares_are_shares(rule):
    drawn = torch.softmax(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)), dim=1)
    found = rule.shares(drawn)
    assert found.shape == (50, 3)
    assert (found >= 0).all()
    assert torch.allclose(found.sum(dim=1), torch.ones(50))
    assert ((found > 0).sum(dim=1) <= rule.passes).all()


# As model.json has them

EXAMPLES: dict[str, Rule] = {
    "threshold": Threshold(0.97),
    "utility": Utility(TABLE),
    "blend": Blend(0.5, 2),
    "argmax": Argmax(),
    "ensemble": Ensemble(),
    "fixed": Fixed(2),
    "even": Even(),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_survives_its_file(name):
    rule = EXAMPLES[name]
    assert from_json(to_json(rule), 2) == rule
    assert len(in_words(rule)) > 10


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("threshold", "rule: one of"),
        ({"rule": "oracle"}, "rule: one of"),
        ({"rule": "threshold"}, "not the settings of threshold"),
        ({"rule": "threshold", "gamma": 0.5, "delta": 1}, "not the settings of threshold"),
        ({"rule": "threshold", "gamma": -0.1}, "gamma = -0.1: from 0 to 1"),
        ({"rule": "threshold", "gamma": "0.5"}, "gamma = '0.5'"),
        ({"rule": "threshold", "gamma": float("nan")}, "gamma = nan"),
        ({"rule": "threshold", "gamma": True}, "gamma = True"),
        ({"rule": "blend", "share": 1.5, "top": 1}, "share = 1.5"),
        ({"rule": "blend", "share": 0.5, "top": 3}, "top = 3: from 1 to 2 sites"),
        ({"rule": "blend", "share": 0.5, "top": 0}, "top = 0"),
        ({"rule": "fixed", "model": 3}, "model = 3: from 0"),
        ({"rule": "utility", "table": [[0.5] * 3]}, "table: 2 rows of 3 or 5 scores"),
        ({"rule": "utility", "table": [[0.5] * 4] * 2}, "table: 2 rows of 3 or 5 scores"),
        ({"rule": "utility", "table": [[0.5] * 3, [0.5] * 5]}, "table: 2 rows of 3 or 5 scores"),
        ({"rule": "utility", "table": [[0.5] * 3, [2.0] * 3]}, "table: scores are from 0 to 1"),
        ({"rule": "utility", "table": 7}, "table: 2 rows"),
    ],
)
def test_what_is_no_rule_is_refused(data, why):
    with pytest.raises(ValueError, match="routing: ") as caught:
        from_json(data, 2)
    assert why in str(caught.value)


# In a super model


def super_model(
    logits: list[float], rule: Rule, targets: str = "masks", **facts: object
) -> SuperModel:
    """Three models that differ, and a selector that says the same of every image."""
    selecting = NetworkSpec("small", 1, len(logits), 32)
    torch.manual_seed(0)
    models = {name: Weights.of(build_network(NETWORK)) for name in (GLOBAL, *SITES)}
    selector = Weights.of(build_network(selecting))
    selector["net.head.weight"].zero_()
    selector["net.head.bias"].copy_(torch.tensor(logits))
    models[SELECTOR] = selector
    known = Facts(
        "segmentation",
        ["disc"],
        SITES,
        NETWORK.to_json(),
        selecting.to_json(),
        to_json(rule),
        targets=targets,
    )
    return SuperModel(replace(known, **facts), models)


def images() -> Tensor:
    return torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_blend_mixes_probabilities():
    model, x = super_model([0.0, log(3)], Blend(0.75)), images()
    answer = model.answer(x)
    south, general = (to_probabilities("masks", model.logits_of(n, x)) for n in ("south", GLOBAL))
    expected = 0.75 * south + 0.25 * general
    assert torch.allclose(answer.logits.sigmoid(), expected, atol=1e-5)
    assert model.asked(answer.route) == ["global + south"] * 3
    assert answer.route.specialist.all()


def test_who_has_the_whole_share_answers_to_the_bit():
    model, x = super_model([0.0, 9.0], Utility(ALONE)), images()
    assert torch.equal(model.answer(x).logits, model.logits_of("south", x))
    assert model.asked(model.route(x)) == ["south"] * 3
    fixed = model.with_rule(Fixed(1))
    assert torch.equal(fixed.answer(x).logits, model.logits_of("north", x))


def test_an_ensemble_asks_all():
    model, x = super_model([0.0, log(2), log(5)], Ensemble()), images()
    weights, names = (1 / 8, 2 / 8, 5 / 8), (GLOBAL, *SITES)
    expected = sum(w * model.logits_of(n, x).sigmoid() for w, n in zip(weights, names, strict=True))
    assert torch.allclose(model.answer(x).logits.sigmoid(), expected, atol=1e-5)
    assert model.asked(model.route(x)) == [ALL] * 3


def test_the_temperature_divides_the_logits():
    """A softmax of (0, ln 9) is (.1, .9); at temperature 2 of (0, ln 3), (1/4, 3/4)."""
    model = super_model([0.0, log(9)], Threshold(0.8))
    assert model.route(images()).probabilities[0].tolist() == pytest.approx([0.1, 0.9])
    assert model.asked(model.route(images())) == ["south"] * 3
    warm = model.changed(temperature=2.0)
    assert warm.route(images()).probabilities[0].tolist() == pytest.approx([0.25, 0.75])
    assert warm.asked(warm.route(images())) == ["global"] * 3


def test_a_withheld_specialist_leaves_its_share_to_the_global_model():
    whole = super_model([0.0, log(3)], Blend(0.75, 2))
    assert whole.route(images()).shares[0].tolist() == pytest.approx([0.25, 0.1875, 0.5625])
    given = {name: model for name, model in whole.models.items() if name != "south"}
    kept = SuperModel(replace(whole.facts, withheld=["south"]), given)
    assert kept.route(images()).shares[0].tolist() == pytest.approx([0.8125, 0.1875, 0])
    assert kept.asked(kept.route(images())) == ["global + north"] * 3
    assert torch.isfinite(kept.answer(images()).logits).all()
