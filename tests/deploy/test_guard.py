"""A site answers what an honest server asks, for one model; whatever else is asked is refused."""

import json
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import direct
import pytest

from konsil.config import check_experiment
from konsil.deploy.coordinator import coordinate, without_places
from konsil.deploy.guard import FILE
from konsil.deploy.parties import serve
from konsil.deploy.policy import Policy
from konsil.deploy.site_client import SiteClient
from konsil.errors import RoundFailed
from konsil.federation.messages import Body, Reply, Request
from konsil.testing import SIZE
from konsil.weights import Weights

SITES = ["north", "south"]
ROUNDS = 2


class Trained:
    """A run whose sites have answered everything, and have not yet heard that it is over."""

    def __init__(self, shades: Path, folder: Path, method: Any, stop_after: int = 10**6) -> None:
        raw = {
            "federation": {"folder": str(shades), "image_size": SIZE},
            "task": {"name": "classification"},
            "network": {"name": "small"},
            "training": {"batch_size": 3},
            "methods": [method],
            "rounds": ROUNDS,
        }
        self.experiment, self.folder = check_experiment(raw, "test"), folder
        self.link = direct.DirectLink(direct.clients(self.experiment, folder, SITES))
        send = self.link.send

        def cut(topic, sites, message, deadline=None):
            asked = sum(topic == "request" for topic, *_ in self.link.passed) // 2
            if topic == "done":
                return
            if asked >= stop_after * len(SITES):
                self.link.gone = set(SITES)
            yield from send(topic, sites, message, deadline)

        self.link.send = cut
        try:
            coordinate(without_places(self.experiment), SITES, self.link, folder / "run")
        except RoundFailed:
            assert stop_after < 10**6

    @property
    def north(self) -> SiteClient:
        """As it is after a restart."""
        return direct.clients(self.experiment, self.folder, SITES)["north"]

    @property
    def asked(self) -> list[tuple[Request, bytes]]:
        """What north was asked, and what it answered."""
        north = [p for t, s, p in self.link.passed if (t, s) == ("request", "north")]
        pairs = zip(north[::2], north[1::2], strict=True)
        return [(Request.from_bytes(question), answer) for question, answer in pairs]

    def first(self, kind: str, **body) -> Request:
        for request, _ in self.asked:
            if request.kind == kind and body.items() <= dict(request.body).items():
                return request
        raise AssertionError(f"no {kind} with {body}")

    def notes(self) -> list[Path]:
        return list((self.folder / "clients" / "north").rglob(FILE))


# Algorithm 2 with a selector that is trained, and all that goes beyond it.
PAPER = {"name": "fedsm", "selector_optimizer": "average_moments", "routing": "threshold"}
BEYOND = {"name": "fedsm", "selector_optimizer": "encoder", "routing": "auto"}
GAMMAS = [{"rule": "threshold", "gamma": i / 1000} for i in range(1001)]


@pytest.fixture(scope="module")
def fedsm(shades, tmp_path_factory) -> Trained:
    return Trained(shades, tmp_path_factory.mktemp("fedsm"), PAPER)


@pytest.fixture(scope="module")
def beyond(shades, tmp_path_factory) -> Trained:
    return Trained(shades, tmp_path_factory.mktemp("beyond"), BEYOND)


@pytest.fixture(scope="module")
def ditto(shades, tmp_path_factory) -> Trained:
    return Trained(shades, tmp_path_factory.mktemp("ditto"), "ditto")


@pytest.fixture(scope="module")
def begun(shades, tmp_path_factory) -> Trained:
    """After the last round, before `finish`."""
    return Trained(shades, tmp_path_factory.mktemp("begun"), BEYOND, stop_after=ROUNDS)


def said(client: SiteClient, request: Request) -> str:
    """The refusal of a request."""
    answer = client.answer("request", request.to_bytes())
    assert answer[:1] == b"R", f"answered: {Reply.from_bytes(answer[1:]).body}"
    assert answer.startswith(b"Rrefused: "), answer
    return answer[1:].decode()


class Anything(Body):
    """A body with whatever somebody put into it."""

    content: dict[str, Any]

    def model_dump(self, **_):
        return self.content


def with_body(request: Request, **changes) -> Request:
    return replace(request, body=Anything(content=dict(request.body) | changes))


def other(weights: Weights) -> Weights:
    return Weights(weights.layout, weights.flat + 1e-3)


# --- what an honest server asks -----------------------------------------------------------------


@pytest.mark.parametrize(("run", "kinds"), [("fedsm", 4), ("beyond", 6), ("ditto", 2)])
def test_the_same_questions_again_after_a_crash(run, kinds, request):
    """Every one, in any order, at a site that was restarted."""
    trained = request.getfixturevalue(run)
    client = trained.north
    after_training = [(q, a) for q, a in trained.asked if q.kind not in ("round",)]
    assert len({q.kind for q, _ in after_training}) == kinds
    for question, answer in reversed(after_training):
        assert client.answer("request", question.to_bytes()) == answer


