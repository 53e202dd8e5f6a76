"""The mean over late rounds by hand, its window, and that training does not notice it."""

import numpy as np
import pytest
import torch
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.evaluation.results import read_results
from konsil.ingredients.soup import first_of_the_last, running_mean
from konsil.weights import Weights

START = (1.0, -1.0, 0.5)
SWA = "server.global.soup"


def models(method: str, rounds: int, model=None, **settings) -> list[dict[str, Weights]]:
    """The shared parts after every round, on linear sites."""
    linear = toy.Linear(
        method, hand.two_sites(), rounds=rounds, model=model, training={"batch_size": 8}, **settings
    )
    shared = {"global": Weights.of(model()) if model else linear.weights(*START)}
    after = []
    for number in range(1, rounds + 1):
        shared = linear.round(shared, number)
        after.append(shared)
    return after


@pytest.mark.parametrize(("share", "first"), [(0.25, 7), (0.5, 5), (1.0, 1)])
def test_the_mean_of_the_last_rounds_by_hand(share, first):
    rounds, w, by_hand = 8, np.array(START), []
    linear = toy.Linear("fedavg", hand.two_sites(), training={"batch_size": 8})
    for number in range(1, rounds + 1):
        w = hand.fedavg_round(linear, w, number)
        by_hand.append(w)
    after = models("fedavg-swa", rounds, share=share)
    for number, (shared, plain) in enumerate(zip(after, by_hand, strict=True), 1):
        if number < rounds:  # training goes on from the plain mean
            np.testing.assert_allclose(shared["global"].flat.numpy(), plain, atol=2e-6)
        assert (SWA in shared) == (number >= first)
        if number >= first:
            mean = np.mean(by_hand[first - 1 : number], axis=0)
            np.testing.assert_allclose(shared[SWA].flat.numpy(), mean, atol=2e-6)
    assert after[-1]["global"].equals(after[-1][SWA])
    assert not np.allclose(after[-1]["global"].flat, by_hand[-1], atol=1e-3)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_training_does_not_notice(share):
    plain, averaged = models("fedavg", 6), models("fedavg-swa", 6, share=share)
    for mine, theirs in zip(averaged[:-1], plain[:-1], strict=True):
        assert mine["global"].equals(theirs["global"])


@pytest.mark.parametrize(
    ("share", "rounds", "first"),
    [(0.25, 4, 4), (0.25, 8, 7), (0.25, 3, 3), (0.25, 1, 1), (0.9, 10, 2), (0.55, 100, 46),
     (0.3, 10, 8), (1, 5, 1), (0, 5, 6), (0.01, 5, 5)],
)  # fmt: skip
def test_the_window(share, rounds, first):
    """The first round above (1 - share) rounds, whatever a binary fraction makes of it."""
    assert first_of_the_last(share, rounds) == first


def test_running_mean():
    layout = toy.Linear("fedavg", hand.two_sites()).weights(0, 0, 0).layout
    given = [Weights(layout, torch.rand(3)) for _ in range(5)]
    mean = given[1]  # of none: whatever stands there does not count
    for count, weights in enumerate(given):
        mean = running_mean(mean, count, weights)
        if count == 0:
            assert mean.equals(given[0])
        expected = np.mean([w.flat.double().numpy() for w in given[: count + 1]], axis=0)
        np.testing.assert_allclose(mean.flat.numpy(), expected, atol=1e-6)


def test_statistics_are_averaged_and_counters_are_not():
    def normed() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    plain, swa = models("fedavg", 4, normed), models("fedavg-swa", 4, normed, share=0.5)
    last = swa[-1]["global"]
    for name in ("0.running_mean", "0.running_var", "1.weight"):
        expected = (plain[2]["global"][name] + plain[3]["global"][name]) / 2
        torch.testing.assert_close(last[name], expected)
    assert int(last["0.num_batches_tracked"]) == int(plain[3]["global"]["0.num_batches_tracked"])


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_a_window_or_with_one_round_it_is_fedavg(make_plan, tmp_path, norm):
    labels = {"none": 0.0, "one": 0.25, "three": 0.75}
    swa = [{"name": "fedavg-swa", "label": k, "share": v} for k, v in labels.items()]
    plan = make_plan(
        methods=["fedavg", *swa],
        rounds=4,
        network={"name": "small", "norm": norm},
        training={"batch_size": 3, "lr": 1e-2},
    )
    fedavg = toy.train(plan, tmp_path, "fedavg")
    none, one, three = (toy.train(plan, tmp_path, label) for label in labels)
    assert toy.same_parts(none.shared, fedavg.shared)
    assert one.shared["global"].equals(fedavg.shared["global"])
    assert none.history == fedavg.history == one.history
    assert not three.shared["global"].equals(fedavg.shared["global"])
    assert three.history[:-1] == fedavg.history[:-1]
    assert three.history[-1] != fedavg.history[-1]  # what is validated at the end is the average


def test_no_single_round_can_be_the_best(make_plan, tmp_path):
    plan = make_plan(methods=[{"name": "fedavg-swa", "share": 1}, "fedavg"], rounds=2)
    assert not toy.train(plan, tmp_path, "fedavg-swa").best
    assert toy.train(plan, tmp_path, "fedavg").best


def test_both_checkpoints_are_the_average(make_plan, tmp_path):
    plan = make_plan(methods=[{"name": "fedavg-swa", "share": 1}], rounds=2)
    toy.whole_run(plan, tmp_path)
    best, last = (read_results(tmp_path / f) for f in ("results.csv", "results-last.csv"))
    judged = {row.metric for row in last}  # of the best checkpoint test images tell more
    assert [row for row in best if row.metric in judged] == last
    files = {p.parent.name for p in tmp_path.rglob("checkpoints/*/global.safetensors")}
    assert files == {"best", "last"}
