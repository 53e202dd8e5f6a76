"""A worker answers for its sites: once a round, for its own plan only, from their own folders."""

import shutil
import threading
from dataclasses import replace

import pytest
import torch

from konsil import testing as toy
from konsil.errors import RoundFailed, StateError
from konsil.federation.engines import InProcessEngine
from konsil.federation.messages import (
    CollectRequest,
    EvaluateRequest,
    Request,
    RoundReply,
    RoundRequest,
)
from konsil.federation.site_worker import SiteWorker, site_folder
from konsil.federation.state import StateFiles
from konsil.files import locked
from konsil.ingredients.site import Site


@pytest.fixture
def usual(classes):
    """Where outlines do not matter, what costs less."""
    return classes


def request_for(
    plan, site: str = "north", number: int = 1, kind: str = "round", after: int = 0, body=None
):
    job = plan.jobs[0]
    parts = plan.method(job).initial_parts().sent()
    body = body or RoundRequest(validation=True, after=after)
    return Request(kind, job.name, site, number, plan.hash, body, parts)


@pytest.fixture
def counted(monkeypatch) -> list[tuple[str, int]]:
    """(site, round) of every pass over training batches."""
    passes: list[tuple[str, int]] = []
    usual = Site.batches

    def count(self, *args, **kwargs):
        passes.append((self.name, self.round))
        yield from usual(self, *args, **kwargs)

    monkeypatch.setattr(Site, "batches", count)
    return passes


@pytest.mark.parametrize("method", ["fedavg", "fedsm", "fedsoup", "local"])
def test_asked_again_a_site_gives_the_same_bytes_and_trains_once(
    make_plan, tmp_path, counted, method
):
    plan = make_plan(methods=[method])
    worker, request = SiteWorker(plan, tmp_path), request_for(plan)
    first = worker.handle(request).to_bytes()
    kept = (site_folder(tmp_path / request.job, "north") / "state.safetensors").read_bytes()
    assert worker.handle(request).to_bytes() == first
    assert SiteWorker(plan, tmp_path).handle(request).to_bytes() == first  # another process
    assert (site_folder(tmp_path / request.job, "north") / "state.safetensors").read_bytes() == kept
    assert counted == [("north", 1)]


def test_a_round_in_the_hands_of_another_process_is_waited_for(make_plan, tmp_path, counted):
    """A killed coordinator leaves a worker behind: it must not overwrite newer state later."""
    plan = make_plan()
    request = request_for(plan)
    other = SiteWorker(plan, tmp_path / "orphan").handle(request)
    folder = site_folder(tmp_path / "run" / request.job, "north")
    answers = []
    worker = SiteWorker(plan, tmp_path / "run")
    waiting = threading.Thread(target=lambda: answers.append(worker.handle(request)))
    with locked(folder):
        waiting.start()
        waiting.join(0.3)
        assert not answers
        kept = site_folder(tmp_path / "orphan" / request.job, "north") / "state.safetensors"
        shutil.copy(kept, folder)  # the other one is done
    waiting.join()
    assert answers[0].to_bytes() == other.to_bytes()
    assert counted == [("north", 1)]


def test_a_site_ahead_of_the_request_refuses(make_plan, tmp_path):
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    worker.handle(request_for(plan, number=2))
    with pytest.raises(StateError, match=r"site north: asked for round 1, but .* at round 2"):
        worker.handle(request_for(plan, number=1))


@pytest.mark.parametrize("method", ["fedsm", "fedsoup", "scaffold", "local"])
@pytest.mark.parametrize("missed", [1, 2])
def test_a_round_that_the_server_did_not_count_leaves_no_trace(make_plan, tmp_path, method, missed):
    """Its reply came too late, or was refused: as if the site had been away."""
    plan = make_plan(methods=[method])
    away, late = (SiteWorker(plan, tmp_path / name) for name in ("away", "late"))
    for number in range(1, missed):
        for worker in (away, late):
            worker.handle(request_for(plan, number=number, after=number - 1))
    late.handle(request_for(plan, number=missed, after=missed - 1))
    for number, after in ((missed + 1, missed - 1), (missed + 2, missed + 1)):
        request = request_for(plan, number=number, after=after)
        assert late.handle(request).to_bytes() == away.handle(request).to_bytes()
    folders = [site_folder(tmp_path / n / request.job, "north") for n in ("away", "late")]
    same = {tuple((f / name).read_bytes() for name in StateFiles.NAMES) for f in folders}
    assert len(same) == 1


