from typing import Any

import pytest
import torch

from konsil.errors import StateError
from konsil.federation.messages import (
    BODIES,
    BadMessage,
    CollectReply,
    CompareReply,
    EvaluateReply,
    EvaluateRequest,
    Reply,
    Request,
    RoundReply,
    RoundRequest,
    shown,
)
from konsil.federation.storage import pack
from konsil.weights import Layout, Weights

LAYOUT = Layout.build([("w", (2,), "trainable", "body")])


def request() -> Request:
    parts = {"global": Weights(LAYOUT, torch.tensor([1.0, 2.0]))}
    body = RoundRequest(validation=True, after=2, notes={"phase": 1})
    return Request("round", "fedavg/seed0", "north", 3, "abc", body, parts)


def test_a_message_travels_as_bytes():
    sent = request()
    arrived = Request.from_bytes(sent.to_bytes())
    assert isinstance(arrived, Request)
    assert arrived.parts["global"].equals(sent.parts["global"])
    for name in ("kind", "job", "site", "round", "plan", "body"):
        assert getattr(arrived, name) == getattr(sent, name)


def test_a_damaged_message_says_what_it_was_meant_to_be():
    with pytest.raises(StateError, match="reply: damaged"):
        Reply.from_bytes(request().to_bytes()[:-1])


@pytest.mark.parametrize("header", [{}, {"kind": "round"}, {"extra": 1}, [], 3, None])
def test_a_message_with_other_fields_is_refused(header: object):
    with pytest.raises(StateError, match="reply"):
        Reply.from_bytes(pack(header, {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "spy"),
        ("kind", ["round"]),
        ("job", 3),
        ("site", None),
        ("site", "no\nrth"),
        ("plan", "\ud800"),
        ("round", "3"),
        ("round", 3.0),
        ("round", True),
        ("round", [3]),
        ("body", []),
        ("body", None),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(field: str, value: Any):
    sent = pack(request().header() | {field: value}, {})
    with pytest.raises(StateError, match=f"reply: {field}: .*, not ") as caught:
        Reply.from_bytes(sent)
    assert str(caught.value).isprintable()


def test_a_body_that_is_none_is_refused_where_it_is_read():
    """The audit trail still has its envelope; who would use it says by name what is wrong."""
    arrived = Request.from_parts(request().header() | {"body": {"validation": 1, "after": 2}}, {})
    assert (arrived.kind, arrived.round) == ("round", 3)
    with pytest.raises(BadMessage, match="no RoundRequest: validation: should be a valid bool"):
        arrived.body_as(RoundRequest)
    with pytest.raises(BadMessage, match="no EvaluateRequest: of another kind"):
        request().body_as(EvaluateRequest)


def test_a_site_answers_nothing_it_does_not_understand_and_a_server_keeps_nothing_more():
    for asked, answered in BODIES.values():
        with pytest.raises(BadMessage, match=r"gossip: unknown|missing"):
            asked.read({"gossip": 1})
        assert answered.model_config.get("extra") is None  # ignored
    assert CollectReply.read({"withheld": True, "gossip": 1}) == CollectReply(withheld=True)


@pytest.mark.parametrize("value", [0, -3, 2.5, 1e308, 10**300])
def test_numbers(value: Any):
    assert CompareReply.read({"images": 1, "sums": [value]}).sums == [float(value)]


@pytest.mark.parametrize(
    "value", [True, None, "1", [1], float("nan"), float("inf"), -float("inf"), 10**400, "\ud800"]
)
def test_what_is_no_number(value: Any):
    with pytest.raises(BadMessage, match=r"sums.0: .*number, not ") as caught:
        CompareReply.read({"images": 1, "sums": [value]})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_what_is_no_number_of_images(value: Any):
    with pytest.raises(BadMessage, match=r"images: should be a valid integer, not "):
        EvaluateReply.read({"images": value})


def test_a_body_cannot_be_changed_after_it_was_checked():
    with pytest.raises(ValueError, match="frozen"):
        RoundReply(measures={}, images=0, weights={}).images = 3  # type: ignore[misc]


def test_what_was_sent_is_shown_short_and_printable():
    assert shown("Zürich") == "Zürich"
    assert shown(2.5) == "2.5"
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (deep, "x" * 10**6, {"a": ["\n" * 99]}, "\x1b[31m", "\ud800"):
        assert shown(value).isprintable()
        assert len(shown(value)) < 200
