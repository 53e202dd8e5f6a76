import pytest
import torch

from konsil.data import Images
from konsil.evaluation.routing import GAMMAS, choose_gamma, gamma_sums, routed_columns
from konsil.networks import NetworkSpec, build_network
from konsil.supermodel import GLOBAL, SELECTOR, Facts, SuperModel
from konsil.tasks.segmentation import Segmentation
from konsil.weights import Weights

SITES = ["north", "south"]
TASK = Segmentation(["disc"])


# choose_gamma, by hand


def test_the_best_mean_over_all_images_is_chosen():
    sums = {"a": [1.0, 3.0, 2.0], "b": [1.0, 1.0, 1.0]}
    assert choose_gamma((0.0, 0.5, 1.0), sums, {"a": 4, "b": 4}) == 0.5


def test_of_equals_the_largest_gamma_is_chosen():
    sums = {"a": [2.0, 3.0, 3.0, 1.0], "b": [1.0, 1.0, 1.0, 1.0]}
    assert choose_gamma((0.0, 0.3, 0.6, 1.0), sums, {"a": 4, "b": 4}) == 0.6
    assert choose_gamma((0.0, 0.5, 1.0), {"a": [2.0] * 3}, {"a": 4}) == 1.0


def test_no_gamma_may_lower_the_mean_of_sites():
    """All images: 50 / 110 at gamma 0, 46 / 110 at 1. Mean of sites: (.48 + .2)/2 = .34 against
    (.4 + .6)/2 = .5: the large hospital would gain what the small one loses."""
    sums = {"large": [48.0, 40.0], "small": [2.0, 6.0]}
    assert choose_gamma((0.0, 1.0), sums, {"large": 100, "small": 10}) == 1.0
    # 0.5 is better in both means, though not the best over all images
    sums = {"large": [48.0, 42.0, 40.0], "small": [2.0, 6.0, 6.0]}
    assert choose_gamma((0.0, 0.5, 1.0), sums, {"large": 100, "small": 10}) == 0.5


def test_gamma_1_is_always_admissible():
    sums = {"a": [1.0, 2.0], "b": [0.5, 3.0]}
    assert choose_gamma((0.0, 1.0), sums, {"a": 4, "b": 4}) == 1.0


def test_the_grid_has_both_ends():
    assert GAMMAS[0] == 0.0
    assert GAMMAS[-1] == 1.0
    assert list(GAMMAS) == sorted(set(GAMMAS))


# With a real super model, against brute force


@pytest.fixture(scope="module")
def model() -> SuperModel:
    network = NetworkSpec("unet", 1, 1, 32, width=2)
    selecting = NetworkSpec("small", 1, 2, 32)
    torch.manual_seed(0)
    models = {name: Weights.of(build_network(network)) for name in (GLOBAL, *SITES)}
    selector = Weights.of(build_network(selecting))
    selector["net.head.weight"].mul_(60)
    facts = Facts("segmentation", ["disc"], SITES, network.to_json(), selecting.to_json(), 0.5)
    draft = SuperModel(facts, models | {SELECTOR: selector})
    x, _ = images().batch(torch.arange(len(images())))
    logits = draft._selector.net(x)
    apart = (logits[:, 1] - logits[:, 0]).detach().sort().values
    selector["net.head.bias"][1] -= apart[9:11].mean()  # half-way between two: no image is a tie
    return SuperModel(facts, models | {SELECTOR: selector})


def images() -> Images:
    noise = torch.Generator().manual_seed(3)
    bright = torch.randint(20, 235, (20, 1, 1, 1), generator=noise)
    pixels = bright + torch.randint(-20, 20, (20, 1, 32, 32), generator=noise)
    masks = torch.randint(0, 2, (20, 1, 32, 32), generator=noise)
    return Images(pixels.to(torch.uint8), masks.to(torch.uint8))


def test_sums_for_every_gamma_equal_brute_force(model: SuperModel):
    sums = gamma_sums(model, images(), TASK, GAMMAS)
    for gamma, found in zip(GAMMAS, sums, strict=True):
        columns = routed_columns(model.with_gamma(gamma), images(), TASK, "north")
        assert found == pytest.approx(columns["dice"].sum(), abs=1e-3)
    assert len({round(s, 6) for s in sums}) > 3  # gamma matters here


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
