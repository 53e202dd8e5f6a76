"""The rule by hand is in test_fedbn.py, beside FedBN's."""

from methods import layered

from konsil import testing as toy

BATCH_NORM = {"name": "small", "norm": "batch"}


def test_without_running_statistics_it_is_fedavg(make_plan, tmp_path):
    plan = make_plan(methods=["fedavg", "silobn"], network={"name": "small", "norm": "group"})
    layered.same_as_fedavg(plan, tmp_path, "silobn")


def test_it_is_fedavg_whose_sites_run_with_their_own_statistics(make_plan, tmp_path):
    """`training.running_statistics: local` gives every method what SiloBN is for FedAvg."""
    local = make_plan(network=BATCH_NORM, training={"batch_size": 3, "running_statistics": "local"})
    usual = toy.train(local, tmp_path / "fedavg").shared["global"]
    plan = make_plan(methods=["silobn"], network=BATCH_NORM)
    shared = toy.train(plan, tmp_path / "silobn").shared["global"]
    assert shared.equals(usual.only({e.name for e in shared.layout.entries}))
    assert {e.kind for e in shared.layout.entries} == {"trainable"}
    assert shared.layout.trainable == usual.layout.trainable
    for site in plan.sites:
        statistics = toy.state_of(local, tmp_path / "fedavg", site).private["global.statistics"]
        answer = toy.state_of(plan, tmp_path / "silobn", site).last["personal"]
        assert answer.equals(usual.with_statistics_of(statistics))
