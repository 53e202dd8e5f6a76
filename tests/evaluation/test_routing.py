import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from konsil.data import Images
from konsil.evaluation.routing import (
    GAMMAS,
    SHARES,
    TEMPERATURES,
    calibration,
    calibration_errors,
    choose_calibration,
    choose_rule,
    described,
    expected_calibration_error,
    routed_columns,
    rule_scores,
    rules_of,
    table_of,
)
from konsil.networks import NetworkSpec, build_network
from konsil.networks.outputs import to_logits
from konsil.supermodel import GLOBAL, NOVELTY, SELECTOR, Facts, SuperModel
from konsil.supermodel.novelty import LIMITS, novelty_of
from konsil.supermodel.rules import Blend, Fixed, Threshold, Utility, to_json
from konsil.tasks.segmentation import Segmentation
from konsil.weights import Weights, mix

SITES = ["north", "south"]
TASK = Segmentation(["disc"])


# Which rule, by hand

A, B, C = Fixed(0), Threshold(0.5), Blend(0.5)


def test_the_best_mean_over_all_images_is_chosen():
    sums = {"a": [1.0, 3.0, 2.0], "b": [1.0, 1.0, 1.0]}
    assert choose_rule([A, B, C], sums, {"a": 4, "b": 4}) == B


def test_of_equals_the_first_is_chosen():
    sums = {"a": [2.0, 3.0, 3.0], "b": [1.0, 1.0, 1.0]}
    assert choose_rule([A, C, B], sums, {"a": 4, "b": 4}) == C
    assert choose_rule([A, B, C], {"a": [2.0] * 3}, {"a": 4}) == A


def test_no_rule_may_lower_the_mean_of_sites():
    """All images: 50 / 110 with B, 46 / 110 with A. Mean of sites: (.48 + .2)/2 = .34 against
    (.4 + .6)/2 = .5: the large hospital would gain what the small one loses."""
    sums = {"large": [40.0, 48.0], "small": [6.0, 2.0]}
    assert choose_rule([A, B], sums, {"large": 100, "small": 10}) == A
    # C is better in both means, though not the best over all images
    sums = {"large": [40.0, 48.0, 42.0], "small": [6.0, 2.0, 6.0]}
    assert choose_rule([A, B, C], sums, {"large": 100, "small": 10}) == C


def test_the_global_model_is_always_admissible():
    sums = {"a": [2.0, 1.0], "b": [3.0, 0.5]}
    assert choose_rule([A, B], sums, {"a": 4, "b": 4}) == A


TABLE = [[0.5, 0.8, 0.2, 0.6, 0.3], [0.5, 0.1, 0.6, 0.4, 0.7]]


def test_what_there_is_to_choose_from():
    gammas = [Threshold(gamma) for gamma in sorted(GAMMAS, reverse=True)]
    assert rules_of("threshold", []) == [Fixed(0), *gammas]  # of equals the larger gamma
    alone = Utility([row[:3] for row in TABLE])
    assert rules_of("utility", TABLE) == [Fixed(0), alone, Utility(TABLE)]
    blends = rules_of("blend", TABLE)
    assert {(r.share, r.top) for r in blends[1:]} == {(s, t) for s in SHARES for t in (1, 2)}
    everything = rules_of("auto", TABLE)
    for routing in ("threshold", "utility", "blend"):
        assert all(rule in everything for rule in rules_of(routing, TABLE))
    assert [rule.passes for rule in everything[:26]] == [1] * 26


def test_the_grid_has_both_ends():
    assert GAMMAS[0] == 0.0
    assert GAMMAS[-1] == 1.0
    assert list(GAMMAS) == sorted(set(GAMMAS))
    assert 1.0 in TEMPERATURES


# How far the selector can be trusted, by hand


def surprises(**places: dict[tuple[int, float], float]) -> dict[str, list[float]]:
    """Every layer and temperature surprises by 9, but for these."""
    found = {}
    for site, values in places.items():
        sums = np.full((2, len(TEMPERATURES)), 9.0)
        for (head, temperature), value in values.items():
            sums[head, TEMPERATURES.index(temperature)] = value
        found[site] = sums.flatten().tolist()
    return found