# --- one model for each question ----------------------------------------------------------------


@pytest.mark.parametrize("role", ["global", "super"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_another_model_is_refused(fedsm, role, split):
    question = fedsm.first("evaluate", role=role, split=split, checkpoint="best")
    name = "global" if role == "global" else "north"
    changed = replace(question, parts={**question.parts, name: other(question.parts[name])})
    why = f"evaluate: {role} {split} best was answered for another model"
    assert why in said(fedsm.north, changed)
    assert "submit a new run" in said(fedsm.north, changed)


def test_another_gamma_is_another_model(fedsm):
    """Else the means at many thresholds would tell the score of a single image."""
    question = fedsm.first("evaluate", role="super", split="test", checkpoint="best")
    chosen = question.body.model["routing"]
    gamma = 0.05 if chosen.get("gamma") != 0.05 else 0.1
    routing = {"rule": "threshold", "gamma": gamma}
    changed = with_body(question, model=question.body.model | {"routing": routing})
    assert "was answered for another model" in said(fedsm.north, changed)


@pytest.mark.parametrize("kind", ["describe", "calibrate", "compare"])
def test_validation_chooses_for_one_model_a_checkpoint(beyond, kind):
    question, name = beyond.first(kind), "selector"
    models = [q.parts[name] for q, _ in beyond.asked if q.kind == kind]
    answered = {float(model.flat.sum()) for model in models}
    for number in range(3):
        other = Weights(question.parts[name].layout, question.parts[name].flat + number + 1)
        changed = replace(question, parts={**question.parts, name: other})
        if beyond.north.answer("request", changed.to_bytes())[:1] == b"A":
            answered.add(float(other.flat.sum()))
    assert len(answered) <= 2


def test_a_damaged_note_is_no_permission(shades, tmp_path):
    trained = Trained(shades, tmp_path, "fedavg")
    [note] = trained.notes()
    assert len(json.loads(note.read_text())) == 4  # val and test, best and last
    note.write_text("")
    answer = trained.north.answer("request", trained.first("evaluate").to_bytes())
    assert answer[:1] == b"R"
    assert b"(its state folder)" in answer
    assert b"submit a new run" in answer
    assert str(tmp_path).encode() not in answer


# --- what the plan does not ask -----------------------------------------------------------------

ALTERED = {
    "a job of another plan": ("evaluate", {"job": "fedsm/seed1"}, {}, "not one of the plan's"),
    "a way up": ("round", {"job": "../../other"}, {}, "not one of the plan's"),
    "round 0": ("round", {"round": 0}, {}, "the plan asks that in rounds 1 to 2"),
    "one round more": ("round", {"round": 3}, {}, "the plan asks that in rounds 1 to 2"),
    "an early end": ("finish", {"round": 2}, {}, "the plan asks that in round 3"),
    "an early look": ("evaluate", {"round": 1}, {}, "the plan asks that in round 3"),
    "after itself": ("round", {}, {"after": 1}, "after = 1: not a round before it"),
    "after a text": ("round", {}, {"after": "0"}, "after: should be a valid integer, not 0"),
    "no validation": ("round", {}, {"validation": False}, "validation = True in this round"),
    "a fact more": ("collect", {}, {"role": "personal"}, "role: unknown"),
    "many gammas": ("compare", {}, {"rules": GAMMAS}, "not what Konsil chooses from"),
    "no rules": ("compare", {}, {"rules": []}, "not what Konsil chooses from"),
    "no rule": ("compare", {}, {"rules": [{"rule": "oracle"}]}, "rule: one of threshold"),
    "a role": ("evaluate", {}, {"role": "selector"}, "role = 'selector': not one of fedsm's"),
    "a list as role": ("evaluate", {}, {"role": ["global"]}, "role: should be a valid string"),
    "a split": ("evaluate", {}, {"split": "train"}, "split: should be 'val' or 'test', not train"),
    "a checkpoint": (
        "evaluate",
        {},
        {"checkpoint": "first"},
        "checkpoint: should be 'best'",
    ),
    "a checkpoint to collect": (
        "collect",
        {},
        {"checkpoint": "x"},
        "checkpoint: should be 'best'",
    ),
    "before the first": ("round", {}, {"after": -1}, "after: should be greater than or equal to 0"),
    "a model too many": ("evaluate", {}, {"model": {}}, "model: global is no super model"),
    "a model in private": ("evaluate", {}, {"role": "personal"}, "parts ['global'], expected []"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_other_questions_are_refused(fedsm, name):
    kind, fields, body, why = ALTERED[name]
    question = fedsm.first(kind)
    assert why in said(fedsm.north, replace(with_body(question, **body), **fields))


def test_validation_is_due_when_the_jobs_own_training_has_it(shades, tmp_path):
    own = {"name": "fedavg", "training": {"validate_every": 2}}
    trained = Trained(shades, tmp_path, own)
    asked = [r for r, _ in trained.asked if r.kind in ("round", "finish")]
    assert [r.body.validation for r in asked] == [True, False, True]
    too_often = with_body(asked[1], validation=True)
    assert "validation = False in this round" in said(trained.north, too_often)


def test_a_threshold_needs_no_description_of_images(fedsm, beyond):
    plan = fedsm.asked[0][0].plan
    for kind in ("describe", "calibrate"):
        question = replace(beyond.first(kind), plan=plan)
        assert "needs no description of images" in said(fedsm.north, question)


BEYOND_THE_PLAN = {
    "another selector": ("describe", {"selector": {"name": "small"}}, "selector: not as the plan"),
    "more heads": ("calibrate", {"heads": 100}, "heads = 100: the plan has 4"),
    "no head": ("calibrate", {"heads": 0}, "heads = 0: the plan has 4"),
    "less than nothing": ("calibrate", {"heads": -1}, "heads: should be greater than or equal"),
    "many rules": ("compare", {"rules": GAMMAS}, "not what Konsil chooses from"),
    "no table": (
        "compare",
        {"rules": [{"rule": "utility", "table": [[2.0] * 3] * 2}]},
        "table: scores are from 0 to 1",
    ),
}


@pytest.mark.parametrize("name", BEYOND_THE_PLAN)
def test_other_questions_about_routing_are_refused(beyond, name):
    kind, body, why = BEYOND_THE_PLAN[name]
    assert why in said(beyond.north, with_body(beyond.first(kind), **body))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"temperature": 1.2345}, "temperature: not one that Konsil chooses from"),
        ({"limit": 0.12345}, "limit: not one that Konsil chooses from"),
        ({"routing": {"rule": "blend", "share": 0.61, "top": 1}}, "not what Konsil chooses from"),
        ({"routing": {"rule": "utility", "table": [[0.5] * 3]}}, "table: 2 rows of 3 or 5"),
    ],
)
def test_other_choices_are_refused(beyond, facts, why):
    question = beyond.first("evaluate", role="super")
    assert why in said(beyond.north, with_body(question, model=question.body.model | facts))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"network": {"name": "unet", "width": 100_000}}, "model: network: not as the plan has it"),
        ({"labels": ["other"]}, "labels: not as the plan has it"),
        ({"sites": ["north"]}, "sites: not as the plan has it"),
        ({"temperature": 2.0}, "temperature: not one that Konsil chooses from"),
        ({"limit": 0.01}, "limit: not one that Konsil chooses from"),
        ({"withheld": ["west"]}, "withheld: not sites of the plan"),
        ({"withheld": 3}, "withheld: not sites of the plan"),
        ({"withheld": ["south"]}, "parts ['global', 'north', 'selector', 'south'], expected"),
        ({"more": 1}, "not the facts of a super model"),
    ],
)
@pytest.mark.parametrize("kind", ["compare", "evaluate"])
def test_other_super_models_are_refused(fedsm, kind, facts, why):
    question = fedsm.first(kind, **({"role": "super"} if kind == "evaluate" else {}))
    changed = with_body(question, model=question.body.model | facts)
    assert why in said(fedsm.north, changed)


