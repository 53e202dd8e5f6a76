"""Soups inside the super model: by hand, and what they leave alone."""

import numpy as np
import pytest
import torch
from torch import nn

from konsil import testing as toy
from konsil.ingredients.softpull import softpull
from konsil.weights import Layout, Weights

A = toy.points([[0, 255], [255, 51]], [1, 0])
B = toy.points([[255, 0], [255, 255], [0, 0]], [1, 0, 1])


def federation(rounds=4, **options) -> tuple[toy.Linear, dict[str, Weights]]:
    options = {"lambda": 0.7, **options}
    linear = toy.Linear("fedsm-soup", {"a": A, "b": B}, rounds=rounds, **options)
    model = linear.weights(1.0, -1.0, 0.5)
    selector = Weights.zeros(Layout.of(linear.selector()))
    return linear, {"global": model, "personal": model, "selector": selector}


@pytest.mark.parametrize(
    ("rounds", "share", "first"), [(4, 0.25, 4), (8, 0.25, 7), (40, 0.25, 31), (4, 1.0, 1)]
)
def test_the_last_rounds_enter(rounds, share, first):
    linear, shared = federation(rounds, soup_share=share, soup="all")
    for number in range(1, rounds + 1):
        shared = linear.round(shared, number)
        assert ("server.global.soup" in shared) == (number >= first)
        entered = linear.states["a"].notes.get("soup_size", 0)
        assert entered == max(0, number - first)  # a round later: after its means came


def test_soups_of_all_by_hand():
    """The global model at the end and a site's soup are means of what came before."""
    linear, shared = federation(soup_share=0.5, soup="all")
    models, specialists = [], {"a": [], "b": []}
    for number in range(1, 5):
        shared = linear.round(shared, number)
        uploads = shared["server.global.soup"] if number == 4 else shared["global"]
        models.append(uploads.flat.double().numpy())
        for name in "ab":
            own, mean = linear.states[name].private["personal"], shared["personal"]
            if number >= 3:
                specialists[name].append(softpull(0.4, own, mean).flat.double().numpy())
    for name in "ab":
        site = linear.site(name, 5, shared)
        linear.method.receive(site, shared)
        soup = site.private["soup"].flat.numpy()
        assert site.notes["soup_size"] == 2
        np.testing.assert_allclose(soup, np.mean(specialists[name], axis=0), atol=1e-6)
        assert linear.method.answers(site, shared)["personal"] is site.private["soup"]
    assert shared["global"].equals(shared["server.global.soup"])


def test_the_global_soup_is_the_mean_of_fedavgs_last_models(make_plan, tmp_path):
    plan = make_plan(methods=[{"name": "fedsm-soup", "soup_share": 0.5}, "fedavg"], rounds=4)
    souped, plain = (toy.server(plan, tmp_path, t) for t in ("fedsm-soup", "fedavg"))
    models = []
    for number in range(1, 5):
        souped._round(number)
        plain._round(number)
        models.append(plain.record.shared["global"])
    expected = (models[2].flat.double() + models[3].flat.double()) / 2
    torch.testing.assert_close(souped.record.shared["global"].flat.double(), expected)
    swa = make_plan(methods=[{"name": "fedavg-swa", "share": 0.5}], rounds=4)
    control = toy.train(swa, tmp_path / "swa")
    assert control.shared["global"].equals(souped.record.shared["global"])


@pytest.mark.parametrize("off", [{"soup_share": 0.0}, {"soup": "none"}])
def test_without_a_soup_it_is_fedsm(make_plan, tmp_path, off):
    plan = make_plan(methods=[{"name": "fedsm-soup", **off}, "fedsm"], rounds=4)
    mine, theirs = (toy.train(plan, tmp_path, t) for t in ("fedsm-soup", "fedsm"))
    assert toy.same_record(mine, theirs)
    for site in plan.sites:
        states = [toy.state_of(plan, tmp_path, site, t) for t in ("fedsm-soup", "fedsm")]
        assert toy.same_parts(states[0].last, states[1].last)


def test_training_does_not_notice_the_soup(make_plan, tmp_path):
    """Specialists go on from the plain models: what is uploaded is FedSM's."""
    plan = make_plan(methods=[{"name": "fedsm-soup", "soup_share": 1.0}, "fedsm"], rounds=4)
    mine, theirs = (toy.train(plan, tmp_path, t) for t in ("fedsm-soup", "fedsm"))
    assert mine.shared["personal"].equals(theirs.shared["personal"])


def test_a_soup_and_a_fixed_pull_commute():
    """D5: with one lambda', the soup of pulled specialists is the pulled soup."""
    rng = torch.Generator().manual_seed(0)
    layout = Layout.build([("w", (5,), "trainable", "body")])
    own = [Weights(layout, torch.randn(5, generator=rng)) for _ in range(3)]
    mean = [Weights(layout, torch.randn(5, generator=rng)) for _ in range(3)]

    def average(models):
        return Weights(layout, torch.stack([m.flat for m in models]).mean(0))

    pulled = [softpull(0.4, o, m) for o, m in zip(own, mean, strict=True)]
    torch.testing.assert_close(
        average(pulled).flat, softpull(0.4, average(own), average(mean)).flat
    )


@pytest.mark.parametrize("entry", ["greedy", "all"])
def test_validation_images_turn_an_ingredient_down_unless_all_enter(entry):
    linear, shared = federation(soup_share=1.0, soup=entry)
    site = linear.site("a", 2, shared)
    good, bad = linear.weights(0.5, 0.5, 0.2), linear.weights(50.0, 50.0, 50.0)
    linear.method.composition[-1].stir(site, good)
    linear.method.composition[-1].stir(site, bad)
    assert site.notes["soup_size"] == (1 if entry == "greedy" else 2)
    soup = good if entry == "greedy" else linear.weights(25.25, 25.25, 25.1)
    np.testing.assert_allclose(site.private["soup"].flat, soup.flat, rtol=1e-6)


def test_a_soup_runs_with_statistics_of_the_sites_own_images():
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    linear = toy.Linear("fedsm-soup", {"a": A, "b": B}, model=normed, **{"lambda": 0.7})
    model = Weights.of(normed())
    model["0.running_mean"].fill_(9.0)
    site = linear.site("a", 4, {})
    linear.method.composition[-1].stir(site, model)
    means = site.private["soup"]["0.running_mean"]
    np.testing.assert_allclose(means, [0.5, 0.6], atol=1e-6)  # of (0, 1) and (1, 0.2)