def test_rounds_may_fail_to_count_again_and_again(make_plan, tmp_path):
    plan = make_plan(methods=["fedsm"])
    away, late = (SiteWorker(plan, tmp_path / name) for name in ("away", "late"))
    for worker in (away, late):
        worker.handle(request_for(plan))
    for number in (2, 3, 4):
        late.handle(request_for(plan, number=number, after=1))
    request = request_for(plan, number=5, after=1)
    assert late.handle(request).to_bytes() == away.handle(request).to_bytes()


def test_a_state_that_is_older_than_the_server_knows_is_refused(make_plan, tmp_path):
    """A disk that was brought back from an old copy: silently beginning anew would lose rounds."""
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    worker.handle(request_for(plan))
    with pytest.raises(StateError, match=r"north: .*that of round 1.*goes on after round 2"):
        worker.handle(request_for(plan, number=3, after=2))


def test_a_state_that_could_not_be_saved_leaves_the_one_before(make_plan, tmp_path, monkeypatch):
    """The disk is full at the worst moment, twice; then there is room."""
    plan = make_plan(methods=["fedsm"])
    calm, hit = (SiteWorker(plan, tmp_path / name) for name in ("calm", "hit"))
    second = request_for(plan, number=2, after=1)
    for worker in (calm, hit):
        worker.handle(request_for(plan))
    with monkeypatch.context() as patch:
        patch.setattr("konsil.federation.state.write_parts", _no_room)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                hit.handle(second)
    assert hit.handle(second).to_bytes() == calm.handle(second).to_bytes()


def _no_room(*_):
    raise OSError(28, "No space left on device")


def test_another_plan_is_refused(make_plan, tmp_path):
    plan = make_plan()
    other = replace(request_for(plan), plan="0123456789abcdef")
    with pytest.raises(StateError, match=r"site north, round 1: refused.*0123456789abcdef"):
        SiteWorker(plan, tmp_path).handle(other)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("job", ["fedavg/seed1", "..", "/tmp/somewhere", "", None, ["fedavg"]])
@pytest.mark.parametrize("kind", ["round", "collect", "evaluate"])
def test_a_job_that_the_plan_does_not_have_is_refused(make_plan, tmp_path, job, kind):
    """A job's name is a folder's: nothing may be made or looked for elsewhere."""
    plan = make_plan()
    strange = replace(request_for(plan, kind=kind), job=job)
    with pytest.raises(StateError, match=r"site north, round 1: refused.* job .*fedavg/seed0"):
        SiteWorker(plan, tmp_path / "run").handle(strange)
    assert not any(tmp_path.iterdir())


def test_a_kind_that_nobody_knows_is_refused(make_plan, tmp_path):
    plan = make_plan()
    with pytest.raises(StateError, match="kind 'images'"):
        SiteWorker(plan, tmp_path / "run").handle(request_for(plan, kind="images"))


def test_state_of_another_plan_is_refused(make_plan, tmp_path):
    SiteWorker(plan := make_plan(), tmp_path).handle(request_for(plan))
    other = make_plan(rounds=3)
    with pytest.raises(StateError, match=r"north/state\.safetensors: .* another plan"):
        SiteWorker(other, tmp_path).handle(request_for(other, number=2))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_state_is_refused_by_name(make_plan, tmp_path, damage):
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    worker.handle(request_for(plan))
    path = site_folder(tmp_path / plan.jobs[0].name, "north") / "state.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-5], "flipped": data, "empty": b""}[damage])
    with pytest.raises(StateError, match=r"north/state\.safetensors"):
        worker.handle(request_for(plan, number=2))


