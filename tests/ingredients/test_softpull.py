"""Where lambda' comes from: given, searched on validation images, or by shrinkage."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from konsil import testing as toy
from konsil.data import TrainingData
from konsil.errors import ConfigError
from konsil.ingredients.context import Shared
from konsil.ingredients.site import Site
from konsil.ingredients.softpull import (
    CANDIDATES,
    CORRELATION,
    IN_THE_MEAN,
    SHRINKAGE,
    VELOCITY,
    crossfitted_loss,
    lambda_prime,
    least_within_one_error,
    reliability,
    search,
    shrunk,
    softpull,
    standard_error,
    unit,
)
from konsil.weights import Layout, Weights

A = toy.points([[0, 255]], [1])
B = toy.points([[255, 0], [255, 255], [0, 0]], [1, 0, 1])


def federation(lambda_, data=None, sites="ab", **options) -> tuple[toy.Linear, Shared]:
    data = data or {site: (A, B)[place % 2] for place, site in enumerate(sites)}
    linear = toy.Linear("fedsm", data, **{"lambda": lambda_, **options})
    selector = Weights.zeros(Layout.of(linear.selector()))
    model = linear.weights(1.0, -1.0, 0.5)
    parts = {"global": model, "personal": model, "selector": selector}
    if options.get("server"):
        parts |= {VELOCITY: Weights.zeros(model.layout), "server.global.velocity": model - model}
    return linear, Shared(parts)


# --- given --------------------------------------------------------------------------------------


def test_every_site_may_have_a_lambda_of_its_own():
    linear, shared = federation({"a": 0.5, "b": 1.0})
    shared = linear.round(shared)
    own = {s: linear.states[s].private["personal"].flat.double() for s in "ab"}
    mean = (own["a"] + own["b"]) / 2
    for name, expected in (("a", mean), ("b", own["b"])):  # lambda' is 0 and 1
        site = linear.site(name, 2, shared)
        linear.method.receive(site, shared)
        torch.testing.assert_close(site.private["personal"].flat.double(), expected)


def test_a_lambda_for_a_site_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"each site \(a, b\).*unknown: b, c"):
        federation({"a": 0.5, "c": 0.7})


def test_the_candidates_are_the_papers_lambdas_for_six_sites():
    papers = [lambda_prime(x, 6) for x in (1 / 6, 0.3, 0.5, 0.7, 0.9, 1.0)]
    assert list(CANDIDATES) == pytest.approx(papers)


# --- line search --------------------------------------------------------------------------------


def bowl(centres: list[float]):
    """Losses of images whose best lambda' is at these places."""
    return lambda share: (share - torch.tensor(centres, dtype=torch.float64)) ** 2


@pytest.mark.parametrize("guard", ["none", "cross-fit", "one-se"])
def test_the_search_takes_the_smallest_mean_loss(guard):
    assert search(bowl([0.5, 0.6, 0.7, 0.7]), now=0.0, guard=guard) == 0.64


def test_of_equal_candidates_the_nearest_stays():
    flat = lambda share: torch.zeros(4, dtype=torch.float64)  # noqa: E731
    for now in CANDIDATES:
        assert search(flat, now, guard="none") == now


def test_images_that_did_not_choose_must_be_better_off():
    """One half wants 1, the other 0: whoever chooses, the other half pays."""
    torn = bowl([1.0, 1.0, 0.0, 0.0, 0.0])
    assert search(torn, now=0.4, guard="none") == 0.4
    lopsided = bowl([1.0, 1.0, 1.0, 0.0, -0.5, -0.5, 0.0])
    assert search(lopsided, now=0.16, guard="none") in CANDIDATES
    assert search(lopsided, now=0.3, guard="cross-fit") == 0.3
    table = torch.stack([lopsided(c) for c in CANDIDATES])
    assert crossfitted_loss(table, 0.3) > float(lopsided(0.3).mean())


@pytest.mark.parametrize("guard", ["cross-fit", "one-se"])
def test_one_validation_image_cannot_move_lambda(guard):
    assert search(bowl([1.0]), now=0.16, guard=guard) == 0.16


def test_crossfitting_by_hand():
    table = torch.tensor([[1.0, 3, 2], [2, 1, 5]], dtype=torch.float64).repeat(3, 1)
    # first half (image 0) chooses candidate 0: the rest lose 3 and 2; the rest choose candidate
    # 0 too (2.5 against 3): image 0 loses 1
    assert crossfitted_loss(table, 0.0) == pytest.approx((1 + 3 + 2) / 3)


