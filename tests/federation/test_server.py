"""The server's guards: what is refused, by which words, and that nothing else changes."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from konsil import testing as toy
from konsil.config import ServerConfig
from konsil.errors import ConfigError, RoundFailed, StateError, UploadRefused
from konsil.federation.engines import InProcessEngine
from konsil.federation.intake import Holding, Intake
from konsil.federation.messages import Failure, Reply, Request, RoundReply, RoundRequest
from konsil.federation.server import Record, pooled_means
from konsil.ingredients.context import Shared
from konsil.weights import Layout, Weights

LAYOUT = Layout.build([("w", (2,), "trainable", "body"), ("b", (1,), "trainable", "head")])
OTHER_SHAPE = Layout.build([("w", (1,), "trainable", "body"), ("b", (2,), "trainable", "head")])
OTHER_NAME = Layout.build([("v", (2,), "trainable", "body"), ("b", (1,), "trainable", "head")])
ASKED = RoundRequest(validation=False, after=2)
REQUEST = Request("round", "fedavg/seed0", "a", 3, "plan0", ASKED)
SAID = {"weights": {"global": 2.0}, "measures": {}, "images": 0}


@pytest.fixture
def usual(classes):
    """Where outlines do not matter, what costs less."""
    return classes


def part(*values: float, layout: Layout = LAYOUT) -> Weights:
    return Weights(layout, torch.tensor(values, dtype=torch.float32))


def reply(site: str = "a", weight: object = 2.0, **changes) -> Reply:
    """As it arrives: nothing in it needs to be as it should."""
    header = {
        "kind": "round",
        "job": "fedavg/seed0",
        "site": site,
        "round": 3,
        "plan": "plan0",
        "body": SAID | {"weights": {"global": weight}},
    }
    parts = changes.pop("parts", {"global": part(1, 2, 3)})
    return Reply.from_parts(header | changes, parts)


def said(weight: object = 2.0, **changes) -> Reply:
    """A reply with another body."""
    body = SAID | {"weights": {"global": weight}} | changes
    return reply(body={name: value for name, value in body.items() if value is not None})


def roster(sites: str) -> dict[str, Holding]:
    return {site: Holding(train=8, val=2) for site in sites}


def intake(*sites: str, validate: bool = False, **config) -> Intake:
    request = replace(REQUEST, body=RoundRequest(validation=validate, after=2))
    layouts = {"global": LAYOUT}
    return Intake(request, roster(sites or ("a", "b")), layouts, ServerConfig(**config))


NAN, INF = float("nan"), float("inf")
BAD = {
    "NaN": (reply(parts={"global": part(1, NAN, 3)}), "not finite"),
    "infinity": (reply(parts={"global": part(1, INF, 3)}), "not finite"),
    "another shape": (reply(parts={"global": part(1, 2, 3, layout=OTHER_SHAPE)}), r"w \(1,\)"),
    "another name": (reply(parts={"global": part(1, 2, 3, layout=OTHER_NAME)}), r"v \(2,\)"),
    "missing part": (reply(parts={}), "expected"),
    "extra part": (reply(parts={"global": part(1, 2, 3), "x": part(1, 2, 3)}), "expected"),
    "another round": (reply(round=2), "round 2; this is fedavg/seed0, round 3"),
    "another plan": (reply(plan="plan1"), "plan1, not plan0"),
    "another job": (replace(reply(), job="fedsm/seed0"), "fedsm/seed0"),
    "foreign site": (reply("z"), "not in the roster"),
    "weight zero": (reply(weight=0), "weights.global: should be greater than 0, not 0"),
    "negative weight": (reply(weight=-1.0), "weights.global: should be greater than 0, not -1.0"),
    "weight NaN": (reply(weight=NAN), "weights.global: should be a finite number, not nan"),
    "infinite weight": (reply(weight=INF), "weights.global: should be a finite number, not inf"),
    "no measures": (said(measures=None), "measures: missing"),
    "weight missing": (said(weights={}), r"weights of \[\], and the parts"),
    "weight no number": (reply(weight="1"), "global: should be a valid number, not 1"),
    "no weights": (said(weights=None), "weights: missing"),
    "weights of no shape": (said(weights=[1]), "weights: should be a valid dictionary"),
    "weight of another part": (
        said(weights={"global": 1.0, "x": 1.0}),
        "weights of .*x.*, and the",
    ),
    "weight that is a bool": (reply(weight=True), "global: should be a valid number, not True"),
    "weight above its images": (reply(weight=8.5), "weight is 8.5, with its images 8 at most"),
    "absurd weight": (reply(weight=1e306), "weight is 1e"),
    "weight beyond floats": (reply(weight=10**400), "global: should be a valid number, not 1000"),
    "another kind": (reply(kind="finish"), "answers finish; this is round"),
    "measure of no number": (
        said(measures={"global": "x"}),
        "global: should be a valid number, not x",
    ),
    "measure NaN": (
        said(measures={"global": NAN}),
        "global: should be a finite number",
    ),
    "absurd measure": (
        said(measures={"global": 1e300}),
        "global: should be less than .* 1e",
    ),
    "measure beyond floats": (
        said(measures={"global": 10**400}),
        "valid number, not 1000",
    ),
    "measure that hides the number": (
        said(measures={"images": 9}),
        "name of a measure, not images",
    ),
    "measure with formula": (said(measures={"$\\frac": 0.5}), "should be the name of a measure"),
    "measures as a list": (said(measures=[0.5]), "measures: should be a valid dictionary"),
    "images of no number": (said(images=0.0), "images: should be a valid integer, not 0.0"),
    "images that are a bool": (said(images=False), "images: should be a valid integer"),
    "images without validation": (said(images=2), "2 validation images, by the plan 0"),
    "negative images": (said(images=-4), "-4 validation images"),
    "too large": (reply(parts={"global": part(1e6, 2, 3)}), "root mean square"),
}


@pytest.mark.parametrize(("bad", "why"), BAD.values(), ids=BAD)
def test_a_bad_upload_is_refused_by_name_and_changes_nothing(bad, why):
    taken = intake()
    with pytest.raises(UploadRefused, match=rf"site {bad.site}, round 3: refused.*{why}"):
        taken.accept(bad)
    taken.accept(reply("a"))
    taken.accept(reply("b", parts={"global": part(3, 2, 1)}))
    assert taken.summed == ["a", "b"]
    assert taken.means()["global"].flat.tolist() == [2, 2, 2]


def test_early_replies_wait_on_the_disk(tmp_path):
    """Memory does not grow with the sites: two wait there, whoever comes first."""
    sites = tuple("abcdefg")
    replies = {
        site: reply(site, weight=0.1 + number, parts={"global": part(0.1, number / 3, -number)})
        for number, site in enumerate(sites)
    }
    layouts, config = {"global": LAYOUT}, ServerConfig()
    plain, sparing = (
        Intake(REQUEST, roster(sites), layouts, config, folder=f) for f in (None, tmp_path)
    )
    for site in sites:
        plain.accept(replies[site])
    for site in reversed(sites):
        sparing.accept(replies[site])
        waiting = [r for r in sparing.arrived.values() if isinstance(r, Reply)]
        assert len(waiting) <= Intake.IN_MEMORY
        if site == "c":
            assert sorted(p.stem for p in tmp_path.iterdir()) == ["c", "d", "e"]
            with pytest.raises(UploadRefused, match="a second upload"):
                sparing.accept(replies["d"])
    assert sparing.summed == list(sites)
    assert sparing.means()["global"].equals(plain.means()["global"])
    assert sparing.said == plain.said
    assert not any(tmp_path.iterdir())


def test_without_room_on_the_disk_early_replies_wait_in_memory(tmp_path):
    nowhere = tmp_path / "file"
    nowhere.write_text("no folder")
    layouts = {"global": LAYOUT}
    taken = Intake(REQUEST, roster("abcde"), layouts, ServerConfig(), folder=nowhere)
    for site in reversed("abcde"):
        taken.accept(reply(site))
    assert taken.summed == list("abcde")


def test_the_number_of_validated_images_is_the_plans():
    taken = intake(validate=True)
    for images in (0, 1, 3):
        with pytest.raises(UploadRefused, match=f"{images} validation images, by the plan 2"):
            taken.accept(said(images=images, measures={"global": 0.5}))
    taken.accept(said(images=2, measures={"global": 0.5}))
    assert taken.summed == ["a"]


def test_what_else_a_site_says_is_not_kept(tmp_path):
    """Something nested too deep to be written would stop whoever notes it down."""
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    taken = Intake(REQUEST, roster("abcd"), {"global": LAYOUT}, ServerConfig(), folder=tmp_path)
    for site in "dcba":
        taken.accept(replace(said(gossip=deep), site=site))
    assert taken.summed == list("abcd")
    assert taken.said["d"] == RoundReply(**SAID)
    with pytest.raises(UploadRefused, match=r"global: should be a valid number, not \[\[\["):
        intake().accept(said(weight=deep))


def test_a_refusal_is_short_and_harmless_to_print():
    for weight in ("x" * 10**6, "\ud800", "\x1b[31m\n"):
        with pytest.raises(UploadRefused, match="global: should be a valid number") as caught:
            intake().accept(said(weight=weight))
        assert len(str(caught.value)) < 300
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_second_upload_is_refused(site):
    """Whether the first one is summed already (a) or still waits for its turn (b)."""
    taken = intake()
    taken.accept(reply(site))
    with pytest.raises(UploadRefused, match=f"site {site}, round 3: refused: a second upload"):
        taken.accept(reply(site, parts={"global": part(9, 9, 9)}))
    for other in {"a", "b"} - {site}:
        taken.accept(reply(other))
    assert taken.means()["global"].flat.tolist() == [1, 2, 3]


def test_an_upload_after_the_site_was_given_up_is_refused():
    taken = intake()
    taken.absent("a", "late")
    with pytest.raises(UploadRefused, match="site a"):
        taken.accept(reply("a"))


def test_the_limit_of_the_root_mean_square_is_the_users():
    large = reply(parts={"global": part(3e3, 3e3, 3e3)})
    with pytest.raises(UploadRefused, match="above 1e\\+03"):
        intake().accept(large)
    intake(max_rms=1e4).accept(large)


def test_sums_run_in_roster_order_whoever_answers_first():
    """Four sites whose float64 sums would differ by order; all 24 orders give the same bits."""
    generator = torch.Generator().manual_seed(0)
    sent = {}
    for place, site in enumerate("abcd"):
        values = torch.randn(3, generator=generator) * 10.0**place
        sent[site] = reply(site, weight=0.1 + place, parts={"global": Weights(LAYOUT, values)})
    results = set()
    for order in permutations("abcd"):
        taken = intake(*"abcd", max_rms=1e9)
        for site in order:
            taken.accept(sent[site])
        assert taken.summed == list("abcd")
        results.add(tuple(taken._means["global"]._sum.tolist()))
    assert len(results) == 1


def test_early_uploads_wait_and_are_let_go_when_summed():
    taken = intake("a", "b", "c")
    taken.accept(reply("c"))
    assert taken.summed == []
    taken.accept(reply("a"))
    assert taken.summed == ["a"]
    taken.absent("b", "power cut")
    assert taken.summed == ["a", "c"]
    assert taken.missing == {"b": "power cut"}
    assert set(taken.arrived.values()) == {None}


def test_measures_are_pooled_over_images():
    sites = {"a": {"images": 1, "global": 0.0}, "b": {"images": 3, "global": 1.0, "personal": 0.5}}
    assert pooled_means(sites) == {"global": 0.75, "personal": 0.5}


# --- the record ---------------------------------------------------------------------------------


def test_the_record_is_whole_and_belongs_to_its_plan(tmp_path):
    record = Record(
        2,
        Shared({"global": part(1, 2, 3)}, {"n": 1}),
        {"global": part(0, 1, 0)},
        {"global": 0.5},
        [{"round": 1}],
    )
    record.save(tmp_path / "record.safetensors", "plan0", durable=True)
    again = Record.load(tmp_path / "record.safetensors", "plan0")
    assert toy.same_record(record, again)
    assert (again.round, again.finished) == (2, False)
    assert [p.name for p in tmp_path.iterdir()] == ["record.safetensors"]
    with pytest.raises(StateError, match="another plan"):
        Record.load(tmp_path / "record.safetensors", "plan1")


def scores_of_best(make_plan, tmp_path, scores: list[float]) -> tuple[Record, list[Weights]]:
    """A run whose sites report these validation scores, round after round."""
    rounds = len(scores) - 1
    plan = make_plan(rounds=rounds)
    shared: list[Weights] = []

    class Scored(InProcessEngine):
        def exchange(self, requests, deadline=None):
            shared.append(requests[0].parts["global"])
            for answer in super().exchange(requests, deadline):
                score = scores[answer.round - 1]
                body = answer.body.model_copy(update={"measures": {"global": score}})
                yield replace(answer, body=body)

    record = toy.train(plan, tmp_path, engine=Scored(plan, tmp_path))
    return record, shared


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([0.1, 0.9, 0.3], 1),  # the highest
        ([0.1, 0.5, 0.5], 2),  # the latest of equals; the model after the last round can be best
        ([0.9, 0.5, 0.2], 0),  # even the initial weights, if training makes it worse
    ],
)
def test_best_is_the_highest_validation_and_last_is_last(make_plan, tmp_path, scores, winner):
    record, shared = scores_of_best(make_plan, tmp_path, scores)
    assert len(shared) == len(scores)  # every mean was validated, the last one too
    assert record.best["global"].equals(shared[winner])
    assert record.scores == {"global": scores}
    assert record.shared["global"].equals(shared[-1])
    assert [h["round"] for h in record.history] == [0, 1, 2]


def test_validate_every_skips_rounds_but_never_the_last(make_plan, tmp_path):
    plan = make_plan(rounds=4, training={"batch_size": 3, "validate_every": 3})
    record = toy.train(plan, tmp_path)
    assert [h["round"] for h in record.history] == [0, 3, 4]


# --- missing sites and bad uploads in a real run ------------------------------------------------

SEEDLESS = {"name": "fedavg", "optimizer_state": "reset"}  # nothing stays at a site


def broken(answer: Reply) -> list[Reply]:
    bad = answer.parts["global"].clone()
    bad.flat[0] = NAN
    return [replace(answer, parts={"global": bad})]


def heard(events: list, name: str) -> list[dict]:
    return [facts for event, facts in events if event == name]


@pytest.fixture
def tampered(make_plan, tmp_path):
    """A run in which south's upload of round 2 arrives broken."""

    def run(**config):
        plan = make_plan(rounds=3, methods=[SEEDLESS], server=config)
        engine = toy.Tampered(InProcessEngine(plan, tmp_path), "south", 2, broken)
        events: list = []
        server = toy.server(
            plan, tmp_path, engine=engine, notify=lambda e, **facts: events.append((e, facts))
        )
        return server, events

    return run


