"""A super model is put together from what sites say: against the same by hand, with all images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from konsil.data import training_data
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, read_results
from konsil.evaluation.routing import TEMPERATURES, rules_of
from konsil.federation.assembly import SHRINKAGES, Assembly
from konsil.federation.engines import make_engine
from konsil.federation.messages import Reply, Request
from konsil.federation.plan import Plan
from konsil.networks import NETWORKS
from konsil.supermodel import NOVELTY, SELECTOR, SuperModel
from konsil.supermodel.discriminant import ImageMeans, linear_discriminant, means_layout
from konsil.supermodel.novelty import LIMITS, novelty, novelty_of
from konsil.supermodel.rules import Fixed, Threshold, Utility
from konsil.testing import runs as toy
from konsil.weights import WeightedMean


@pytest.fixture
def usual(classes: dict[str, Any]) -> dict[str, Any]:
    return classes


class Listening:
    """An engine that notes what it carries."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.engine = make_engine(plan, folder)
        self.kinds: list[str] = []

    def exchange(
        self, requests: list[Request], deadline: float | None = None
    ) -> Iterator[Reply | Any]:
        self.kinds = list(dict.fromkeys([*self.kinds, *(request.kind for request in requests)]))
        yield from self.engine.exchange(requests, deadline)

    def close(self) -> None:
        self.engine.close()


def assembled(plan: Plan, folder: Path) -> tuple[SuperModel, list[str]]:
    """The super model of a trained job, and the kinds of questions that it took."""
    record = toy.train(plan, folder)
    engine = Listening(plan, folder)
    model = Assembly(plan, plan.jobs[0], engine).super_model(record, "best")
    engine.close()
    assert model is not None
    return model, engine.kinds


def fedsm(**settings: Any) -> list[dict[str, Any]]:
    return [{"name": "fedsm", **settings}]


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, ["collect", "describe", "calibrate", "compare"]),
        ({"selector_optimizer": "closed_form"}, ["collect", "describe", "calibrate", "compare"]),
        ({"routing": "threshold"}, ["collect", "describe", "calibrate", "compare"]),
        (
            {"routing": "threshold", "selector_optimizer": "average_moments"},
            ["collect", "compare"],
        ),
    ],
)
def test_no_more_is_asked_than_is_needed(make_plan, tmp_path, settings, kinds):
    model, asked = assembled(make_plan(methods=fedsm(**settings)), tmp_path)
    assert asked == kinds
    if settings.get("routing") == "threshold":  # Algorithm 2 to the letter
        assert isinstance(model.rule, Threshold | Fixed)
        assert (model.facts.temperature, model.facts.limit) == (1.0, None)
    else:
        assert model.facts.temperature in TEMPERATURES
        assert model.facts.limit in LIMITS


def pooled_means(model: SuperModel, plan: Plan) -> Any:
    """Of what the selector sees of all training images, in one place."""
    mean = None
    for place, site in enumerate(plan.sites):
        images = training_data(plan.data_folder, (site,)).train
        x, _ = images.batch(torch.arange(len(images)))
        _, features = model.selector(x)
        layout = means_layout(len(plan.sites), features.shape[1])
        seen, mean = ImageMeans(layout), mean or WeightedMean(layout)
        seen.add(features, torch.full((len(x),), place))
        mean.add(seen.result(), weight=len(images))
    return mean.result()


def test_the_selector_is_that_of_pooled_images(make_plan, tmp_path):
    plan = make_plan(methods=fedsm())
    model, _ = assembled(plan, tmp_path)
    means = pooled_means(model, plan)
    x = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    logits, features = model.selector(x)
    spread = []
    for shrinkage in SHRINKAGES:
        solved = linear_discriminant(model.models[SELECTOR], means, shrinkage)
        expected = features @ solved["net.head.weight"].T + solved["net.head.bias"]
        spread.append(float((expected - logits).abs().max() / expected.abs().max()))
    assert min(spread) < 1e-5  # one of them, which validation has chosen
    # of the numbers themselves the signs of eigenvectors are anybody's
    judged = [novelty(n, features.double()) for n in (model.models[NOVELTY], novelty_of(means))]
    assert torch.allclose(*judged, rtol=0.02)


def test_the_table_is_what_the_models_score_at_the_sites(make_plan, tmp_path):
    plan = make_plan(methods=fedsm(routing="utility"))
    model, _ = assembled(plan, tmp_path)
    task = plan.method(plan.jobs[0]).context.task
    if isinstance(model.rule, Fixed):
        pytest.skip("here the global model is the best answer")
    assert isinstance(model.rule, Utility)
    for row, site in zip(model.rule.table, plan.sites, strict=True):
        images = training_data(plan.data_folder, (site,)).val
        x, y = images.batch(torch.arange(len(images)))
        for score, name in zip(row, ("global", *plan.sites), strict=False):
            columns = task.columns(model.logits_of(name, x), y)
            assert score == pytest.approx(float(columns[task.main_metric].mean()), abs=1e-6)


