"""The coordinator over a direct link: what a run that goes on waits for, and what it waits out."""

import json

import direct
import pytest

from konsil.deploy.agreement import without_places
from konsil.deploy.coordinator import AGAIN, PATIENCE, coordinate
from konsil.errors import RoundFailed
from konsil.federation.runner import read_plan

SITES = ["north", "south"]


class Watched(direct.DirectLink):
    """Notes whom it asks what, and how long for."""

    def __init__(self, clients, leaves_after=10**6):
        super().__init__(clients)
        self.asked = []
        self.leaves_after = leaves_after  # requests, after which south is gone

    def send(self, topic, sites, message, deadline=None):
        self.asked.append((topic, list(sites), deadline))
        if sum(topic == "request" for topic, *_ in self.asked) > self.leaves_after:
            self.gone = {"south"}
        yield from super().send(topic, sites, message, deadline)


def test_a_run_that_goes_on_does_not_wait_for_a_site_that_is_away(experiment, tmp_path):
    """The server was started again, south is not back: the round begins with those that are."""
    e = experiment(rounds=3, server={"min_sites": 1, "deadline": 30})
    first = Watched(direct.clients(e, tmp_path, SITES), leaves_after=1)
    with pytest.raises(RoundFailed, match="south: not connected"):  # at the end all are needed
        coordinate(without_places(e), SITES, first, tmp_path / "run")
    assert [a[2] for a in first.asked if a[0] == "agree"] == [PATIENCE]

    second = Watched(first.clients)
    second.gone = {"south"}
    with pytest.raises(RoundFailed, match="south: not connected"):
        coordinate(without_places(e), SITES, second, tmp_path / "run")
    assert [a for a in second.asked if a[0] == "agree"] == [("agree", ["north"], AGAIN)]

    third = Watched(first.clients)
    coordinate(without_places(e), SITES, third, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "finished"


def test_between_hospitals_states_survive_a_power_cut(experiment, tmp_path, monkeypatch):
    """Whatever the experiment says: every state is on the disk before its reply counts."""
    waited = []
    usual = direct.SiteClient._request

    def note(self, payload):
        waited.append(next(iter(self._workers.values())).plan.experiment.engine.durable)
        return usual(self, payload)

    monkeypatch.setattr(direct.SiteClient, "_request", note)
    direct.deploy(experiment(), tmp_path, SITES)
    assert waited
    assert all(waited)
    assert read_plan(tmp_path / "run")["experiment"]["engine"]["durable"] is True


@pytest.mark.parametrize(
    ("topic", "answer"),
    [
        ("greet", b"A[]"),
        ("greet", b'A{"labels": 3, "given": true, "channels": 1}'),
        ("open", b"A{"),
        ("open", b'A{"counts": {"train": 9}, "fingerprint": "x"}'),
        ("open", b'A{"counts": {"train": 9, "val": -1, "test": 2}, "fingerprint": "x"}'),
        ("agree", b"A\xff"),
    ],
)
def test_a_site_that_answers_nonsense_before_the_first_round_is_named(
    experiment, tmp_path, topic, answer
):
    e = experiment()
    link = direct.DirectLink(direct.clients(e, tmp_path, SITES))
    honest = link.clients["south"].answer
    link.clients["south"].answer = lambda t, p: answer if t == topic else honest(t, p)
    with pytest.raises(RoundFailed, match=rf"did not {topic}:\n  south: what it answered is no"):
        coordinate(without_places(e), SITES, link, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["state"] == "waiting"
