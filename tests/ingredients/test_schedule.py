"""The learning rate over rounds, by hand, and that every method trains with it."""

import math

import pytest
import torch
from methods import hand

from konsil import testing as toy
from konsil.config import TrainingConfig
from konsil.ingredients.schedule import rate_factor


def rates(rounds: int, first: int = 1, **training) -> list[float]:
    config = TrainingConfig(**training)
    return [rate_factor(config, r, first, rounds) for r in range(first, rounds + 1)]


def test_a_constant_rate_is_the_rate():
    assert rates(5, schedule="constant") == [1.0] * 5


def test_cosine_by_hand():
    found = rates(4, schedule="cosine", final_lr=0.0)
    half = math.sqrt(0.5)
    assert found == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2])


def test_a_schedule_ends_near_its_final_rate():
    assert rates(4, schedule="cosine", final_lr=0.2)[2] == pytest.approx(0.6)
    assert rates(1000, schedule="cosine", final_lr=0.2)[-1] == pytest.approx(0.2, abs=1e-4)


def test_polynomial_by_hand():
    found = rates(4, schedule="polynomial", final_lr=0.0)
    assert found == pytest.approx([1, 0.75**0.9, 0.5**0.9, 0.25**0.9])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "polynomial"])
def test_warm_up_grows_evenly_and_the_full_rate_follows(schedule):
    found = rates(6, schedule=schedule, warmup=3)
    assert found[:4] == pytest.approx([0.25, 0.5, 0.75, 1])


def test_more_warm_up_than_rounds_leaves_the_last_round_the_full_rate():
    assert rates(3, warmup=9) == pytest.approx([1 / 3, 2 / 3, 1])


def test_a_phase_has_a_schedule_of_its_own():
    assert rates(9, first=6, schedule="cosine") == rates(4, schedule="cosine")


def learner_rates(linear: toy.Linear, network: str, rounds: range) -> list[float]:
    """What a site's learner steps with, round by round."""
    model = linear.weights(1.0, -1.0, 0.5)
    found = []
    for number in rounds:
        learner = linear.site("a", number, {}).learner(network, model)
        found.append(learner.lr)
    return found


FALLING = {"schedule": "polynomial", "final_lr": 0.5}


def test_a_site_learns_at_the_rate_of_its_round_and_fine_tunes_at_the_full_one():
    linear = toy.Linear("fedavg", hand.two_sites(), rounds=4, training=FALLING)
    config = TrainingConfig(**FALLING)
    expected = [0.1 * rate_factor(config, r, 1, 4) for r in range(1, 5)]
    assert learner_rates(linear, "global", range(1, 6)) == pytest.approx([*expected, 0.1])
    assert expected[3] < expected[1] < expected[0] == 0.1


def test_a_rate_of_a_networks_own_falls_alike():
    linear = toy.Linear("pfedme", hand.two_sites(), rounds=4, training=FALLING, inner_lr=0.02)
    usual, inner = (learner_rates(linear, name, range(1, 5)) for name in ("global", "theta"))
    assert [0.2 * rate for rate in usual] == pytest.approx(inner)


def test_in_two_phases_models_and_selector_each_have_their_own_rounds():
    linear = toy.Linear("fedsm-extra", hand.two_sites(), rounds=9, training=FALLING)
    trained = linear.method.networks()
    assert linear.method.first_phase == 6
    assert {trained[name].rounds for name in ("global", "personal")} == {(1, 6)}
    assert trained["selector"].rounds == (8, 9)


def test_scaffolds_controls_know_the_rate_of_the_round():
    """By option II a control is the mean gradient: not twice of it at half the rate."""
    halved = {"batch_size": 8, "schedule": "polynomial", "final_lr": 0.0}
    linear = toy.Linear(
        "scaffold", hand.two_sites(), rounds=4, training=halved, correction="direction"
    )
    model = linear.weights(1.0, -1.0, 0.5)
    zero = model - model
    linear.round({"global": model, "control": zero}, 4)  # at 0.25 ** 0.9 of the rate
    whole = toy.Linear(
        "scaffold", hand.two_sites(), training={"batch_size": 8}, correction="direction"
    )
    whole.round({"global": model, "control": zero}, 4)
    found, expected = (x.states["a"].private["control"].flat for x in (linear, whole))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
