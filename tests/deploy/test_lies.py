"""One site's malformed or absurd replies harm nobody but itself."""

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import direct
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konsil.config import Experiment, check_experiment
from konsil.data import open_federation
from konsil.deploy.agreement import without_places
from konsil.deploy.coordinator import coordinate
from konsil.deploy.policy import Policy
from konsil.errors import KonsilError, RoundFailed, StateError
from konsil.evaluation.results import Row
from konsil.federation.assembly import Assembly
from konsil.federation.examiner import Examiner
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import Plan
from konsil.federation.runner import Run, read_plan
from konsil.federation.server import Server
from konsil.federation.storage import BEGINNING, CHECKED, DIGITS, LENGTH, checksum, pack
from konsil.weights import Layout, Weights

SITES = ["north", "south"]
NAN = float("nan")
Forge = Callable[[Reply], bytes]


def experiment(folder: Path, **blocks: Any) -> Experiment:
    raw: dict[str, Any] = {
        "name": "lies",
        "federation": {"folder": str(folder), "image_size": 32},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 3},
        "methods": [{"name": "fedsm", "selector_optimizer": "encoder", "routing": "auto"}],
        "rounds": 3,
    }
    return check_experiment(raw | blocks, "test")


def meant(**fields: Any) -> Forge:
    def forge(reply: Reply) -> bytes:
        parts = fields.get("parts", reply.parts)
        changed = {name: value for name, value in fields.items() if name != "parts"}
        return pack(reply.header() | changed, parts)

    return forge


def said(**body: Any) -> Forge:
    return lambda r: meant(body=r.header()["body"] | body)(r)


def signed(text: bytes, body: bytes = b"") -> bytes:
    """A right checksum around whatever somebody put into it."""
    length, rest = LENGTH.pack(len(text)), text[CHECKED - LENGTH.size :]
    return length + BEGINNING + checksum(length, rest, body) + rest + body


def nested(reply: Reply) -> bytes:
    return signed(BEGINNING + b'00000000", "konsil": ' + b"[" * 10**5 + b"]" * 10**5 + b"}}")


def weighing(weight: Any) -> Forge:
    return lambda r: said(weights=dict.fromkeys(r.parts, weight))(r)


def deploy_with_liar(
    e: Experiment, folder: Path, forge: Forge, when: Callable[[Reply], bool]
) -> direct.DirectLink:
    """South computes as it should, and sends something else."""
    link = direct.DirectLink(direct.clients(e, folder, SITES))
    honest = link.clients["south"].answer

    def lie(topic: str, payload: bytes) -> bytes:
        answer = honest(topic, payload)
        if topic == "request" and answer[:1] == b"A":
            reply = Reply.from_bytes(answer[1:])
            return b"A" + forge(reply) if when(reply) else answer
        return answer

    link.clients["south"].answer = lie  # type: ignore[method-assign]
    coordinate(without_places(e), SITES, link, folder / "run")
    return link


def whose(patients: list[Any]) -> Forge:
    """Of every answer about test images with the best checkpoint."""
    return lambda r: said(patients=patients)(r) if _told(r) else r.to_bytes()


def other_patients() -> Forge:
    """Each image another patient's the first time, and all of one from then on."""
    asked: list[Reply] = []

    def forge(reply: Reply) -> bytes:
        asked.extend([reply] * _told(reply))
        return said(patients=[0, 0, 0])(reply) if len(asked) > 1 else reply.to_bytes()

    return forge


def _told(reply: Reply) -> bool:
    return "patients" in reply.header()["body"]


def remains(folder: Path) -> dict[str, bytes]:
    """The models and results of a run."""
    files = [*folder.glob("results*.csv"), *folder.rglob("*.safetensors")]
    files += [*folder.rglob("scores.parquet")]
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}
    return {name: content for name, content in sorted(found.items()) if "/sites/" not in name}


def in_process(e: Experiment, folder: Path) -> dict[str, bytes]:
    """What the run leaves in one process."""
    federation = open_federation(e.federation, e.task)
    run = Run(Plan.of(e, federation), folder)
    run.prepare(False, federation.write_splits)
    run.go()
    return remains(folder)


@pytest.fixture(scope="module")
def undisturbed(shades, tmp_path_factory):
    return in_process(experiment(shades, rounds=1), tmp_path_factory.mktemp("undisturbed"))


# --- rounds -------------------------------------------------------------------------------------

IN_A_ROUND: dict[str, Forge] = {
    "absurd weight": weighing(1e306),
    "weight above its images": weighing(50),
    "weights as a list": said(weights=[1.0]),
    "measure of no number": said(measures={"global": "x"}),
    "measure NaN": said(measures={"global": NAN}),
    "negative images": said(images=-4),
    "body as a list": meant(body=["x"]),
    "round as a list": meant(round=[1]),
    "another kind": meant(kind="collect"),
    "nested too deep": nested,
}


