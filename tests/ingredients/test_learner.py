from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import update_bn

from konsil.config import TrainingConfig
from konsil.ingredients.learner import Learner, recompute_statistics
from konsil.networks import NetworkSpec, build_network
from konsil.weights import BoundNetwork, Weights

ADAM = TrainingConfig(lr=1e-2)
OPTIMIZERS = {
    "adam": ADAM,
    "adam with decay": TrainingConfig(lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9)),
    "adamw": TrainingConfig(optimizer="adamw", lr=1e-2, weight_decay=0.1),
    "clipped": TrainingConfig(optimizer="sgd", lr=0.5, clip=0.05),
    "sgd": TrainingConfig(optimizer="sgd", lr=1e-2),
    "sgd with momentum": TrainingConfig(optimizer="sgd", lr=1e-2, momentum=0.9),
}


def network(seed: int = 0, norm: str = "batch") -> nn.Module:
    torch.manual_seed(seed)
    return build_network(NetworkSpec("small", 3, 2, 32, norm))


def batches(count: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    for number in range(first, first + count):
        noise = torch.Generator().manual_seed(number)
        yield torch.rand(4, 3, 32, 32, generator=noise), torch.tensor([0, 1, 0, 1])


def train(learner: Learner, count: int, first: int = 0) -> list[float]:
    losses = []
    for x, y in batches(count, first):
        loss = cross_entropy(learner(x), y)
        losses.append(loss.item())
        learner.step(loss)
    return losses


def plain_optimizer(net: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    t = training
    if t.optimizer == "sgd":
        return torch.optim.SGD(net.parameters(), t.lr, t.momentum, weight_decay=t.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[t.optimizer]
    return kind(net.parameters(), t.lr, t.betas, weight_decay=t.weight_decay)


@pytest.mark.parametrize("training", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_learner_follows_torch_over_ordinary_parameters(training: TrainingConfig):
    plain = network(norm="group")  # biases before batch norm have no gradient but noise
    optimizer = plain_optimizer(plain, training)
    losses = []
    for x, y in batches(6):
        optimizer.zero_grad()
        loss = cross_entropy(plain(x), y)
        loss.backward()
        if training.clip is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), training.clip)
        optimizer.step()
        losses.append(loss.item())
    learner = Learner(BoundNetwork(network(norm="group")), training)
    assert train(learner, 6) == pytest.approx(losses, rel=1e-4)
    expected = Weights.of(plain)
    assert (learner.weights() - Weights.of(network(norm="group"))).norm() > 0.01
    assert torch.allclose(learner.weights().flat, expected.flat, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("training", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_weights_and_moments_are_all_there_is_to_go_on(training: TrainingConfig):
    whole = Learner(BoundNetwork(network()), training)
    train(whole, 5)
    first = Learner(BoundNetwork(network()), training)
    train(first, 3)
    weights, moments = first.weights(), first.moments()
    second = Learner(BoundNetwork(network(seed=1)), training)
    train(second, 2)  # of another site: it must leave no trace
    second.load(weights, moments)
    train(second, 2, first=3)
    assert second.weights().equals(whole.weights())
    assert second.moments().equals(whole.moments())


@pytest.mark.parametrize("training", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_without_moments_a_learner_begins_afresh(training: TrainingConfig):
    used, fresh = (Learner(BoundNetwork(network()), training) for _ in range(2))
    train(used, 3)
    start = used.weights()
    used.load(start)
    fresh.load(start)
    train(used, 2)
    train(fresh, 2)
    assert used.weights().equals(fresh.weights())


@pytest.mark.parametrize("training", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_zero_moments_are_fresh_ones(training: TrainingConfig):
    """The first round of averaged moments begins with zeros."""
    zeros, fresh = (Learner(BoundNetwork(network()), training) for _ in range(2))
    start = Weights.of(network(seed=2))
    zeros.load(start, Weights.zeros(zeros.moments_layout))
    fresh.load(start)
    train(zeros, 2)
    train(fresh, 2)
    assert zeros.weights().equals(fresh.weights())


def test_moments_matter():
    """Else the round trips above could pass by forgetting them."""
    kept, reset = (Learner(BoundNetwork(network()), ADAM) for _ in range(2))
    train(kept, 3)
    train(reset, 3)
    reset.load(reset.weights())
    train(kept, 1)
    train(reset, 1)
    assert not kept.weights().equals(reset.weights())


def test_the_step_is_a_counter_and_moments_are_averaged():
    learner = Learner(BoundNetwork(network()), ADAM)
    train(learner, 3)
    moments = learner.moments()
    assert [e.name for e in moments.layout.entries] == ["exp_avg", "exp_avg_sq", "step"]
    assert moments["step"].item() == 3
    assert moments.layout.counters == slice(moments.layout.size - 1, moments.layout.size)


def test_moments_are_a_copy():
    learner = Learner(BoundNetwork(network()), ADAM)
    train(learner, 1)
    moments = learner.moments()
    before = moments.clone()
    train(learner, 1)
    assert moments.equals(before)
    learner.load(learner.weights(), moments)
    train(learner, 1)
    assert moments.equals(before)


def test_accumulated_gradients_are_summed_and_applied_once():
    learner = Learner(BoundNetwork(network()), TrainingConfig(optimizer="sgd", lr=0.5))
    bias = learner.bound.layout.trainable - 1
    before = learner.weights().flat[bias]
    for (x, _), factor in zip(batches(2), (1.0, 3.0), strict=True):
        learner.accumulate(factor * learner(x)[:, 1].mean())  # its gradient is `factor`
    assert learner.gradient().flat[bias].item() == pytest.approx(4)
    learner.apply()
    assert learner.weights().flat[bias].item() == pytest.approx(before.item() - 0.5 * 4)
    assert learner.gradient().norm() == 0


def test_loading_forgets_an_unused_gradient():
    learner = Learner(BoundNetwork(network()), ADAM)
    x, y = next(batches(1))
    learner.accumulate(cross_entropy(learner(x), y))
    learner.load(learner.weights())
    assert learner.gradient().norm() == 0


def test_recomputed_statistics_equal_torchs():
    bound, plain = BoundNetwork(network()), network()
    for net in (bound.net, plain):
        for x, _ in batches(3, first=50):
            net(x)  # statistics of other images, to be forgotten
    recompute_statistics(bound, batches(4))
    update_bn((x for x, _ in batches(4)), plain)
    assert bound.weights().equals(Weights.of(plain))
    assert [m.momentum for m in bound.norm_layers()] == [0.1] * 4


def test_recomputed_statistics_stay_part_of_the_flat_buffer():
    bound = BoundNetwork(network())
    recompute_statistics(bound, batches(2))
    layout = bound.layout
    assert bound.weights().flat[layout.counters].tolist() == [2] * 4
    bound.flat[layout.statistics] = 0.5
    assert all((m.running_var == 0.5).all() for m in bound.norm_layers())


def test_a_network_without_statistics_is_left_alone():
    bound = BoundNetwork(network(norm="group"))
    before = bound.weights()
    recompute_statistics(bound, batches(2))
    assert bound.weights().equals(before)


def test_statistics_can_be_kept_while_a_gradient_is_taken():
    learner = Learner(BoundNetwork(network()), ADAM).load(Weights.of(network()))
    train(learner, 2)
    before = learner.weights()
    for kept in (True, False):
        for x, y in batches(1, first=9):
            if kept:
                with learner.statistics_kept():
                    learner.accumulate(cross_entropy(learner(x), y))
            else:
                learner.accumulate(cross_entropy(learner(x), y))
        assert learner.weights().equals(before) == kept
        assert float(learner.grad.abs().max()) > 0


def linear_learner(training: TrainingConfig, **options) -> Learner:
    """One weight w = 2 and a bias of 1."""
    bound = BoundNetwork(nn.Linear(1, 1))
    start = Weights(bound.layout, torch.tensor([2.0, 1.0]))
    return Learner(bound, training, **options).load(start)


def test_a_rate_of_its_own_goes_before_the_experiments():
    learner = linear_learner(TrainingConfig(optimizer="sgd", lr=0.1), lr=0.25)
    learner.step(learner(torch.ones(1, 1)).sum())  # both gradients are 1
    assert learner.weights().flat.tolist() == [1.75, 0.75]


@pytest.mark.parametrize("only", ["weight", "bias"])
def test_what_is_not_trained_does_not_move_even_by_weight_decay(only):
    training = TrainingConfig(optimizer="sgd", lr=0.5, weight_decay=0.5)
    learner = linear_learner(training, only={only})
    learner.step(learner(torch.ones(1, 1)).sum())
    # 2 - 0.5 (1 + 0.5 * 2), or 1 - 0.5 (1 + 0.5 * 1)
    expected = [1.0, 1.0] if only == "weight" else [2.0, 0.25]
    assert learner.weights().flat.tolist() == expected


def test_a_gradient_taken_elsewhere_leaves_the_values_where_they_were():
    learner = linear_learner(ADAM)
    with learner.at(torch.tensor([5.0, -1.0])):
        learner.accumulate(learner(torch.ones(1, 1)).square().sum())  # 2 (5 - 1)
    assert learner.parameters.tolist() == [2.0, 1.0]
    assert learner.grad.tolist() == [8.0, 8.0]