@pytest.mark.parametrize("damage", [b"", b"KNSL1 and no more"])
def test_a_power_cut_leaves_the_state_before(make_plan, tmp_path, damage):
    """The newest file is damaged, and the server has not counted its round."""
    plan = make_plan(methods=["fedsm"])
    calm, hit = (SiteWorker(plan, tmp_path / name) for name in ("calm", "hit"))
    requests = [request_for(plan, number=n, after=n - 1) for n in (1, 2, 3)]
    for request in requests[:2]:
        for worker in (calm, hit):
            worker.handle(request)
    folder = site_folder(tmp_path / "hit" / requests[0].job, "north")
    (folder / "state.safetensors").write_bytes(damage)
    for request in requests[1:]:
        assert hit.handle(request).to_bytes() == calm.handle(request).to_bytes()
    twin = site_folder(tmp_path / "calm" / requests[0].job, "north")
    for name in StateFiles.NAMES:
        assert (folder / name).read_bytes() == (twin / name).read_bytes()


def test_a_state_that_fell_back_is_not_lost_when_the_next_cannot_be_saved(
    make_plan, tmp_path, monkeypatch
):
    """The whole file must not be replaced by the damaged one."""
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    for number in (1, 2):
        worker.handle(request_for(plan, number=number, after=number - 1))
    folder = site_folder(tmp_path / plan.jobs[0].name, "north")
    (folder / "state.safetensors").write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr("konsil.federation.state.write_parts", _no_room)
        with pytest.raises(OSError, match="No space"):
            worker.handle(request_for(plan, number=2, after=1))
    assert StateFiles(folder, plan.hash).now().round == 1


def test_a_power_cut_after_the_round_counted_is_refused_by_name(make_plan, tmp_path):
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    for number in (1, 2):
        worker.handle(request_for(plan, number=number, after=number - 1))
    folder = site_folder(tmp_path / plan.jobs[0].name, "north")
    (folder / "state.safetensors").write_bytes(b"")
    with pytest.raises(StateError, match=r"north: .*that of round 1.*goes on after round 2"):
        worker.handle(request_for(plan, number=3, after=2))
    (folder / "before.safetensors").write_bytes(b"")
    with pytest.raises(StateError, match=r"north/state\.safetensors"):
        worker.handle(request_for(plan, number=3, after=2))


def test_what_is_left_at_the_end_is_never_that_of_the_round_before(make_plan, tmp_path):
    """Evaluation with a damaged state is refused: an earlier specialist is another one."""
    plan = make_plan(methods=["fedsm"])
    worker = SiteWorker(plan, tmp_path)
    worker.handle(request_for(plan))
    worker.handle(request_for(plan, number=3, kind="finish", after=1))
    (site_folder(tmp_path / plan.jobs[0].name, "north") / "state.safetensors").write_bytes(b"")
    with pytest.raises(StateError, match=r"north/state\.safetensors"):
        worker.handle(
            request_for(plan, number=3, kind="collect", body=CollectRequest(checkpoint="best"))
        )


@pytest.mark.parametrize("method", ["fedsm", "scaffold"])
def test_a_server_from_before_its_last_record_is_answered(make_plan, tmp_path, method):
    """The site missed round 2 and did round 3; the server has lost both, and asks for round 2."""
    plan = make_plan(methods=[method])
    calm, back = (SiteWorker(plan, tmp_path / name) for name in ("calm", "back"))
    for worker in (calm, back):
        worker.handle(request_for(plan))
    back.handle(request_for(plan, number=3, kind="finish", after=1))
    for number in (2, 3):
        request = request_for(plan, number=number, after=number - 1)
        assert back.handle(request).to_bytes() == calm.handle(request).to_bytes()


