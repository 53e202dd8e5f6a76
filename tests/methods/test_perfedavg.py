"""Per-FedAvg against the exact Hessian of least squares, and what is left without inner steps."""

import numpy as np
import pytest
import torch
from methods import hand, layered
from torch import nn

from konsil import testing as toy
from konsil.weights import Weights

LR, ALPHA = 0.3, 0.2
VARIANTS = ["first_order", "hessian_free"]


def federation(variant: str, **settings) -> toy.Linear:
    training = {"lr": LR, "batch_size": 3}
    return toy.Linear("perfedavg", hand.two_clouds(), training=training, variant=variant,
                      **{"inner_lr": ALPHA, **settings})  # fmt: skip


def outer_gradient(w: np.ndarray, b1, b2, b3, variant: str) -> np.ndarray:
    d = hand.gradient(w - ALPHA * hand.gradient(w, b1), b2)
    return d if variant == "first_order" else d - ALPHA * hand.hessian(b3) @ d


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_rounds_by_hand(variant):
    linear, w = federation(variant), np.array(hand.START)
    shared = {"global": linear.weights(*w)}
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        local = {}
        for site in linear.data:
            local[site] = w
            three = [hand.batches(linear, site, number, p) for p in ("inner", "", "hessian")]
            for b1, b2, b3 in zip(*three, strict=True):  # as many of each
                local[site] = local[site] - LR * outer_gradient(local[site], b1, b2, b3, variant)
        w = hand.mean(linear, local)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=2e-4)


def adapted_slope(w: np.ndarray, data, product) -> np.ndarray:
    """grad of f(w - alpha grad f(w)) for a site's one batch; `product` is the Hessian with d."""
    d = layered.slope(w - ALPHA * layered.slope(w, data), data)
    return d - ALPHA * product(w, d, data)


def exact(w: np.ndarray, d: np.ndarray, data) -> np.ndarray:
    return layered.hessian(w, data) @ d


def far_apart(w: np.ndarray, d: np.ndarray, data) -> np.ndarray:
    """A central difference of gradients 2 * 0.5 apart, whatever the length of d."""
    length = np.linalg.norm(d)
    ahead, behind = (layered.slope(w + sign * 0.5 * d / length, data) for sign in (1, -1))
    return (ahead - behind) * length


@pytest.mark.parametrize(("delta", "product"), [(1e-2, exact), (0.5, far_apart)])
def test_a_hessian_that_is_not_the_same_everywhere(delta, product):
    """Taken at w as it is before each step; `delta` is how far it looks to both sides."""
    linear = toy.Linear("perfedavg", layered.SITES, model=layered.network, delta=delta,
                        training={"lr": LR, "local_epochs": 3}, variant="hessian_free",
                        inner_lr=ALPHA)  # fmt: skip
    w, shared = np.array(layered.START), {"global": linear.weights(*layered.START)}
    for number in (1, 2):
        shared, local = linear.round(shared, number), {}
        for site, data in layered.SITES.items():
            local[site] = w
            for _ in range(3):
                local[site] = local[site] - LR * adapted_slope(local[site], data, product)
        w = layered.mean(local)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-4)


def test_the_two_variants_differ_by_more_than_the_tolerance_above():
    ends = []
    for variant in VARIANTS:
        linear = federation(variant)
        ends.append(linear.round({"global": linear.weights(*hand.START)})["global"].flat)
    assert float((ends[0] - ends[1]).abs().max()) > 0.01


