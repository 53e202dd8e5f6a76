"""Whom a super model asks, as a picture."""

import numpy as np
import pytest
import torch

from konsil.data import test_images as images_of_test
from konsil.report.routes import RoutedImage, Routes, draw_routes, fallen_back, routes_of
from konsil.supermodel import SuperModel
from konsil.supermodel.rules import Blend, Fixed, Threshold


def image(site: str = "north", **facts) -> RoutedImage:
    usual = {"specialists": 0.0, "confidence": 0.5, "likely": "south", "unfamiliar": False}
    return RoutedImage(site, np.zeros((8, 8), np.uint8), **(usual | facts))


def test_what_falls_back_is_what_no_specialist_answers():
    sure, unsure = image(confidence=0.9), image(confidence=0.4)
    strange = image(confidence=0.99, unfamiliar=True)
    answered = image(specialists=0.5)
    assert fallen_back([sure, answered, unsure, strange]) == [strange, unsure, sure]
    assert strange.why == "like no site"
    assert unsure.why == "south? 40% sure"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Fixed(0), [[1, 0, 0], [1, 0, 0]]),
        (Fixed(2), [[0, 0, 1], [0, 0, 1]]),
        (Blend(0.75, 2), [[0.25, 0.375, 0.375], [0.25, 0.375, 0.375]]),
    ],
)
def test_shares_are_means_over_a_sites_test_images(make_run, rule, expected):
    folder, plan = make_run()
    job = next(job for job in plan.jobs if job.method == "fedsm")
    model = SuperModel.load(folder / job.name / "supermodel")
    model.with_rule(rule).save(folder / job.name / "supermodel")
    routes = routes_of(folder, plan, job)
    # a selector that knows nothing finds both sites equally likely
    assert routes.shares == pytest.approx(np.array(expected, dtype=float), abs=1e-6)
    counts = {site: len(images_of_test(plan.data_folder, site)) for site in plan.sites}
    assert [i.site for i in routes.images] == [s for s, n in counts.items() for _ in range(n)]
    assert all(i.confidence == pytest.approx(0.5) for i in routes.images)
    specialists = 1 - expected[0][0]
    assert all(i.specialists == pytest.approx(specialists) for i in routes.images)


def test_every_image_keeps_its_own_route(make_run):
    """A selector that goes by brightness: each image's confidence is its own."""
    folder, plan = make_run()
    job = next(job for job in plan.jobs if job.method == "fedsm")
    model = SuperModel.load(folder / job.name / "supermodel")
    model.models["selector"]["net.head.weight"][0, 0] = 3.0  # the mean of the first channel
    model.with_rule(Threshold(0.0)).save(folder / job.name / "supermodel")
    routes = routes_of(folder, plan, job)
    for site in plan.sites:
        own = [one for one in routes.images if one.site == site]
        images = images_of_test(plan.data_folder, site)
        x, _ = images.batch(torch.arange(len(images)))
        expected = torch.sigmoid(3.0 * x[:, 0].mean(dim=(1, 2)))
        assert [one.confidence for one in own] == pytest.approx(expected.tolist(), abs=1e-4)
        assert {one.likely for one in own} == {plan.sites[0]}
        assert np.array_equal(own[0].image, images.images[0].permute(1, 2, 0).numpy().squeeze())


@pytest.mark.parametrize("back", [0, 3, 20])
def test_the_picture_says_how_many_fall_back(back):
    answered = [image(specialists=1.0)] * 5
    figure = draw_routes(Routes(np.eye(2, 3), [image()] * back + answered), ("a", "b"), "title")
    below = figure.subfigs[1]
    assert f"answers {back} of {back + 5} test images" in below._suptitle.get_text()
    pictures = sum(bool(axes.images) for axes in below.axes)
    assert pictures == (min(8, back) if back else 5)