def test_the_least_surprising_layer_and_temperature_are_chosen():
    said = surprises(a={(0, 1.0): 8.0, (1, 4.0): 2.0}, b={(0, 1.0): 7.0, (1, 4.0): 8.0})
    assert choose_calibration(said, {"a": 10, "b": 10}) == (1, 4.0)


def test_every_site_counts_alike_in_the_temperature():
    """-log p is .5 and 1 a large site's image, 3 and 1 a small one's: 1.75 and 1 in the mean."""
    said = surprises(large={(0, 1.0): 50.0, (0, 2.0): 100.0}, small={(0, 1.0): 3.0, (0, 2.0): 1.0})
    said["large"] = [200.0 if v == 9.0 else v for v in said["large"]]
    assert choose_calibration(said, {"large": 100, "small": 1}) == (0, 2.0)


def test_a_table_has_a_row_a_site():
    table = table_of({"a": [2.0, 3.0], "b": [1.0, 0.5]}, {"a": 4, "b": 2})
    assert table == [[0.5, 0.75], [0.5, 0.25]]
    assert table_of({"a": [4.0 + 1e-9, -1e-9]}, {"a": 4}) == [[1.0, 0.0]]  # rounding


def test_calibration_errors_by_hand():
    """Two bins: too sure by .8 over two images, not sure enough by 1.6 over two others."""
    confidence, right = np.array([0.95, 0.91, 0.2, 0.2]), np.array([0.0, 1.0, 1.0, 1.0])
    expected = (abs(1.86 - 1) + abs(0.4 - 2)) / 4
    assert expected_calibration_error(confidence, right) == pytest.approx(expected)
    assert expected_calibration_error(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0
    assert expected_calibration_error(np.array([1.0, 1.0]), np.array([0.0, 0.0])) == 1


# With a real super model, against brute force


@pytest.fixture(scope="module")
def model() -> SuperModel:
    network = NetworkSpec("unet", 1, 1, 32, width=2)
    selecting = NetworkSpec("small", 1, 2, 32)
    torch.manual_seed(0)
    models = {name: Weights.of(build_network(network)) for name in (GLOBAL, *SITES)}
    selector = Weights.of(build_network(selecting))
    selector["net.head.weight"].mul_(60)
    rule = to_json(Threshold(0.5))
    facts = Facts("segmentation", ["disc"], SITES, network.to_json(), selecting.to_json(), rule)
    draft = SuperModel(facts, models | {SELECTOR: selector})
    x, _ = images().batch(torch.arange(len(images())))
    logits, _ = draft.selector(x)
    apart = (logits[:, 1] - logits[:, 0]).detach().sort().values
    selector["net.head.bias"][1] -= apart[9:11].mean()  # half-way between two: no image is a tie
    return SuperModel(facts, models | {SELECTOR: selector})


def images() -> Images:
    noise = torch.Generator().manual_seed(3)
    bright = torch.randint(20, 235, (20, 1, 1, 1), generator=noise)
    pixels = bright + torch.randint(-20, 20, (20, 1, 32, 32), generator=noise)
    masks = torch.randint(0, 2, (20, 1, 32, 32), generator=noise)
    return Images(pixels.to(torch.uint8), masks.to(torch.uint8))


def test_sums_for_every_rule_equal_brute_force(model: SuperModel):
    rules = rules_of("auto", TABLE)
    warm = model.changed(temperature=2.0)
    sums = rule_scores(warm, rules, images(), TASK)
    for rule, found in zip(rules, sums, strict=True):
        columns = routed_columns(warm.with_rule(rule), images(), TASK, "north")
        assert found == pytest.approx(columns["dice"].sum(), abs=1e-3)
    assert len({round(s, 6) for s in sums}) > 6  # rules matter here


def test_a_row_of_the_table_equals_brute_force(model: SuperModel):
    found = calibration(model, [], images(), TASK, 0)
    x, y = images().batch(torch.arange(20))
    general, north, south = (model.logits_of(name, x) for name in (GLOBAL, *SITES))
    together = [
        to_logits("masks", (general.sigmoid() + own.sigmoid()) / 2) for own in (north, south)
    ]
    answers = (general, north, south, *together)
    expected = [float(TASK.columns(answer, y)["dice"].sum()) for answer in answers]
    assert found.scores == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("site", [0, 1])
def test_surprise_is_the_cross_entropy_of_the_own_site(model: SuperModel, site: int):
    x, _ = images().batch(torch.arange(20))
    logits, _ = model.selector(x)
    label = torch.full((20,), site)
    own = calibration(model, [], images(), TASK, site).surprise
    for temperature, found in zip(TEMPERATURES, own, strict=True):
        expected = cross_entropy(logits / temperature, label, reduction="sum")
        assert found == pytest.approx(float(expected), rel=1e-3, abs=1e-3)
    # two layers that compete: the selector's own, and one that says the opposite
    head = model.models[SELECTOR]["net.head.weight"], model.models[SELECTOR]["net.head.bias"]
    opposite = tuple(-part for part in head)
    both = calibration(model, [head, opposite], images(), TASK, site).surprise
    assert both[: len(own)] == pytest.approx(own, rel=1e-3, abs=1e-3)
    expected = cross_entropy(-logits, label, reduction="sum")
    assert both[len(own) + TEMPERATURES.index(1.0)] == pytest.approx(float(expected), rel=1e-3)


def test_what_is_foreign_is_counted_and_goes_to_the_global_model(model: SuperModel):
    """Known are the first ten images, each site's five; all others are made much brighter."""
    known = [described(model.selector, some, place, SITES) for place, some in enumerate(halves())]
    means = mix([(0.5, part) for part in known])
    judging = SuperModel(model.facts, {**model.models, NOVELTY: novelty_of(means)})
    x, _ = images().batch(torch.arange(20))
    novel = judging.route(x).novelty
    above = calibration(judging, [], images(), TASK, 0).above
    assert above == [int((novel > limit).sum()) for limit in LIMITS]
    limit = float(novel.sort().values[14:16].mean())
    route = judging.changed(limit=limit).with_gamma(0.0).route(x)
    assert route.unfamiliar.tolist() == (novel > limit).tolist()
    assert route.unfamiliar.sum() == 5
    assert route.specialist.tolist() == (~route.unfamiliar).tolist()
    asked = judging.asked(route)
    assert [asked[k] for k in route.unfamiliar.nonzero().flatten()] == [GLOBAL] * 5
    columns = routed_columns(judging.changed(limit=limit), images(), TASK, "north")
    assert columns["unfamiliar"].sum() == 5


def halves() -> list[Images]:
    whole = images()
    return [Images(whole.images[part], whole.targets[part]) for part in (slice(0, 5), slice(5, 10))]


def test_without_a_judge_nothing_is_foreign(model: SuperModel):
    route = model.route(images().batch(torch.arange(20))[0])
    assert route.novelty.isnan().all()
    assert not route.unfamiliar.any()
    assert calibration(model, [], images(), TASK, 0).above == [0] * len(LIMITS)


def test_confidence_is_told_with_and_without_temperature(model: SuperModel):
    x, _ = images().batch(torch.arange(20))
    columns = routed_columns(model.changed(temperature=3.0), images(), TASK, "north")
    for name, temperature in (("selector_confidence", 3.0), ("selector_confidence_raw", 1.0)):
        expected = model.changed(temperature=temperature).route(x).confidence
        assert columns[name] == pytest.approx(expected.numpy(), abs=1e-4)
    errors = calibration_errors(columns)
    right = columns["selector_accuracy"]
    for error, name in (("selector_error", "selector_confidence"),):
        assert errors[error] == expected_calibration_error(columns[name], right)
    assert calibration_errors({"dice": right}) == {}


def test_routed_columns_say_whom_the_selector_asked(model: SuperModel):
    x, y = images().batch(torch.arange(20))
    route = model.route(x)
    assert 0 < route.site.sum() < 20
    north, south, guest = (
        routed_columns(model, images(), TASK, site) for site in ("north", "south", "elsewhere")
    )
    assert north["selector_accuracy"].tolist() == (route.site == 0).double().tolist()
    assert south["selector_accuracy"].tolist() == (route.site == 1).double().tolist()
    assert guest["selector_accuracy"].sum() == 0
    assert north["asked_specialist"].tolist() == route.specialist.double().tolist()
    dice = TASK.columns(model.answer(x).logits, y)["dice"]
    assert north["dice"] == pytest.approx(dice.numpy(), abs=1e-4)
