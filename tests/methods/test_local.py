from dataclasses import replace

import numpy as np

from konsil import testing as toy
from konsil.data import training_data
from konsil.federation.engines import InProcessEngine
from konsil.federation.messages import Request, RoundRequest
from konsil.federation.plan import POOLED_SITE

A = toy.points([[0, 255]], [1])
B = toy.points([[255, 0]], [0])


def test_each_site_by_hand_and_nothing_travels():
    linear = toy.Linear("local", {"a": A, "b": B})
    for state in linear.states.values():
        state.private["local"] = linear.weights(1.0, -1.0, 0.5)
    uploads = linear.uploads({})
    assert [u.parts for u in uploads.values()] == [{}, {}]
    mine = {name: state.private["local"].flat.numpy() for name, state in linear.states.items()}
    np.testing.assert_allclose(mine["a"], [1.0, -0.7, 0.8], atol=1e-6)  # gradient -3 (0, 1, 1)
    np.testing.assert_allclose(mine["b"], [0.7, -1.0, 0.2], atol=1e-6)  # gradient 3 (1, 0, 1)


def test_federation_of_one_site_is_local_training(make_plan, shades, tmp_path):
    """K = 1: FedAvg, FedSM's two models and local training are the same model, bit for bit."""
    federation = {"folder": str(shades), "image_size": 32, "sites": ["north"]}
    plan = make_plan(federation=federation, methods=["local", "fedavg", "fedsm"])
    records = {m: toy.train(plan, tmp_path, m) for m in ("local", "fedavg", "fedsm")}
    local = toy.state_of(plan, tmp_path, "north", "local").last["local"]
    assert local.equals(records["fedavg"].shared["global"])
    assert local.equals(records["fedsm"].shared["global"])
    assert local.equals(toy.state_of(plan, tmp_path, "north", "fedsm").last["personal"])


def test_centralized_on_one_site_is_local_training(make_plan, shades, tmp_path):
    """The pooled site has random streams of its own; under one name the bits are the same."""
    federation = {"folder": str(shades), "image_size": 32, "sites": ["north"]}
    plan = make_plan(federation=federation, methods=["local", "centralized"])
    counts = {POOLED_SITE: plan.counts["north"]}
    pooled = replace(plan, sites=(POOLED_SITE,), counts=counts)
    engine = InProcessEngine(pooled, tmp_path)
    engine.worker.training_data = lambda site: training_data(plan.data_folder, ["north"])
    central = toy.train(pooled, tmp_path, "centralized", engine)
    toy.train(pooled, tmp_path, "local", engine)
    local = toy.state_of(pooled, tmp_path, POOLED_SITE, "local").last["local"]
    assert local.equals(central.shared["centralized"])


def test_an_absent_site_stands_still(make_plan, tmp_path):
    plan = make_plan(methods=["local"], server={"absences": {"north": [2]}})
    server = toy.server(plan, tmp_path)
    server._round(1)
    before = toy.state_of(plan, tmp_path, "north").private["local"]
    server._round(2)
    after = toy.state_of(plan, tmp_path, "north")
    assert after.round == 1
    assert after.private["local"].equals(before)
    body = RoundRequest(validation=False, after=1)
    late = Request("round", "local/seed0", "north", 3, plan.hash, body)
    assert server.engine.worker.handle(late).round == 3  # and it can go on afterwards
