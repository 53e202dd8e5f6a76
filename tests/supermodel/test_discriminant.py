import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from konsil.supermodel.discriminant import (
    UNSEEN,
    ImageMeans,
    linear_discriminant,
    means_layout,
    wrong_means,
)
from konsil.weights import Layout, WeightedMean, Weights


def selector(sites: int, features: int) -> Weights:
    layout = Layout.build(
        [
            ("net.head.weight", (sites, features), "trainable", "head"),
            ("net.head.bias", (sites,), "trainable", "head"),
        ]
    )
    return Weights.zeros(layout)


def means_of(head: Weights, by_site: list[torch.Tensor]) -> Weights:
    """As the server sees it: every site's means, averaged by its images."""
    layout = means_layout(*head["net.head.weight"].shape)
    mean = WeightedMean(layout)
    for index, features in enumerate(by_site):
        seen = ImageMeans(layout)
        for batch in features.split(3):
            seen.add(batch, torch.full((len(batch),), index))
        mean.add(seen.result(), weight=len(features))
    return mean.result()


def test_two_sites_and_one_feature_by_hand():
    head = selector(2, 1)
    # centres 1 and 4, variance within sites 1: the border lies half-way, at 2.5
    means = means_of(head, [torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [5.0]])])
    solved = linear_discriminant(head, means, shrinkage=0.0)
    weight, bias = solved["net.head.weight"], solved["net.head.bias"]
    assert weight.flatten().tolist() == pytest.approx([-1.5, 1.5])
    logits = torch.tensor([[2.5], [2.0], [3.0]]) @ weight.T + bias
    assert logits[0, 0] == pytest.approx(float(logits[0, 1]), abs=1e-5)
    assert logits[1:].argmax(1).tolist() == [0, 1]
    # log-odds of two normal distributions of equal variance: (4 - 1) / 1 a unit
    assert float(logits[2, 1] - logits[2, 0]) == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 1.0])
def test_shrinkage_takes_correlations_towards_none(shrinkage):
    """Sites apart by 1 along x alone; within sites x and y have variance 1 and correlation 1/2.
    S^-1 (1, 0) is (1, -c) / (1 - c^2) with c = (1 - shrinkage) / 2: y counts -c times x."""
    a = 3**0.5 / 2
    within = torch.tensor([[a, a], [-a, -a], [0.5, -0.5], [-0.5, 0.5]]) * 2**0.5
    head, apart = selector(2, 2), torch.tensor([1.0, 0.0])
    solved = linear_discriminant(head, means_of(head, [within, within + apart]), shrinkage)
    towards = solved["net.head.weight"][1] - solved["net.head.weight"][0]
    assert float(towards[1] / towards[0]) == pytest.approx(-(1 - shrinkage) / 2, abs=1e-4)


def test_equals_the_discriminant_of_pooled_images():
    torch.manual_seed(0)
    by_site = [torch.randn(40, 4) @ torch.randn(4, 4) + k for k in range(3)]
    head = selector(3, 4)
    solved = linear_discriminant(head, means_of(head, by_site), shrinkage=0.0)
    pooled, labels = torch.cat(by_site).numpy(), np.repeat([0, 1, 2], 40)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(pooled, labels)
    found = pooled @ solved["net.head.weight"].numpy().T + solved["net.head.bias"].numpy()
    scores = expected.decision_function(pooled)
    assert np.allclose(np.diff(found, axis=1), np.diff(scores, axis=1), rtol=1e-2, atol=1e-2)


def test_a_large_site_does_not_swallow_a_small_one():
    torch.manual_seed(0)
    by_site = [torch.randn(400, 2), torch.randn(10, 2) + 2]
    head = selector(2, 2)
    solved = linear_discriminant(head, means_of(head, by_site))
    small = by_site[1] @ solved["net.head.weight"].T + solved["net.head.bias"]
    assert (small.argmax(1) == 1).float().mean() >= 0.8