def test_a_site_further_ahead_than_the_round_before_refuses(make_plan, tmp_path):
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    for number in (1, 2, 3):
        worker.handle(request_for(plan, number=number, after=number - 1))
    with pytest.raises(StateError, match=r"site north: asked for round 2, but .* at round 3"):
        worker.handle(request_for(plan, number=2, after=1))


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_request_that_fails_deletes_nothing(make_plan, tmp_path, after):
    """Whoever asks for a way back and sends nothing to go on with changes no file."""
    plan = make_plan(methods=["fedsm"])
    worker = SiteWorker(plan, tmp_path)
    for number in (1, 2, 3):
        worker.handle(request_for(plan, number=number, after=number - 1))
    folder = site_folder(tmp_path / plan.jobs[0].name, "north")
    kept = {name: (folder / name).read_bytes() for name in StateFiles.NAMES}
    with pytest.raises((StateError, KeyError)):
        worker.handle(replace(request_for(plan, number=4, after=after), parts={}))
    assert {name: (folder / name).read_bytes() for name in StateFiles.NAMES} == kept


def test_beginning_anew_leaves_no_earlier_state(make_plan, tmp_path):
    plan = make_plan()
    worker = SiteWorker(plan, tmp_path)
    for number in (1, 2):
        worker.handle(request_for(plan, number=number, after=number - 1))
    worker.handle(request_for(plan, number=3, after=0))
    folder = site_folder(tmp_path / plan.jobs[0].name, "north")
    assert [path.name for path in folder.glob("*.safetensors")] == ["state.safetensors"]


def test_a_damaged_state_fails_that_sites_round_only(make_plan, tmp_path):
    plan = make_plan(server={"min_sites": 1})
    server = toy.server(plan, tmp_path)
    server._round(1)
    path = site_folder(tmp_path / plan.jobs[0].name, "north") / "state.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    server._round(2)
    assert server.record.round == 2
    with pytest.raises(RoundFailed, match=r"north: .*state\.safetensors"):
        server._finish()  # evaluation would need it


def test_private_state_stays_below_the_sites_own_folder(make_plan, tmp_path):
    plan = make_plan(methods=["fedsm"])
    worker = SiteWorker(plan, tmp_path)
    worker.handle(request_for(plan))
    worker.handle(request_for(plan, number=3, kind="finish", after=1))
    own = site_folder(tmp_path / plan.jobs[0].name, "north")
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert written
    assert all(p.is_relative_to(own) for p in written)


def test_private_parts_are_not_sent(make_plan, tmp_path):
    plan = make_plan(methods=["fedsoup"])
    reply = SiteWorker(plan, tmp_path).handle(request_for(plan))
    assert set(reply.parts) == {"global"}
    assert set(reply.body_as(RoundReply).weights) == {"global"}


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_training_that_diverges_is_an_error_that_names_site_and_round(make_plan, tmp_path, method):
    plan = make_plan(methods=[method], training={"optimizer": "sgd", "lr": 1e30, "batch_size": 1})
    worker = SiteWorker(plan, tmp_path)
    with pytest.raises(StateError, match=r"site north, round 1: training diverged.*training\.lr"):
        worker.handle(request_for(plan))
    assert not (site_folder(tmp_path / plan.jobs[0].name, "north") / "state.safetensors").exists()


def test_a_measure_that_is_not_finite_is_an_error_and_no_state(make_plan, tmp_path, monkeypatch):
    """Nobody would take it: the site finds that itself, and its state stays as it was."""
    plan = make_plan()
    monkeypatch.setattr(Site, "score", lambda self, weights: float("nan"))
    with pytest.raises(StateError, match=r"measures\.global: should be a finite number, not nan"):
        SiteWorker(plan, tmp_path).handle(request_for(plan))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_diverged_site_fails_the_round_with_that_reason(make_plan, tmp_path):
    plan = make_plan(training={"optimizer": "sgd", "lr": 1e30, "batch_size": 1})
    with pytest.raises(RoundFailed, match="north: site north, round 1: training diverged"):
        toy.train(plan, tmp_path)


def test_one_bench_serves_all_sites_without_mixing_them(make_plan, tmp_path):
    """North's reply is the same whether south was computed before it or not."""
    plan = make_plan(methods=["fedsm"])
    alone = SiteWorker(plan, tmp_path / "alone").handle(request_for(plan))
    worker = SiteWorker(plan, tmp_path / "after")
    worker.handle(request_for(plan, "south"))
    assert worker.handle(request_for(plan)).to_bytes() == alone.to_bytes()


