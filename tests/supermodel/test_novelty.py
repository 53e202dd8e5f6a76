"""Images like those of no site."""

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from konsil.supermodel.discriminant import ImageMeans, means_layout
from konsil.supermodel.novelty import LIMITS, choose_limit, novelty, novelty_of
from konsil.weights import WeightedMean, Weights


def means_of(by_site: list[Tensor]) -> Weights:
    layout = means_layout(len(by_site), by_site[0].shape[1])
    mean = WeightedMean(layout)
    for place, features in enumerate(by_site):
        seen = ImageMeans(layout)
        seen.add(features, torch.full((len(features),), place))
        mean.add(seen.result(), weight=len(features))
    return mean.result()


def test_two_sites_and_one_feature_by_hand():
    """Centres -3 and 3, variance 1 within sites, 18 between them: N(c, 1) against N(0, 19)."""
    known = novelty_of(means_of([torch.tensor([[-4.0], [-2.0]]), torch.tensor([[2.0], [4.0]])]))
    x = torch.tensor([[3.0], [-3.0], [0.0], [13.0]]).double()
    expected = [0 - 9 / 19, 0 - 9 / 19, 9 - 0, 100 - 169 / 19]
    assert novelty(known, x).tolist() == pytest.approx(expected, abs=1e-4)


def test_features_are_seen_in_units_of_their_scatter():
    torch.manual_seed(0)
    sites = [torch.randn(200, 3) + 4 * torch.randn(3) for _ in range(4)]
    scale = torch.tensor([1.0, 1e3, 1e-3])
    x = 5 * torch.randn(20, 3)
    plain = novelty(novelty_of(means_of(sites)), x.double())
    scaled = novelty(novelty_of(means_of([s * scale for s in sites])), (x * scale).double())
    assert torch.allclose(plain, scaled, rtol=1e-2, atol=1e-2)


def test_a_direction_in_which_sites_differ_counts_more_than_one_in_which_they_do_not():
    """Eight sites along the first feature: an image far along it is explained by a new hospital,
    one as far along the others is an odd image of any."""
    torch.manual_seed(0)
    sites = [torch.randn(100, 4) + torch.tensor([6.0 * k, 0, 0, 0]) for k in range(-4, 4)]
    known = novelty_of(means_of(sites))
    between, odd = torch.tensor([[9.0, 0, 0, 0], [6.0, 3.0, 0, 0]]).double()
    found = novelty(known, torch.stack([between, odd]))
    assert found[0] > found[1] + 1


def test_a_hospital_that_was_left_out_is_found():
    torch.manual_seed(0)
    centres = 3 * torch.randn(7, 12)
    *known, foreign = [centre + torch.randn(80, 12) for centre in centres]
    judge = novelty_of(means_of([site[:40] for site in known]))
    familiar = torch.cat([site[40:] for site in known])
    scores = novelty(judge, torch.cat([familiar, foreign]).double())
    labels = [0] * len(familiar) + [1] * len(foreign)
    assert roc_auc_score(labels, scores) > 0.95


def test_features_that_never_vary_do_no_harm():
    sites = [torch.cat([torch.randn(20, 2) + k, torch.ones(20, 1)], dim=1) for k in (0, 4)]
    found = novelty(novelty_of(means_of(sites)), torch.cat(sites).double())
    assert torch.isfinite(found).all()


# The limit


def test_limits_grow():
    assert list(LIMITS) == sorted(set(LIMITS))
    assert LIMITS[0] == 0.0
    assert LIMITS[-1] > 10


def counts(beyond: dict[int, int]) -> list[int]:
    """So many images are above all limits before a place."""
    return [sum(n for place, n in beyond.items() if k < place) for k in range(len(LIMITS))]


def test_one_image_in_a_hundred_may_exceed_the_limit():
    above = {"a": counts({10: 99, 40: 1})}
    assert choose_limit(above, {"a": 100}) == LIMITS[10]
    assert choose_limit(above, {"a": 100 - 1}) == LIMITS[40]  # 1 / 99 is more than a hundredth


def test_every_site_counts_alike_in_the_limit():
    """One of ten images of the small site is a twentieth of all, though one of 1010."""
    above = {"large": counts({5: 1000}), "small": counts({5: 9, 20: 1})}
    assert choose_limit(above, {"large": 1000, "small": 10}) == LIMITS[20]


def test_there_is_a_limit_even_if_all_exceed_it():
    assert choose_limit({"a": [5] * len(LIMITS)}, {"a": 5}) == LIMITS[-1]