def test_skip_goes_on_as_if_the_site_had_been_absent(tampered, make_plan, tmp_path):
    server, events = tampered(on_bad_upload="skip", min_sites=1)
    record = server.train()
    absent = make_plan(rounds=3, methods=[SEEDLESS], server={"absences": {"south": [2]}})
    without = toy.train(absent, tmp_path / "absent")
    assert record.shared["global"].equals(without.shared["global"])
    (refused,) = heard(events, "upload_refused")
    assert (refused["site"], refused["round"]) == ("south", 2)
    assert "not finite" in refused["reason"]
    done = {f["round"]: f["sites"] for f in heard(events, "round_done")}
    assert done == {1: ["north", "south"], 2: ["north"], 3: ["north", "south"]}


def test_stop_stops_and_leaves_the_record_of_the_round_before(tampered, tmp_path):
    server, _ = tampered(on_bad_upload="stop", min_sites=1)
    with pytest.raises(UploadRefused, match="site south, round 2: refused: global"):
        server.train()
    assert Record.load(server.path, server.plan.hash).round == 1


def test_too_few_sites_fail_the_round_with_every_reason(tampered):
    server, _ = tampered(on_bad_upload="skip")
    with pytest.raises(RoundFailed) as caught:
        server.train()
    message = str(caught.value)
    assert "fedavg/seed0, round 2: 1 of 2 sites answered, 2 are needed" in message
    assert "  south: site south, round 2: refused: global: values that are not finite" in message
    assert "then go on with the run" in message
    assert server.record.round == 1