def test_the_standard_error_by_hand():
    # images 1 and 3: a mean of 2 with deviation sqrt(2), by sqrt(2) images
    assert standard_error(torch.tensor([1.0, 3.0])) == pytest.approx(1)
    # twenty images are ten pairs of neighbours; pairs that agree are ten numbers, not twenty
    pairs = torch.arange(10.0).repeat_interleave(2)
    assert standard_error(pairs) == pytest.approx(np.std(np.arange(10), ddof=1) / np.sqrt(10))
    # pairs that differ as much as all do tell nothing of the mean
    assert standard_error(torch.tensor([0.0, 9.0] * 10)) == 0


def test_a_site_leaves_the_others_as_far_as_its_images_can_tell():
    """Losses of two images by candidate; the fourth is the best, 1 below the first."""
    best = torch.tensor([0.0, 0.0])
    by_hand = {
        (2.5, -0.5): 0,  # 1 behind, and not known better than to 1.5: the mean will do
        (1.5, 0.5): 3,  # 1 behind with an error of 0.5: it will not
    }
    for first, expected in by_hand.items():
        far = torch.tensor([5.0, 5.0])
        table = torch.stack([torch.tensor(first), far, far, best, far, far])
        assert least_within_one_error(table) == expected


def test_of_equal_candidates_one_error_takes_the_mean():
    assert least_within_one_error(torch.ones(len(CANDIDATES), 5)) == 0


def moved_by_noise(guard: str, images: int = 6, trials: int = 300) -> float:
    """The mean square way from 0.4 if the losses are noise and no candidate is any better."""
    rng, moved = np.random.default_rng(0), 0.0
    for _ in range(trials):
        drawn = {c: torch.from_numpy(rng.normal(0, 1, images)) for c in CANDIDATES}
        moved += (search(lambda c, drawn=drawn: drawn[c], 0.4, guard) - 0.4) ** 2
    return moved / trials


def test_the_guard_halves_what_noise_moves():
    assert moved_by_noise("cross-fit") < 0.6 * moved_by_noise("none")


def test_the_search_in_a_round_by_hand():
    """A site whose validation images like its own model moves 30 % of the way from 0 to 1."""
    likes_own = TrainingData(A.train, toy.points([[0, 255], [0, 255]], [1, 1]).val)
    linear, shared = federation("auto", {"a": likes_own, "b": B})
    shared = linear.round(shared)
    own, mean = linear.states["a"].private["personal"], shared["personal"]
    site = linear.site("a", 2, shared)
    linear.method.receive(site, shared)
    assert site.notes["lambda_prime"] == pytest.approx(0.3)
    expected = 0.3 * own.flat + 0.7 * mean.flat
    torch.testing.assert_close(site.private["personal"].flat, expected)
    assert linear.method.models[0].measures(site, shared) == {"lambda_prime": pytest.approx(0.3)}