@pytest.mark.parametrize("routing", ["auto", "threshold", "utility", "blend"])
@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_on_validation_it_is_below_the_global_model_in_neither_mean(
    make_plan, tmp_path, routing, checkpoint
):
    plan = make_plan(methods=fedsm(routing=routing), rounds=3)
    toy.whole_run(plan, tmp_path)
    name = "results.csv" if checkpoint == "best" else "results-last.csv"
    rows = read_results(tmp_path / name)
    task = plan.method(plan.jobs[0]).context.task
    for site in (CLIENT_AVERAGE, GLOBAL):
        value = {
            r.role: r.value
            for r in rows
            if (r.split, r.site, r.metric) == ("val", site, task.main_metric)
        }
        assert value["super"] >= value["global"] - 1e-9
    model = SuperModel.load(tmp_path / plan.jobs[0].name / "supermodel")
    if not isinstance(model.rule, Utility):
        table = [[0.0] * 5] * 2
        assert model.rule in rules_of(routing, table)


@pytest.mark.parametrize("optimizer", ["encoder", "closed_form", "average_moments"])
def test_any_selector_can_be_calibrated(make_plan, tmp_path, optimizer):
    plan = make_plan(methods=fedsm(selector_optimizer=optimizer, routing="auto"))
    model, _ = assembled(plan, tmp_path)
    images = training_data(plan.data_folder, ("north",)).val
    x, _ = images.batch(torch.arange(len(images)))
    route = model.route(x)
    assert not route.novelty.isnan().any()
    assert torch.allclose(route.probabilities.sum(dim=1), torch.ones(len(x)))


@pytest.mark.parametrize("network", [{"name": "vgg11_pooled"}, {"name": "small", "norm": "batch"}])
def test_the_encoder_looks_through_any_network(make_plan, tmp_path, network):
    model, _ = assembled(make_plan(methods=fedsm(), network=network, rounds=1), tmp_path)
    assert model.selector(torch.rand(2, 3, 32, 32))[0].shape == (2, 2)


def test_a_restarted_coordinator_puts_the_same_model_together(make_plan, tmp_path):
    plan = make_plan(methods=fedsm(routing="auto"))
    record = toy.train(plan, tmp_path)
    models = []
    for _ in range(2):
        engine = make_engine(plan, tmp_path)
        models.append(Assembly(plan, plan.jobs[0], engine).super_model(record, "last"))
        engine.close()
    first, second = models
    assert first.facts == second.facts
    assert all(first.models[name].equals(second.models[name]) for name in first.models)


@pytest.mark.parametrize("setting", ["selector", "selector_lr", "selector_epochs"])
def test_what_a_solved_selector_does_not_know_is_refused(make_plan, setting):
    value = {"selector": "small", "selector_lr": 0.1, "selector_epochs": 2}[setting]
    with pytest.raises(Exception, match=rf"{setting} = .*is solved after training; leave"):
        make_plan(methods=fedsm(**{setting: value}))


@pytest.mark.parametrize("method", ["fedsm-extra", "fedsm-ensemble"])
def test_a_selector_of_models_cannot_be_an_encoder(make_plan, method):
    with pytest.raises(Exception, match=r"selector_optimizer = encoder: .*names models"):
        make_plan(methods=[{"name": method, "selector_optimizer": "encoder"}])


@pytest.fixture
def _no_network_is_left() -> Iterator[None]:
    yield
    NETWORKS.remove("flat")


@pytest.mark.usefixtures("_no_network_is_left")
def test_a_trained_selector_needs_no_head_of_konsils_names(make_plan, tmp_path):
    """Any network may be the selector: only one that is solved is known from inside."""
    own = tmp_path / "flat.py"
    own.write_text(
        "from torch import nn\n"
        "from konsil.networks import network\n\n\n"
        '@network("flat", segments=False)\n'
        "def flat(in_channels, outputs):\n"
        '    """One linear layer over a thumbnail."""\n'
        "    layers = nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(in_channels * 16, outputs)\n"
        "    return nn.Sequential(*layers)\n"
    )
    trained = fedsm(selector_optimizer="average_moments", selector="flat")
    plan = make_plan(methods=trained, plugins=[str(own)], rounds=1)
    model, asked = assembled(plan, tmp_path / "run")
    assert asked == ["collect", "describe", "calibrate", "compare"]
    assert model.facts.temperature in TEMPERATURES