def test_lies_that_are_skipped_are_absences(shades, tmp_path):
    """Another lie in every round but the first and the last."""
    lies = dict(enumerate(IN_A_ROUND.values(), start=2))
    server, rounds = {"min_sites": 1, "on_bad_upload": "skip"}, len(lies) + 2
    deploy_with_liar(
        experiment(shades, server=server, rounds=rounds), tmp_path,
        lambda r: lies[r.round](r), lambda r: r.kind == "round" and r.round in lies,
    )  # fmt: skip
    away = experiment(
        shades, rounds=rounds, server={"min_sites": 1, "absences": {"south": [*lies]}}
    )
    assert remains(tmp_path / "run") == in_process(away, tmp_path / "absent")
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    heard = [e["round"] for e in events if e["event"] in ("upload_refused", "site_missing")]
    assert heard == [*lies]


# --- the evaluation -----------------------------------------------------------------------------


def other_layout(reply: Reply) -> bytes:
    layout = Layout.build([("w", (5,), "trainable", "body")])
    return replace(reply, parts={"personal": Weights.zeros(layout)}).to_bytes()


def filled(value: float) -> Forge:
    def forge(reply: Reply) -> bytes:
        specialist = reply.parts["personal"].clone()
        specialist.flat.fill_(value)
        return replace(reply, parts={"personal": specialist}).to_bytes()

    return forge


def anothers(reply: Reply) -> bytes:
    """South's means under north's name."""
    means = reply.parts["means"].clone()
    for name in ("features", "shares"):
        means[name].copy_(means[name].flip(0).clone())
    return replace(reply, parts={"means": means}).to_bytes()


def one_value(reply: Reply) -> bytes:
    columns = reply.header()["body"]["columns"]
    return said(columns=columns | {"accuracy": [1.0]})(reply)


AT_THE_END: dict[str, tuple[str, Forge, str]] = {
    "no specialist": ("collect", meant(parts={}), r"parts \[\], expected \['personal'\]"),
    "another layout": ("collect", other_layout, r"personal: w \(5,\) where"),
    "NaN": ("collect", filled(NAN), "personal: values that are not finite"),
    "too large": ("collect", filled(1e6), "personal: root mean square"),
    "another round": ("collect", meant(round=1), "round 1; this is fedsm/seed0, round 2"),
    "no means": ("describe", meant(parts={}), r"parts \[\], expected \['means'\]"),
    "another's images": ("describe", anothers, "means: shares of classes that its images cannot"),
    "too many described": ("describe", said(images=10**9), "images, by the plan"),
    "too few surprises": ("calibrate", said(surprise=[0.5]), "surprise: 1 values, expected 84"),
    "surprises below nothing": ("calibrate", said(surprise=[-1.0] * 84), "is below 0"),
    "absurd counts": ("calibrate", said(above=[10**9] * 76), "above: 1000000000 is not from 0 to"),
    "absurd scores": ("calibrate", said(scores=[1e300] * 5), "scores: 1e.300 is not from 0 to"),
    "too few sums": ("compare", said(sums=[0.5]), "sums: 1 values, expected 33"),
    "absurd sums": ("compare", said(sums=[1e300] * 33), "is not from 0 to"),
    "other images": ("compare", said(images=10**9), "images, by the plan"),
    "no columns": ("evaluate", said(columns={}), r"columns \[\], expected \['accuracy'"),
    "another column": ("evaluate", said(columns={"x": [1.0]}), r"columns \['x'\]"),
    "too few values": ("evaluate", one_value, "accuracy: 1 values, expected"),
    "numbers of its own": ("evaluate", whose([1017, 1018, 1017]), "patients: 1017 where 0 to 0"),
    "patients below 0": ("evaluate", whose([0, -1, 0]), "patients: -1 where 0 to 1 can come"),
    "a patient too few": ("evaluate", whose([0, 1]), "patients: 2 values, expected 3"),
    "patients by name": ("evaluate", whose(["Anna", 1, 2]), "patients.0: should be a valid"),
    "patients who change": ("evaluate", other_patients(), "others than it told of another model"),
    "body of another kind": ("evaluate", meant(body=[]), "body: should be"),
    "another plan": ("evaluate", meant(plan="other"), "plan other, not"),
}


@pytest.mark.parametrize("kind", ["collect", "describe", "calibrate", "compare", "evaluate"])
def test_lies_at_the_end_are_named_and_the_run_goes_on_without_them(
    shades, tmp_path, undisturbed, kind
):
    """One after the other, in one run."""
    e = experiment(shades, rounds=1)
    for forge, why in (lie for asked, *lie in AT_THE_END.values() if asked == kind):
        named = rf"site south .*in {kind}.*{why}.*go on with the run"
        with pytest.raises(RoundFailed, match=named):
            deploy_with_liar(e, tmp_path, forge, lambda r: r.kind == kind)
        assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "waiting"
    direct.deploy(e, tmp_path, SITES)
    assert remains(tmp_path / "run") == undisturbed


# --- any lie ------------------------------------------------------------------------------------


