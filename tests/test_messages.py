import pytest
import torch

from konsil.errors import StateError
from konsil.messages import Reply, Request
from konsil.storage import pack
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