def test_a_failed_round_can_be_mended_and_resumed(tampered, make_plan, tmp_path):
    server, _ = tampered(on_bad_upload="skip")
    with pytest.raises(RoundFailed):
        server.train()
    record = toy.train(server.plan, tmp_path)
    undisturbed = toy.train(server.plan, tmp_path / "undisturbed")
    assert toy.same_record(record, undisturbed)


def test_a_duplicate_that_is_skipped_does_not_count_twice(make_plan, tmp_path):
    plan = make_plan(methods=[SEEDLESS], server={"on_bad_upload": "skip"})
    engine = toy.Tampered(InProcessEngine(plan, tmp_path), "north", 1, lambda a: [a, a])
    record = toy.train(plan, tmp_path, engine=engine)
    clean = toy.train(plan, tmp_path / "clean")
    assert record.shared["global"].equals(clean.shared["global"])


def test_a_site_without_an_answer_is_named(make_plan, tmp_path):
    plan = make_plan(server={"min_sites": 1}, rounds=2)
    engine = toy.Tampered(
        InProcessEngine(plan, tmp_path), "north", 1, lambda a: [Failure("north", "power cut")]
    )
    events: list = []
    server = toy.server(
        plan, tmp_path, engine=engine, notify=lambda e, **facts: events.append((e, facts))
    )
    record = server.train()
    assert heard(events, "site_missing") == [{"round": 1, "site": "north", "reason": "power cut"}]
    assert set(record.history[0]["sites"]) == {"south"}
    assert set(record.history[1]["sites"]) == {"north", "south"}


