import numpy as np

from konsil import testing as toy
from konsil.data import training_data
from konsil.federation.plan import POOLED_SITE
from konsil.federation.state import SiteState
from konsil.ingredients.method import METHODS
from konsil.ingredients.site import Networks, Site


def test_three_numbers_by_hand():
    linear = toy.Linear("centralized", {"all": toy.points([[0, 255], [255, 0]], [1, 0])})
    shared = linear.round({"centralized": linear.weights(1.0, -1.0, 0.5)})
    # errors -1.5 and 1.5: gradient (1.5, -1.5, 0)
    expected = np.array([1 - 0.15, -1 + 0.15, 0.5])
    np.testing.assert_allclose(shared["centralized"].flat.numpy(), expected, atol=1e-6)


def test_it_trains_on_the_images_of_all_sites(make_plan, tmp_path):
    plan = make_plan(methods=["centralized"])
    method = plan.method(plan.jobs[0])
    assert method.context.sites == (POOLED_SITE,)
    data = training_data(plan.data_folder, plan.members(POOLED_SITE))
    networks = Networks(method.context, method.networks(), plan.experiment.compute)
    site = Site(POOLED_SITE, 1, networks, data, SiteState(), method.start())
    assert site.images == sum(plan.images(s, "train") for s in plan.sites)
    assert sum(len(x) for x, _ in site.batches()) == site.images


def test_the_pooled_run_is_the_same_method_by_hand(make_plan, tmp_path):
    """Two rounds through server and host equal two calls of `local` on the pooled images."""
    plan = make_plan(methods=["centralized"])
    record = toy.train(plan, tmp_path)
    method = plan.method(plan.jobs[0])
    networks = Networks(method.context, method.networks(), plan.experiment.compute)
    data, state = training_data(plan.data_folder, plan.sites), SiteState()
    shared = method.start()
    for number in (1, 2):
        site = Site(POOLED_SITE, number, networks, data, state, shared)
        upload = method.local(site, shared)
        site.finish_learners(upload)
        shared = dict(upload.parts)
    assert record.shared["centralized"].equals(shared["centralized"])


def test_only_the_yardstick_pools_images():
    assert [name for name, cls in METHODS.all().items() if cls.pooled] == ["centralized"]
