"""Numbers made of events, by hand; parameters of an experiment, without its paths."""

from __future__ import annotations

import pytest

from konsil.tracking.scalars import Scalars, parameters, plain
from tests.watch.test_story import DONE, FIRST, START, ZERO, a_round, at


def told(*events):
    scalars = Scalars()
    return [(s.name, s.step, s.value, s.time - ZERO) for e in events for s in scalars.of(e)]


def test_a_round_by_hand():
    """Two sites receive 8 bytes and send 4 each; it begins at 2 s and ends at 5 s."""
    job = {"job": FIRST}
    sites = {"north": {"images": 3, "global": 0.5}, "south": {"images": 1, "global": 0.9}}
    events = [
        *START,
        at(2, "round_started", round=1, **job),
        at(3, "site_done", round=1, site="north", down=8, up=4, **job),
        at(4, "site_done", round=1, site="south", down=8, up=4, **job),
        at(4, "validated", round=0, means={"global": 0.6}, sites=sites, **job),
        at(5, "round_done", round=1, sites=["north", "south"], **job),
    ]
    assert told(*events) == [
        ("validation/global", 0, 0.6, 4),
        ("validation_by_site/global/north", 0, 0.5, 4),
        ("validation_by_site/global/south", 0, 0.9, 4),
        ("round/sites", 1, 2.0, 5),
        ("round/seconds", 1, 3.0, 5),
        ("round/bytes_down", 1, 16.0, 5),
        ("round/bytes_up", 1, 8.0, 5),
    ]


def test_a_job_that_is_done():
    assert told(*START, *DONE) == [
        ("job/seconds", 4, 46.0, 46),
        ("best/global", 4, 0.5, 46),
        ("test/global/dice/north", 4, 0.2, 46),
        ("test/global/dice/_b_south_/b_", 4, 0.4, 46),  # a name that only a test has
        ("test/global/dice/client_average", 4, 0.3, 46),
        ("test/global/hd95/north", 4, 9.0, 46),
    ]


def test_a_round_that_was_cut_short_is_not_timed():
    """Killed in round 1, at work again an hour later."""
    cut = at(0, "round_started", job=FIRST, round=1)
    done = at(3605, "round_done", job=FIRST, round=1, sites=["north"])
    events = [*START, cut, at(3600, "run_started"), done]
    assert [name for name, *_ in told(*events)] == ["round/sites"]


def test_pooled_training_has_no_traffic():
    facts = {"job": FIRST, "round": 1}
    events = [at(0, "round_started", **facts), at(1, "site_done", site="all-sites", **facts)]
    names = [name for name, *_ in told(*events, at(2, "round_done", sites=["all-sites"], **facts))]
    assert names == ["round/sites", "round/seconds"]


def test_what_is_no_number_is_left_out():
    means = {"global": float("nan"), "personal": 0.5}
    (only,) = told(at(0, "validated", job=FIRST, round=0, means=means))
    assert only[0] == "validation/personal"


def test_no_name_lies_below_another():
    """MLflow keeps numbers in files of their names: one cannot be a folder, too."""
    names = {name for name, *_ in told(*START, *a_round(1, 0, 5), *DONE)}
    assert not [(a, b) for a in names for b in names if b.startswith(f"{a}/")]


def test_parameters_are_those_of_the_job_and_no_paths():
    shared = {"rounds": 4, "training": {"lr": 0.1}, "plugins": ["/home/me/x.py"]}
    shared |= {"federation": {"file": "/data/x.yaml", "cache": "/c", "image_size": 32}}
    shared |= {"network": {"name": "unet", "initial": "/data/w.safetensors"}, "seeds": [0, 7]}
    methods = [{"name": "fedavg", "label": "b"}, {"name": "fedsm", "label": "a", "lambda": 0.7}]
    plan = {"hash": "h", "version": "1", "fingerprint": "f", "sites": ["n", "s"]}
    found = parameters(plan | {"experiment": shared | {"methods": methods}}, "a/seed7")
    assert found == {
        "plan": "h", "konsil": "1", "images": "f", "seed": "7", "sites": "2",
        "method.name": "fedsm", "method.label": "a", "method.lambda": "0.7",
        "rounds": "4", "training.lr": "0.1", "federation.image_size": "32", "network.name": "unet",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "kept"), [("a/b c.d-e:f", "a/b c.d-e:f"), ("Süd(1)", "Süd_1_")])
def test_names_that_every_tracker_takes(name: str, kept: str):
    assert plain(name) == kept