def test_the_last_validation_needs_every_site(make_plan, tmp_path):
    """Evaluation asks all sites for what the last validation left there."""
    plan = make_plan(methods=["fedsm"], server={"min_sites": 1}, rounds=1)
    engine = toy.Tampered(
        InProcessEngine(plan, tmp_path), "north", 2, lambda a: [Failure("north", "power cut")]
    )
    with pytest.raises(RoundFailed, match="north: power cut"):
        toy.train(plan, tmp_path, engine=engine)
    assert toy.train(plan, tmp_path).finished


SOLVED = {"name": "fedsm", "selector_optimizer": "closed_form"}


def infinite(selector: Weights, means: Weights) -> Weights:
    return selector * INF


def singular(selector: Weights, means: Weights) -> Weights:
    raise torch.linalg.LinAlgError("the input matrix is singular")


@pytest.mark.parametrize("solution", [infinite, singular])
def test_means_that_come_to_nothing_fail_the_round_and_are_not_kept(
    make_plan, tmp_path, monkeypatch, solution
):
    """Within all limits, and no selector comes of it: the record stays as it was."""
    monkeypatch.setattr("konsil.methods.selector.linear_discriminant", solution)
    plan = make_plan(methods=[SOLVED], server={"absences": {"north": [1]}, "min_sites": 1})
    server = toy.server(plan, tmp_path)
    with pytest.raises(RoundFailed, match=r"round 1: no use came of the means of south \(not fin"):
        server.train()
    assert server.record.round == 0
    assert not server.path.exists()


