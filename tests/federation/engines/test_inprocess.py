from konsil import testing as toy
from konsil.federation.engines import InProcessEngine, make_engine
from konsil.federation.messages import Failure, Reply, Request, RoundRequest


def test_it_answers_in_order_and_turns_errors_into_failures(make_plan, tmp_path):
    plan = make_plan()
    job = plan.jobs[0]
    parts = plan.method(job).initial_parts().sent()
    body = RoundRequest(validation=False, after=0)
    requests = [
        Request("round", job.name, site, 1, plan_hash, body, parts)
        for site, plan_hash in (("south", plan.hash), ("north", "another plan"))
    ]
    south, north = InProcessEngine(plan, tmp_path).exchange(requests)
    assert isinstance(south, Reply)
    assert south.site == "south"
    assert isinstance(north, Failure)
    assert north.site == "north"
    assert "another plan" in north.reason


def test_nothing_is_copied_on_the_way(make_plan, tmp_path):
    """One resident network and no serialisation: what a site kept is what the server gets."""
    plan = make_plan(methods=["fedavg"])
    server = toy.server(plan, tmp_path)
    sent = server.record.shared["global"]
    seen = []
    handle = server.engine.worker.handle
    server.engine.worker.handle = lambda request: seen.append(request.parts) or handle(request)
    server._round(1)
    assert all(parts["global"] is sent for parts in seen)


def test_the_experiment_names_the_engine(make_plan, tmp_path):
    assert isinstance(make_engine(make_plan(), tmp_path), InProcessEngine)
