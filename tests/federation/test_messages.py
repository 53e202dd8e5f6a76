from dataclasses import replace
from typing import Any

import pytest
import torch

from konsil.errors import StateError
from konsil.federation.messages import Reply, Request, is_number, shown
from konsil.federation.storage import pack
from konsil.weights import Layout, Weights

LAYOUT = Layout.build([("w", (2,), "trainable", "body")])


def request() -> Request:
    parts = {"global": Weights(LAYOUT, torch.tensor([1.0, 2.0]))}
    return Request("round", "fedavg/seed0", "north", 3, "abc", parts, {"validate": True})


def test_a_message_travels_as_bytes():
    sent = request()
    arrived = Request.from_bytes(sent.to_bytes())
    assert isinstance(arrived, Request)
    assert arrived.parts["global"].equals(sent.parts["global"])
    for name in ("kind", "job", "site", "round", "plan", "facts"):
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
        ("facts", []),
        ("facts", None),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(field: str, value: Any):
    sent = replace(request(), **{field: value})
    with pytest.raises(StateError, match=f"reply: {field} is ") as caught:
        Reply.from_bytes(sent.to_bytes())
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [0, -3, 2.5, 1e308, 10**300])
def test_numbers(value: Any):
    assert is_number(value)


@pytest.mark.parametrize(
    "value", [True, None, "1", [1], float("nan"), float("inf"), -float("inf"), 10**400]
)
def test_what_is_no_number(value: Any):
    assert not is_number(value)


def test_what_was_sent_is_shown_short_and_printable():
    assert shown("Zürich") == "Zürich"
    assert shown(2.5) == "2.5"
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (deep, "x" * 10**6, {"a": ["\n" * 99]}, "\x1b[31m", "\ud800"):
        assert shown(value).isprintable()
        assert len(shown(value)) < 200