def test_a_gradient_of_zero_has_no_direction_to_differentiate_along():
    perfect = toy.points([[0, 0], [255, 255], [255, 0]], [0, 1, 1])  # y = x1
    linear = toy.Linear("perfedavg", {"a": perfect}, variant="hessian_free")
    shared = linear.round({"global": linear.weights(1.0, 0.0, 0.0)})
    assert shared["global"].flat.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_site_answers_with_the_mean_after_steps_on_training_images(steps):
    """Five steps of two batches an epoch: more than one epoch of them."""
    linear = federation("first_order", adapt_steps=steps)
    shared = {"global": linear.weights(*hand.START)}
    site = linear.site("a", 1, shared)
    opinions = linear.method.answers(site, shared)
    expected = np.array(hand.START)
    for x, y in list(site.batches("adapt", epochs=5))[:steps]:
        batch = hand.with_ones(x.double().numpy()), y.double().numpy()[:, 0]
        expected = expected - ALPHA * hand.gradient(expected, batch)
    np.testing.assert_allclose(opinions["personal"].flat.numpy(), expected, atol=1e-5)
    assert opinions["global"].flat.tolist() == shared["global"].flat.tolist()
    assert linear.method.answers(site, shared)["personal"].equals(opinions["personal"])


def test_adaptation_sees_no_validation_image():
    ends = []
    for val in ([1], [0]):
        linear = toy.Linear("perfedavg", {"a": toy.points([[255, 0]], [1])})
        train, other = linear.data["a"].train, toy.points([[255, 0]], val).val
        linear.data["a"] = type(linear.data["a"])(train, other)
        shared = {"global": linear.weights(0.0, 0.0, 0.0)}
        ends.append(linear.method.answers(linear.site("a", 1, shared), shared)["personal"])
    assert ends[0].equals(ends[1])
    assert ends[0].flat.tolist() == pytest.approx([0.02, 0, 0.02])


def test_only_the_outer_batches_move_the_statistics():
    """Otherwise a network with batch norm would not be FedAvg's at inner_lr = 0."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    data = toy.points([[0, 0], [255, 51], [51, 255], [102, 51]], [0, 1, 1, 0])
    linear = toy.Linear("perfedavg", {"a": data}, model=normed, variant="hessian_free",
                        training={"batch_size": 4})  # fmt: skip
    sent = linear.uploads({"global": Weights.of(normed())})["a"].parts["global"]
    mean = (data.train.images.float() / 255).mean(0)
    torch.testing.assert_close(sent["0.running_mean"], 0.1 * mean)  # moved once
    assert float(sent["0.num_batches_tracked"]) == 1


# --- real runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_an_inner_step_it_is_fedavg(make_plan, tmp_path, variant, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "perfedavg", "variant": variant, "inner_lr": 0}],
        network={"name": "small", "norm": norm},
    )
    records = [toy.train(plan, tmp_path, title) for title in ("fedavg", "perfedavg")]
    assert records[0].shared["global"].equals(records[1].shared["global"])
    assert records[0].best["global"].equals(records[1].best["global"])


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_adaptation_a_site_answers_with_the_global_model(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=[{"name": "perfedavg", "adapt_steps": 0}],
        network={"name": "small", "norm": norm},
    )
    record = toy.train(plan, tmp_path)
    for site in plan.sites:
        personal = toy.state_of(plan, tmp_path, site).last["personal"]
        assert personal.equals(record.shared["global"])


def test_adaptation_leaves_training_alone(make_plan, tmp_path):
    """Nor do the shared bits depend on how often sites are asked for their opinion."""
    ends = []
    for steps, every in ((0, 1), (3, 1), (3, 2)):
        plan = make_plan(
            methods=[{"name": "perfedavg", "adapt_steps": steps}],
            training={"batch_size": 3, "validate_every": every},
        )
        ends.append(toy.train(plan, tmp_path / f"{steps} {every}").shared["global"])
    assert ends[0].equals(ends[1])
    assert ends[0].equals(ends[2])


def test_inside_fedsm_it_is_the_same(make_plan, tmp_path):
    """Table 6 of FedSM: only the name of its shared part is another."""
    plan = make_plan(methods=["perfedavg", {"name": "fedsm", "personaliser": "perfedavg"}])
    records = {title: toy.train(plan, tmp_path, title) for title in ("perfedavg", "fedsm")}
    assert records["perfedavg"].shared["global"].equals(records["fedsm"].shared["personal"])
    for site in plan.sites:
        alone, inside = (toy.state_of(plan, tmp_path, site, title).last for title in records)
        assert alone["personal"].equals(inside["personal"])