# --- whose test images are ----------------------------------------------------------------------


def test_patients_go_with_test_scores_as_numbers_alone(make_plan, tmp_path):
    """From splits.csv of the run's folder, or as the site itself has said."""
    plan = make_plan()
    toy.train(plan, tmp_path)
    rows = "".join(f"north,{k}.png,,{who},test\n" for k, who in enumerate("ba"))
    (tmp_path / "splits.csv").write_text(f"site,image,label,patient,split\n{rows}")

    def told(worker, **asked):
        usual = {"role": "global", "split": "test", "checkpoint": "best"}
        body = EvaluateRequest(**usual | asked)
        return worker.handle(request_for(plan, number=3, kind="evaluate", body=body)).body.patients

    assert told(SiteWorker(plan, tmp_path)) == [0, 1]
    assert told(SiteWorker(plan, tmp_path, patients={"north": [0, 0]})) == [0, 0]
    assert told(SiteWorker(plan, tmp_path, patients={})) == []
    assert told(SiteWorker(plan, tmp_path), split="val") == []
    assert told(SiteWorker(plan, tmp_path), checkpoint="last") == []


# --- running statistics -------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["average", "local"])
def test_running_statistics(make_plan, tmp_path, policy):
    """Light and dark sites: their own statistics differ, shared ones are the weighted mean."""
    plan = make_plan(
        network={"name": "small", "norm": "batch"},
        task={"name": "classification", "normalise": False},
        training={"batch_size": 3, "running_statistics": policy},
    )
    server = toy.server(plan, tmp_path)
    server._round(1)
    sent = {s: toy.state_of(plan, tmp_path, s).upload["global"] for s in plan.sites}
    shared = server.record.shared["global"]
    statistics = shared.layout.statistics
    assert statistics.stop > statistics.start
    north, south = (sent[s].flat[statistics] for s in plan.sites)
    assert not torch.equal(north, south)

    used = {}
    for site in plan.sites:
        state = toy.state_of(plan, tmp_path, site)
        worker = server.engine.worker
        request = replace(request_for(plan, site, 2), parts={"global": shared})
        used[site] = worker._site(request, state).localised("global", shared)
        assert torch.equal(used[site].trainable, shared.trainable)
    if policy == "average":
        assert all(u.equals(shared) for u in used.values())
    else:
        assert torch.equal(used["north"].flat[statistics], north)
        assert torch.equal(used["south"].flat[statistics], south)


def test_a_specialist_is_kept_as_it_was_validated(make_plan, tmp_path):
    """With statistics that stay local, SoftPull must not leave mixed ones in the files."""
    plan = make_plan(
        methods=["fedsm"],
        network={"name": "small", "norm": "batch"},
        training={"batch_size": 3, "running_statistics": "local"},
    )
    server = toy.server(plan, tmp_path)
    record = server.train()
    for site in plan.sites:
        state = toy.state_of(plan, tmp_path, site)
        own = state.private["personal.statistics"]
        assert state.last["personal"].equals(state.last["personal"].with_statistics_of(own))
        request = request_for(plan, site, 3)
        at = server.engine.worker._site(request, state)
        last = record.history[-1]["sites"][site]["personal"]
        assert at.score(state.last["personal"]) == last


def test_a_site_without_a_model_says_so(make_plan, tmp_path):
    """FedSoup's personal model is made in a round; a site that missed them all has none."""
    plan = make_plan(methods=["fedsoup"], rounds=1, server={"absences": {"north": [1]}})
    engine = InProcessEngine(plan, tmp_path)
    toy.train(plan, tmp_path, engine=engine)
    asked = request_for(plan, number=2, kind="collect", body=CollectRequest(checkpoint="best"))
    with pytest.raises(StateError, match="site north: it has no personal model"):
        engine.worker.handle(asked)