def almost_nothing(means: Weights) -> None:
    means["shares"].fill_(1e-37)  # finite, and no selector comes of it


def anothers(means: Weights) -> None:
    means["shares"].copy_(means["shares"].flip(0).clone())


@pytest.mark.parametrize(
    ("spoil", "why"), [(almost_nothing, "no counts of 6 images"), (anothers, "cannot have")]
)
def test_an_upload_that_the_method_knows_to_be_false_touches_no_mean(
    make_plan, tmp_path, spoil, why
):
    """The form is right, every value is finite and small: only the method can tell."""

    def spoilt(answer: Reply) -> list[Reply]:
        means = answer.parts["selector.means"].clone()
        spoil(means)
        return [replace(answer, parts=answer.parts | {"selector.means": means})]

    plan = make_plan(methods=[SOLVED], server={"on_bad_upload": "skip", "min_sites": 1})
    engine = toy.Tampered(InProcessEngine(plan, tmp_path), "south", 1, spoilt)
    events: list = []
    server = toy.server(
        plan, tmp_path, engine=engine, notify=lambda e, **facts: events.append((e, facts))
    )
    record = server.train()
    (refused,) = heard(events, "upload_refused")
    assert "site south, round 1: refused: selector.means: shares" in refused["reason"]
    assert why in refused["reason"]
    absent = make_plan(methods=[SOLVED], server={"absences": {"south": [1]}})
    without = toy.train(absent, tmp_path / "absent")
    assert toy.same_parts(record.shared, without.shared)