@pytest.mark.parametrize(("guard", "models"), [("one-se", 6), ("cross-fit", 7), ("none", 6)])
def test_candidates_are_tried_as_the_site_would_run_them(monkeypatch, guard, models):
    """With its own statistics, if those stay local."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    other = toy.points([[0, 255], [255, 102]], [1, 0])
    training = {"running_statistics": "local"}
    found = {"lambda": "auto", "lambda_guard": guard}
    linear = toy.Linear("fedsm", {"a": other, "b": B}, model=normed, training=training, **found)
    model, selector = Weights.of(normed()), Weights.zeros(Layout.of(linear.selector()))
    shared = linear.round({"global": model, "personal": model, "selector": selector})
    tried = []
    usual = Site.validation_losses

    def noted(self, weights):
        tried.append(weights)
        return usual(self, weights)

    monkeypatch.setattr(Site, "validation_losses", noted)
    site = linear.site("a", 2, shared)
    own = site.private["personal.statistics"]
    linear.method.receive(site, shared)
    assert len(tried) == linear.method.models[0].share.models_tried == models
    assert all(weights.equals(weights.with_statistics_of(own)) for weights in tried)


def test_searching_sends_no_more_than_a_fixed_lambda(make_plan):
    titles = ["fixed", "searched"]
    plan = make_plan(
        methods=[
            {"name": "fedsm", "label": titles[0], "lambda": 0.7},
            {"name": "fedsm", "label": titles[1], "lambda": "auto-linesearch"},
        ]
    )
    fixed, searched = (plan.method(job) for job in plan.jobs)
    sizes = [
        {n: lay.size for n, lay in m.uploads(m.initial_parts()).items()} for m in (fixed, searched)
    ]
    assert sizes[0] == sizes[1]


# --- shrinkage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("r", "rho", "expected"), [(1, 0, 1), (0.5, 0.5, 0), (0.2, 0.5, 0), (0.8, 0.5, 0.6), (1, 1, 0)]
)
def test_shrinkage_by_hand(r, rho, expected):
    assert shrunk(r, rho) == pytest.approx(expected)


@given(st.floats(0, 1), st.floats(-1, 0.99))
@settings(max_examples=50, deadline=None)
def test_shrinkage_stays_between_the_average_and_local_training(r, rho):
    assert 0 <= shrunk(r, rho) <= 1


def test_reliability_is_spearman_and_browns():
    x = torch.tensor([1.0, 0.0])
    assert reliability(x, x) == pytest.approx(1)
    assert reliability(x, torch.tensor([1.0, 3**0.5])) == pytest.approx(2 * 0.5 / 1.5)
    assert reliability(x, torch.tensor([-1.0, 0.0])) == 0
    assert reliability(x, torch.zeros(2)) == 0


@pytest.mark.parametrize("epochs", [1, 3])
def test_reliability_is_of_the_first_epochs_halves(epochs):
    """Later epochs see the same images again, and would vouch for themselves."""
    data = {"a": A, "b": toy.points([[255, 0], [255, 51], [204, 0]], [0, 0, 0])}
    found = {}
    for local_epochs in (1, epochs):
        linear, shared = federation(
            "auto-shrinkage", data, training={"batch_size": 1, "local_epochs": local_epochs}
        )
        linear.round(shared)
        found[local_epochs] = linear.states["b"].notes["reliability"]
        assert linear.states["a"].notes["reliability"] == 0  # one batch has no halves
    assert found[1] == found[epochs] > 0


def test_correlation_from_means_alone_is_the_mean_cosine():
    """rho of two sites is the cosine of their updates, although the server sees only means."""
    linear, shared = federation("auto-shrinkage")
    uploads = linear.uploads(shared)
    merged = linear.method.merge(shared, toy.means(uploads))
    start = shared["global"].flat.double()
    d = [uploads[s].parts["global"].flat.double() - start for s in "ab"]
    cosine = float(d[0] @ d[1] / (d[0].norm() * d[1].norm()))
    assert merged.notes[CORRELATION] == pytest.approx(cosine, abs=1e-5)
    assert SHRINKAGE not in merged


def test_the_numbers_sent_do_not_grow_with_the_network():
    """An update of 0.1 in every value of 25 million is no reason to refuse an upload."""
    for values in (3, 1000, 25_000_000):
        length = 0.1 * values**0.5 / unit(values)
        assert 0.07 < length < 0.15
        assert unit(values).hex().startswith("0x1.0000")  # a power of two


def test_a_round_with_one_site_says_nothing_of_correlation():
    linear, shared = federation("auto-shrinkage")
    shared = linear.round(shared)
    known = shared.notes[CORRELATION]
    shared = linear.round(shared, 2, sites=["b"])
    assert shared.notes[CORRELATION] == known


def test_the_formula_finds_the_best_lambda_of_its_own_model():
    """w_k = shared + personal + noise: lambda' = P/(P + E) (PAPERS D3, by simulation)."""
    rng, size, sites = np.random.default_rng(0), 20000, 6
    for shared, personal, noise in ((1, 1.5, 1), (1, 1, 3), (0.5, 1, 0.2)):
        s = rng.normal(0, shared**0.5, size)
        p = rng.normal(0, personal**0.5, (sites, size))
        halves = rng.normal(0, (2 * noise) ** 0.5, (sites, 2, size))
        updates = torch.from_numpy(s + p[:, None] + halves)
        whole = updates.mean(dim=1)
        cosines = torch.corrcoef(whole)
        rho = float((cosines.sum() - sites) / (sites * (sites - 1)))
        r = np.mean([reliability(*pair) for pair in updates])
        assert shrunk(r, rho) == pytest.approx(personal / (personal + noise), abs=0.05)


# --- who is in the mean -------------------------------------------------------------------------


def pulled(linear, shared, site, number):
    at = linear.site(site, number, shared)
    linear.method.receive(at, shared)
    return at.private["personal"]


def test_lambda_is_the_share_of_oneself_whoever_answers():
    """Four sites, one away: the three pull by Eq. 11 with K = 3, each keeps 0.7 of itself."""
    linear, shared = federation(0.7, sites="abcd")
    shared = linear.round(linear.round(shared), 2, sites=["a", "b", "c"])
    own = {s: linear.states[s].private["personal"].flat.double() for s in "abcd"}
    expected = 0.7 * own["a"] + 0.3 * (own["b"] + own["c"]) / 2
    torch.testing.assert_close(
        pulled(linear, shared, "a", 3).flat.double(), expected, rtol=1e-5, atol=1e-7
    )
    away = 0.7 * own["d"] + 0.3 * (own["a"] + own["b"] + own["c"]) / 3
    torch.testing.assert_close(
        pulled(linear, shared, "d", 3).flat.double(), away, rtol=1e-5, atol=1e-7
    )