def test_a_site_that_has_not_answered_is_never_named():
    head = selector(3, 2)
    torch.manual_seed(0)
    means = means_of(head, [torch.randn(20, 2), torch.randn(20, 2) + 3])
    solved = linear_discriminant(head, means)
    assert float(solved["net.head.weight"][2].abs().sum()) == 0
    # also for images so far away that every site's logit is below any fixed one
    for far in (1.0, 1e3, 1e5):
        logits = far * torch.randn(200, 2) @ solved["net.head.weight"].T + solved["net.head.bias"]
        assert (logits[:, 2] <= logits[:, :2].amax(dim=1) + UNSEEN + 1).all()


def test_features_that_do_not_vary_do_no_harm():
    head = selector(2, 3)
    torch.manual_seed(0)
    by_site = [torch.cat([torch.randn(20, 2) + k, torch.ones(20, 1)], 1) for k in (0, 4)]
    solved = linear_discriminant(head, means_of(head, by_site))
    assert torch.isfinite(solved.flat).all()
    logits = torch.cat(by_site) @ solved["net.head.weight"].T + solved["net.head.bias"]
    assert (logits.argmax(1) == torch.tensor([0] * 20 + [1] * 20)).float().mean() > 0.9


# What a site may say of itself


def said(shares: list[float], features: list[list[float]]) -> Weights:
    means = Weights.zeros(means_layout(len(shares), len(features[0])))
    means["shares"].copy_(torch.tensor(shares))
    means["features"].copy_(torch.tensor(features))
    return means


NONE, SOME = [0.0, 0.0], [0.5, -0.25]
THIRD = 1 / 3


@pytest.mark.parametrize(
    ("shares", "features", "images", "classes"),
    [
        ([0.0, 1.0, 0.0], [NONE, SOME, NONE], 3, [1]),
        ([0.0, 1.0, 0.0], [NONE, NONE, NONE], 3, [1]),  # features may be anything, also nothing
        ([THIRD, 2 / 3, 0.0], [SOME, SOME, NONE], 3, range(3)),
        ([0.5, 0.25, 0.25], [SOME, SOME, SOME], 4, range(3)),
    ],
)
def test_means_that_a_site_can_have(shares, features, images, classes):
    assert wrong_means(said(shares, features), images, classes) == ""


@pytest.mark.parametrize(
    ("shares", "images", "classes", "why"),
    [
        ([0.0, 1e-37, 0.0], 3, [1], "no counts of 3 images"),
        ([1e-37, 1.0, 0.0], 3, [1], "no counts"),
        ([0.0, 1.0000001, 0.0], 3, [1], "no counts"),
        ([0.0, 2.0, 0.0], 3, [1], "no counts"),
        ([0.0, 0.0, 0.0], 3, [1], "no counts"),
        ([-1.0, 2.0, 0.0], 3, [1], "no counts"),
        ([0.5, 0.5, 0.0], 3, range(3), "no counts"),  # of three images?
        ([0.0, 1.0, 0.0], 2.5, [1], "no counts"),
        ([0.0, 1.0, 0.0], 1e-37, [1], "no counts"),
        ([THIRD, 2 / 3, 0.0], 3, [1], "cannot have"),
        ([1.0, 0.0, 0.0], 3, [1], "cannot have"),
        ([0.0, 1.0, 0.0], 3, [1], "classes without images"),
    ],
)
def test_means_that_no_images_have(shares, images, classes, why):
    assert why in wrong_means(said(shares, [SOME, SOME, SOME]), images, classes)


@pytest.mark.parametrize("images", [1, 3, 7, 49, 1000, 99_991])
def test_what_a_site_computes_is_never_refused(images):
    """Shares are compared bit for bit: thirds, sevenths and rarer ones, too."""
    torch.manual_seed(images)
    seen = ImageMeans(means_layout(5, 2))
    seen.add(torch.randn(images, 2), torch.randint(0, 4, (images,)))
    assert wrong_means(seen.result(), float(images), range(5)) == ""