def sites_of_rounds(plan, folder, title) -> list[list[str]]:
    events: list = []
    heard_by = lambda event, **facts: events.append((event, facts))  # noqa: E731
    toy.server(plan, folder, title, notify=heard_by).train()
    return [facts["sites"] for facts in heard(events, "round_done")]


def test_a_fraction_of_the_sites_is_drawn_for_every_round(make_plan, tmp_path):
    plan = make_plan(rounds=6, methods=["fedavg", "fedprox"], server={"fraction": 0.5})
    drawn, others = (sites_of_rounds(plan, tmp_path, name) for name in ("fedavg", "fedprox"))
    assert drawn == others  # alike for every method
    assert all(len(sites) == 1 for sites in drawn)
    assert {site for sites in drawn for site in sites} == {"north", "south"}


def test_a_fraction_of_one_asks_everybody(make_plan, tmp_path):
    plans = [make_plan(), make_plan(server={"fraction": 1.0})]
    assert plans[0].hash == plans[1].hash


def test_absences_must_name_sites(make_plan):
    with pytest.raises(ConfigError, match=r"server.absences.east: no such site"):
        make_plan(server={"absences": {"east": [1]}})


def test_min_sites_cannot_exceed_the_roster(make_plan):
    with pytest.raises(ConfigError, match="min_sites = 3"):
        make_plan(server={"min_sites": 3})


def test_min_sites_cannot_exceed_those_that_a_round_asks(make_plan):
    with pytest.raises(ConfigError, match=r"min_sites = 2: server.fraction = 0.5 asks 1 of 2"):
        make_plan(server={"min_sites": 2, "fraction": 0.5})


def test_a_round_without_any_site_fails(make_plan, tmp_path):
    plan = make_plan(server={"absences": {"north": [1], "south": [1]}, "min_sites": 1})
    with pytest.raises(RoundFailed, match="absent by the experiment's plan"):
        toy.train(plan, tmp_path)
