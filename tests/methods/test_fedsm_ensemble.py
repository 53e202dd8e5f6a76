"""h = sum_k s_k h_k: the mixture by hand, its training, and its place in the super model."""

import numpy as np
import pytest
import torch
from methods import hand

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.networks.outputs import blended, to_logits, to_probabilities
from konsil.supermodel import SuperModel

BLOCK = {"name": "fedsm-ensemble"}


def test_the_mixture_by_hand():
    """Two models, one pixel: probabilities 1/2 and 0.9 in shares 1/4 and 3/4 make 0.8."""
    logits = [torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1, 1), float(np.log(9)))]
    mixed = blended("masks", logits, torch.tensor([[0.25, 0.75]]))
    assert torch.sigmoid(mixed).item() == pytest.approx(0.8)
    logits = [torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, float(np.log(9))]])]
    mixed = blended("classes", logits, torch.tensor([[0.25, 0.75]]))
    assert torch.softmax(mixed, 1).flatten().tolist() == pytest.approx([0.2, 0.8])


def test_three_rounds_by_hand():
    """FedSM's models; then one step of the selector down the loss of the mixture's logit."""
    linear, shared = hand.two_phases("fedsm-ensemble")
    linear.method.context.task.targets = "masks"  # a yes or no: logits are mixed as such
    w_s = hand.rows(shared["selector"])
    models = hand.fedsm_round(linear, np.array([1.0, -1.0, 0.5]), 0.7)
    for number in (1, 2, 3):
        shared = linear.round(shared, number)

    def loss(w: np.ndarray, data) -> float:
        x, y = hand.points(data.train)
        opinions = np.stack([1 / (1 + np.exp(-x @ model)) for model in models], axis=1)
        h = (hand.softmax(x @ w.T) * opinions).sum(axis=1)
        return float(np.mean((np.log(h / (1 - h)) - y) ** 2))

    stepped = {}
    for site, data in linear.data.items():
        slope = np.zeros_like(w_s)
        for place in np.ndindex(*w_s.shape):
            away = np.zeros_like(w_s)
            away[place] = 1e-5
            slope[place] = (loss(w_s + away, data) - loss(w_s - away, data)) / 2e-5
        stepped[site] = w_s - 0.1 * slope
    expected = hand.mean(linear, stepped)
    np.testing.assert_allclose(hand.rows(shared["selector"]), expected, atol=1e-6)
    assert np.abs(expected - w_s).max() > 1e-4  # a hundred times the tolerance


@pytest.mark.parametrize("task", ["masks", "classes"])
def test_one_share_of_one_is_that_model(task):
    logits = [torch.randn(3, 2), torch.randn(3, 2)]
    shares = torch.tensor([[0.0, 1.0]] * 3)
    expected = to_probabilities(task, logits[1])
    mixed = to_probabilities(task, blended(task, logits, shares))
    torch.testing.assert_close(mixed, expected)


@pytest.mark.parametrize("task", ["masks", "classes"])
def test_logits_of_probabilities_have_these_probabilities(task):
    p = to_probabilities(task, torch.randn(4, 3))
    torch.testing.assert_close(to_probabilities(task, to_logits(task, p)), p)
    certain = torch.tensor([[0.0, 1.0]])
    assert to_logits(task, certain).isfinite().all()


def test_gradients_reach_the_shares_and_favour_the_better_model():
    """y = 1: the model that says 0.9 must gain on the one that says 0.1."""
    logits = [torch.full((1, 1, 2, 2), float(np.log(o))) for o in (1 / 9, 9)]
    scores = torch.zeros(1, 2, requires_grad=True)
    mixed = blended("masks", logits, torch.softmax(scores, 1))
    torch.nn.functional.binary_cross_entropy_with_logits(mixed, torch.ones(1, 1, 2, 2)).backward()
    assert scores.grad[0, 0] > 0 > scores.grad[0, 1]


def test_the_models_are_fedsm_extras(make_plan, tmp_path):
    """Same phase 1, bit for bit; the ensemble changes the selector alone."""
    plan = make_plan(methods=[BLOCK, "fedsm-extra"], rounds=5)
    mine, theirs = (toy.train(plan, tmp_path, t) for t in ("fedsm-ensemble", "fedsm-extra"))
    shared = [n for n in mine.shared if n.startswith("specialist")] + ["global"]
    assert len(shared) == 3
    assert all(mine.shared[n].equals(theirs.shared[n]) for n in shared)
    assert not mine.shared["selector"].equals(theirs.shared["selector"])


def test_the_super_model_answers_with_the_mixture(make_plan, outlines, tmp_path):
    plan = make_plan(methods=[BLOCK], rounds=4, **outlines)
    toy.whole_run(plan, tmp_path)
    model = SuperModel.load(tmp_path / plan.jobs[0].name / "supermodel")
    assert model.rule.name == "ensemble"
    x = torch.rand(2, 3, 32, 32)
    answer = model.answer(x)
    opinions = [torch.sigmoid(model.logits_of(n, x)) for n in ("global", *plan.sites)]
    shares = answer.route.probabilities
    expected = sum(shares[:, k, None, None, None] * h for k, h in enumerate(opinions))
    torch.testing.assert_close(torch.sigmoid(answer.logits), expected, atol=1e-5, rtol=1e-4)


def test_there_are_no_labels_to_solve_for(make_plan):
    with pytest.raises(ConfigError, match=r"selector_optimizer = closed_form.*average_moments"):
        make_plan(methods=[BLOCK | {"selector_optimizer": "closed_form"}])