def test_the_rule_is_what_the_plan_lets_it_be(fedsm):
    argmax = {"routing": {"rule": "argmax"}}
    undecided = fedsm.first("compare")
    for routing in (argmax, {"routing": {"rule": "threshold", "gamma": 0.5}}):
        changed = with_body(undecided, model=undecided.body.model | routing)
        assert "model: routing: not as the plan has it" in said(fedsm.north, changed)
    decided = fedsm.first("evaluate", role="super")
    for routing in (argmax, {"routing": {"rule": "threshold", "gamma": 0.51234}}):
        changed = with_body(decided, model=decided.body.model | routing)
        assert "routing: not what Konsil chooses from" in said(fedsm.north, changed)


@pytest.mark.parametrize("kind", ["collect", "describe", "calibrate", "compare", "evaluate"])
def test_nothing_is_examined_before_the_end(beyond, begun, kind):
    question = beyond.first(kind)
    assert question.plan == begun.asked[0][0].plan
    assert "training of that job is not finished" in said(begun.north, question)
    assert not begun.notes()


def test_only_a_super_models_method_hands_out(ditto, beyond):
    plan = ditto.asked[0][0].plan
    kinds = ("collect", "describe", "calibrate", "compare")
    asked = [beyond.first(kind) for kind in kinds]
    for one in (*asked, beyond.first("evaluate", role="super")):
        question = replace(one, job="ditto/seed0", plan=plan)
        assert "ditto has no super model" in said(ditto.north, question)