class Replay:
    """A run's replies once more, without computing; one of them changed on its way."""

    def __init__(self, passed: list[tuple[str, str, bytes]]) -> None:
        asked = [(s, p) for topic, s, p in passed if topic == "request"]
        pairs = zip(asked[::2], asked[1::2], strict=True)
        self.honest = {_key(Request.from_bytes(q)): a[1:] for (_, q), (_, a) in pairs}
        self.sent = dict(self.honest)

    def exchange(
        self, requests: list[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        for request in requests:
            try:
                yield Reply.from_bytes(self.sent[_key(request)])
            except StateError as error:
                yield Failure(request.site, str(error))

    def close(self) -> None:
        """Nothing is open."""


def _key(request: Request) -> tuple[Any, ...]:
    about = (getattr(request.body, name, None) for name in ("role", "split", "checkpoint"))
    return (request.site, request.kind, request.round, *about)


@pytest.fixture(scope="module", params=["segmentation", "classification", "means"])
def recorded(request, squares, shades, tmp_path_factory) -> tuple[Plan, Replay, list[Row]]:
    folder = tmp_path_factory.mktemp("recorded")
    server = {"min_sites": 1, "on_bad_upload": "skip"}
    e = experiment(shades, server=server, rounds=1)
    if request.param == "segmentation":
        blocks = {"task": {"name": "segmentation"}, "network": {"name": "unet", "width": 2}}
        e = experiment(squares, server=server, rounds=1, **blocks)
    policy = Policy(scores="means") if request.param == "means" else Policy()
    link = direct.deploy(e, folder, SITES, {"south": policy})
    plan, replay = Plan.from_json(read_plan(folder / "run")), Replay(link.passed)
    return plan, replay, replayed(plan, replay)


def replayed(plan: Plan, replay: Replay) -> list[Row]:
    """Rounds and evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(plan, plan.jobs[0], replay, Path(folder), lambda event, **facts: None)
        record = server.train()
        model = Assembly(plan, plan.jobs[0], replay).super_model(record, "best")
        return Examiner(plan, plan.jobs[0], replay).rows(record, "best", model)


ODD_NUMBERS = st.sampled_from([0, -1, 1, 2, 10**400, -(10**30), 0.5, 1e308, NAN, float("inf")])
ODD_TEXTS = st.sampled_from(["", "round", "personal", "images", "\ud800", "\n\x1b[31m", "x" * 999])
ODD = st.recursive(
    st.none() | st.booleans() | ODD_NUMBERS | ODD_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXTS, inner, max_size=3),
    max_leaves=4,
)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a JSON text; of long lists to the first ones."""
    inside = content.items() if isinstance(content, dict) else ()
    if isinstance(content, list):
        inside = list(enumerate(content))[:4]
    for name, value in inside:
        yield (*path, name)
        yield from places(value, (*path, name))


METADATA = ("konsil", "layouts")  # JSON texts within the JSON


def opened(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON of a message, also that within it, and its buffers."""
    end = LENGTH.size + LENGTH.unpack_from(message)[0]
    content = json.loads(message[LENGTH.size : end])
    for name in METADATA:
        content["__metadata__"][name] = json.loads(content["__metadata__"][name])
    return content, message[end:]


def closed(content: dict[str, Any], body: bytes) -> bytes:
    metadata = content.get("__metadata__")
    if isinstance(metadata, dict):
        inner = {name: json.dumps(metadata[name]) for name in METADATA if name in metadata}
        content = content | {"__metadata__": {"checksum": "0" * DIGITS} | metadata | inner}
    return signed(json.dumps(content).encode(), body)


def mutated(message: bytes, data: st.DataObject) -> bytes:
    """A message with one thing in its JSON replaced, taken out, or added."""
    content, body = opened(message)
    *way, last = data.draw(st.sampled_from(sorted(places(content), key=len)), label="place")
    holder = content
    for name in way:
        holder = holder[name]
    what = data.draw(st.sampled_from(["replace", "remove", "add"]), label="what")
    if what == "remove":
        del holder[last]
    elif what == "replace":
        holder[last] = data.draw(ODD)
    elif isinstance(holder, list):
        holder.insert(last, data.draw(ODD))
    else:
        holder[data.draw(ODD_TEXTS)] = data.draw(ODD)
    return closed(content, body)


def test_a_message_opened_and_closed_is_the_same(recorded):
    _, replay, _ = recorded
    for message in replay.honest.values():
        assert Reply.from_bytes(closed(*opened(message))).body == Reply.from_bytes(message).body


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_lie_breaks_a_run_or_changes_anothers_numbers(recorded, data):
    plan, replay, honest = recorded
    mine = sorted((key for key in replay.honest if key[0] == "south"), key=repr)
    key = data.draw(st.sampled_from(mine), label="message")
    replay.sent = replay.honest | {key: mutated(replay.honest[key], data)}
    outcome = rows_or_error(plan, replay)
    if isinstance(outcome, KonsilError):
        assert "south" in str(outcome)
        assert str(outcome).replace("\n", "").isprintable()
    else:
        assert of_north(outcome) == of_north(honest)


def rows_or_error(plan: Plan, replay: Replay) -> list[Row] | KonsilError:
    try:
        return replayed(plan, replay)
    except KonsilError as error:
        return error


def of_north(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.site == "north"]