def test_who_is_in_the_mean_is_forgotten_once_all_are():
    linear, shared = federation(0.7, sites="abcd")
    shared = linear.round(shared, 1, sites=["a", "b"])
    assert shared.notes[IN_THE_MEAN] == ["a", "b"]
    assert IN_THE_MEAN not in linear.round(shared, 2).notes


def test_the_plain_mean_of_all_stays_the_plain_mean_of_fewer():
    """lambda = 1/4 of four sites would be an extrapolation with three."""
    linear, shared = federation(0.25, sites="abcd")
    shared = linear.round(shared, 1, sites=["a", "b", "c"])
    assert pulled(linear, shared, "a", 2).equals(shared["personal"])


def test_a_site_of_lambda_1_that_comes_late_begins_with_the_initial_model():
    linear, shared = federation({"a": 0.6, "b": 1.0}, initial=(1.0, -1.0, 0.5))
    shared = linear.round(shared, 1, sites=["a"])
    assert pulled(linear, shared, "b", 2).equals(linear.weights(1.0, -1.0, 0.5))


def test_a_site_that_takes_of_the_others_begins_with_their_mean():
    linear, shared = federation({"a": 0.6, "b": 0.9}, initial=(1.0, -1.0, 0.5))
    shared = linear.round(shared, 1, sites=["a"])
    assert pulled(linear, shared, "b", 2).equals(shared["personal"])


def test_lambda_1_leaves_a_model_as_it_is_counters_too():
    layout = Layout.build([("w", (1,), "trainable", "body"), ("n", (), "counter", "norm")])
    own, mean = (Weights(layout, torch.tensor(v)) for v in ([1.0, 3.0], [5.0, 9.0]))
    assert softpull(1.0, own, mean).equals(own)
    assert softpull(0.5, own, mean)["n"] == 9


@pytest.mark.parametrize(
    ("sites", "lambda_"), [("abc", 0.3333), ("abcdef", 0.1667), ("abc", 1 / 3)]
)
def test_a_third_as_one_writes_it_is_the_plain_mean(sites, lambda_):
    linear, shared = federation(lambda_, sites=sites)
    shared = linear.round(shared)
    found = pulled(linear, shared, "a", 2).flat
    torch.testing.assert_close(found, shared["personal"].flat, rtol=0, atol=1e-4)


def test_the_bound_that_a_message_prints_is_not_refused():
    with pytest.raises(ConfigError, match=r"defined on \[0.3333, 1\]"):
        federation(0.33, sites="abc")
    federation(0.3333, sites="abc")


# --- momentum -----------------------------------------------------------------------------------


def test_momentum_carries_all_specialists_on_as_far_as_their_mean_went():
    linear, shared = federation(0.7, sites="abc", server={"momentum": 0.8})
    start = shared["personal"].flat.double()
    after = linear.round(shared)
    own = {s: linear.states[s].private["personal"].flat.double() for s in "abc"}
    mean = sum(own.values()) / 3
    found = pulled(linear, after, "a", 2).flat.double()
    expected = 0.7 * own["a"] + 0.3 * (own["b"] + own["c"]) / 2 + 0.8 * (mean - start)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    apart = pulled(linear, after, "b", 2).flat.double() - found
    share = lambda_prime(0.7, 3)
    torch.testing.assert_close(apart, share * (own["b"] - own["a"]), rtol=1e-4, atol=1e-6)


def test_momentum_is_the_recursion_that_was_measured():
    """v <- beta v + (mean - base), base = mean + beta v of then: v is the way of the mean."""
    beta = 0.8
    linear, shared = federation(0.7, sites="abc", server={"momentum": beta})
    base, v = shared["personal"].flat.double(), 0.0
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        mean = shared["personal"].flat.double()
        v = beta * v + (mean - base)
        base = mean + beta * v
        torch.testing.assert_close(shared[VELOCITY].flat.double(), v, rtol=1e-3, atol=1e-6)


def test_a_site_of_lambda_1_takes_no_momentum_of_the_others_either():
    linear, shared = federation({"a": 0.7, "b": 1.0}, server={"momentum": 0.8})
    shared = linear.round(shared)
    own = linear.states["b"].private["personal"].clone()
    assert shared[VELOCITY].norm() > 0
    assert pulled(linear, shared, "b", 2).equals(own)


def test_without_momentum_nothing_more_travels():
    linear, _ = federation(0.7, sites="abc")
    assert set(linear.method.start()) == {"personal", "global"}
    moved, _ = federation(0.7, sites="abc", server={"momentum": 0.5})
    uploads = moved.method.uploads(Shared(moved.method.start()))
    assert set(uploads) == {"personal", "global"}