def test_refused_questions_leave_no_folder(ditto):
    client = ditto.north
    before = sorted(client.state.rglob("*"))
    question = replace(ditto.first("round"), job=str(client.state / "elsewhere"))
    assert "not one of the plan's" in said(client, question)
    assert sorted(client.state.rglob("*")) == before


# --- the end of a run ---------------------------------------------------------------------------


def over(trained: Trained) -> bytes:
    return json.dumps({"plan": trained.asked[0][0].plan, "run": "run"}).encode()


def states(trained: Trained) -> dict[str, bytes]:
    folder = trained.folder / "clients" / "north"
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


def last_note(client: SiteClient) -> dict:
    return json.loads((client.state / "audit.jsonl").read_text().splitlines()[-1])


def test_a_run_that_is_not_over_keeps_its_state(begun):
    kept, client = states(begun), begun.north
    assert set(kept) == {"state.safetensors", "before.safetensors"}
    assert client.answer("done", over(begun)) == b"A"
    assert states(begun) == kept
    note = last_note(client)
    assert note["event"] == "done"
    assert note["reason"].startswith("state kept, training is not finished here: fedsm/seed0")


def test_a_run_that_is_over_lets_its_state_go(shades, tmp_path):
    trained = Trained(shades, tmp_path, "fedavg")
    client = trained.north
    assert client.answer("done", over(trained)) == b"A"
    assert states(trained) == {}
    assert "reason" not in last_note(client)
    assert trained.notes()  # and no second model, ever
    assert "is not finished" in said(client, trained.first("evaluate"))


def test_done_for_a_plan_that_nobody_agreed_to(begun):
    answer = begun.north.answer("done", json.dumps({"plan": "0123", "run": "run"}).encode())
    assert answer == b"Rrefused: plan 0123: this site has not agreed to it"


# --- what is kept of a plan ---------------------------------------------------------------------


def test_only_the_plan_is_noted(begun):
    [plan, *_] = [p for t, s, p in begun.link.passed if (t, s) == ("agree", "north")]
    client = begun.north
    assert (
        client.answer("agree", json.dumps(json.loads(plan) | {"more": "x" * 99}).encode())[:1]
        == b"A"
    )
    [noted] = (client.state / "plans").iterdir()
    assert "more" not in json.loads(noted.read_text())
    assert {"hash", "experiment", "run", "counts"} <= set(json.loads(noted.read_text()))


def test_a_message_is_refused_by_its_length(tmp_path):
    client = SiteClient("north", {}, Policy(max_payload="10 KB"), tmp_path)
    assert client.too_large("request", 10_000) == b""
    refusal = client.too_large("request", 10_001)
    assert (
        refusal == b"Rrefused: message of 10,001 bytes: max_payload of this site's policy is 10 KB"
    )
    assert client.answer("request", bytes(10_001)) == refusal
    assert last_note(client)["event"] == "refused"


@pytest.fixture
def socket(tmp_path_factory, monkeypatch):
    """A site that answers with what it was asked, and takes no message above 10 KB."""
    folder = tmp_path_factory.mktemp("s")
    client = SiteClient("north", {}, Policy(max_payload="10 KB"), folder / "state")
    client.copied = []

    def answer(topic: str, payload: bytes) -> bytes:
        client.copied.append(len(payload))
        return topic.encode() + payload

    def serving() -> None:
        with suppress(OSError):  # the listener is closed
            serve(listener, answer, client.too_large)

    address = str(folder / "s")
    listener = Listener(address, family="AF_UNIX")
    monkeypatch.setenv("KONSIL_CLIENT", address)
    threading.Thread(target=serving, daemon=True).start()
    yield client
    listener.close()


def test_over_the_socket_a_long_message_is_refused_before_it_is_copied(socket):
    executor = pytest.importorskip("konsil.deploy.flare.executor")
    refusal = executor.ask("request", bytes(5_000_000), lambda: False)
    assert refusal.startswith(b"Rrefused: message of 5,000,000 bytes: max_payload of this site's")
    assert socket.copied == []
    assert last_note(socket)["reason"] in refusal.decode()
    for payload in (b"", b"x", bytes(10_000)):
        assert executor.ask("open", payload, lambda: False) == b"open" + payload
    assert socket.copied == [0, 1, 10_000]


def test_over_the_socket_who_asks_and_leaves_holds_up_nobody(socket):
    executor = pytest.importorskip("konsil.deploy.flare.executor")
    for words in ([], [b"open"], [b"open", b"3"]):
        with Client(executor.os.environ["KONSIL_CLIENT"], family="AF_UNIX") as gone:
            for word in words:
                gone.send_bytes(word)
    assert executor.ask("open", b"xyz", lambda: False) == b"openxyz"
    assert socket.copied == [3]
