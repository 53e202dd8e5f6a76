"""Table 6 of FedSM: any personaliser in SoftPull's place; the global model does not notice."""

import pytest

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.ingredients.method import METHODS, Method
from konsil.weights import Weights

NAMES = sorted(n for n, cls in METHODS.all().items() if cls.personal is not Method.personal)


def test_table_6_is_complete():
    assert {"ft", "apfl", "perfedavg", "pfedme", "ditto"} <= set(NAMES)


TRAINED = {"name": "fedsm", "selector_optimizer": "average_moments"}


@pytest.fixture(scope="module")
def softpull(shades, classes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("softpull")
    return toy.train(toy.plan_of(shades, **(classes | {"methods": [TRAINED]})), folder)


@pytest.mark.parametrize("name", NAMES)
def test_the_global_model_and_the_selector_do_not_notice(make_plan, softpull, tmp_path, name):
    plan = make_plan(methods=[TRAINED | {"personaliser": name}])
    toy.whole_run(plan, tmp_path)
    checkpoint = tmp_path / plan.jobs[0].name / "checkpoints" / "last"
    for part in ("global", "selector"):
        saved = Weights.load(checkpoint / f"{part}.safetensors")
        assert saved.equals(softpull.shared[part])
    assert (tmp_path / plan.jobs[0].name / "supermodel" / "model.json").exists()


@pytest.mark.parametrize("name", ["ft", "apfl", "ditto"])
def test_beside_fedavg_and_inside_fedsm_they_are_the_same(make_plan, tmp_path, name):
    plan = make_plan(methods=[name, {"name": "fedsm", "personaliser": name}])
    for title in (name, "fedsm"):
        toy.train(plan, tmp_path, title)
    for site in plan.sites:
        alone, inside = (
            toy.state_of(plan, tmp_path, site, t).last["personal"] for t in (name, "fedsm")
        )
        assert alone.equals(inside)


@pytest.mark.parametrize("name", ["perfedavg", "pfedme"])
def test_those_with_a_shared_model_of_their_own_bring_it_along(make_plan, tmp_path, name):
    """Inside FedSM it is called personal, and is the global model of the method alone."""
    plan = make_plan(methods=[name, {"name": "fedsm", "personaliser": name}])
    alone, inside = (toy.train(plan, tmp_path, title) for title in (name, "fedsm"))
    assert inside.shared["personal"].equals(alone.shared["global"])
    for site in plan.sites:
        alone_, inside_ = (
            toy.state_of(plan, tmp_path, site, t).last["personal"] for t in (name, "fedsm")
        )
        assert alone_.equals(inside_)


def test_settings_go_to_the_personaliser(make_plan, tmp_path):
    """Ditto with lambda = 0 is local training, also inside FedSM."""
    block = {"name": "ditto", "lambda": 0.0}
    plan = make_plan(methods=["local", {"name": "fedsm", "personaliser": block}])
    for title in ("local", "fedsm"):
        toy.train(plan, tmp_path, title)
    for site in plan.sites:
        local = toy.state_of(plan, tmp_path, site, "local").last["local"]
        assert local.equals(toy.state_of(plan, tmp_path, site, "fedsm").last["personal"])


def test_softpulls_lambda_is_not_another_ones(make_plan):
    plan = make_plan(methods=[{"name": "fedsm", "personaliser": "ditto", "lambda": 0.9}])
    assert any("lambda is SoftPull's" in w for w in plan.method(plan.jobs[0]).warnings())
    with pytest.raises(ConfigError, match="beside personaliser"):
        make_plan(methods=[{"name": "fedsm", "personaliser": {"name": "softpull", "lambda": 1}}])


def test_unknown_ones_and_their_unknown_settings_are_named(make_plan):
    with pytest.raises(ConfigError, match=r"personaliser.*nobody.*one of .*apfl"):
        make_plan(methods=[{"name": "fedsm", "personaliser": "nobody"}])
    block = {"name": "ditto", "lamda": 1}
    with pytest.raises(ConfigError, match=r"(?s)methods\.fedsm\.personaliser.*lamda.*lambda"):
        make_plan(methods=[{"name": "fedsm", "personaliser": block}])
