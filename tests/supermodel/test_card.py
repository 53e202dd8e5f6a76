"""MODEL_CARD.md: true to model.json, whatever it says."""

from dataclasses import replace

import pytest

from konsil.errors import StateError
from konsil.supermodel import Facts, SuperModel
from konsil.supermodel.card import model_card
from konsil.supermodel.rules import Blend, Even, Threshold, to_json
from konsil.version import __version__
from tests.supermodel.test_rules import super_model

SCORES = {
    "test": {
        "global": {"north": {"dice": 0.5}, "south": {"dice": 0.625}},
        "super": {
            "north": {"dice": 0.75, "selector_accuracy": 0.5},
            "south": {"dice": 0.875, "selector_accuracy": 1.0},
        },
    }
}


def facts(**changes: object) -> Facts:
    told = {
        "konsil": __version__, "method": "fedsm", "seed": 3, "rounds": 40,
        "images": {"north": 80, "south": 90}, "scored": {"test": {"north": 8, "south": 9}},
    }  # fmt: skip
    whole = super_model([0.0, 1.0], Blend(0.75)).facts
    usual = {
        "provenance": told, "scores": SCORES, "plan": "abc123", "temperature": 2.0, "limit": 0.25,
        "intervals": {"test": {"super": {"north": {"dice": [0.7, 0.8]}}}},
        "reading": {site: {"window": None, "view": "axial"} for site in whole.sites},
    }  # fmt: skip
    return replace(whole, **(usual | changes))


def test_what_it_says():
    card = model_card(facts())
    for line in (
        "# Model card: segmentation of disc",
        "| method | fedsm, 40 rounds, seed 3 |",
        "| plan | `abc123` (the hash of everything that determines the numbers) |",
        f"| Konsil | {__version__} |",
        "| hospital | training | test | specialist |",
        "| north | 80 | 8 | in this folder |",
        "| hospital | global model | super model |",
        "| north | 0.500 | 0.750 (0.700 to 0.800) |",
        "| south | 0.625 | 0.875 |",
        "All hospitals: view axial (pictures in 8 bit, volumes in their usual window).",
    ):
        assert line in card.splitlines(), line
    flat = " ".join(card.split())
    for words in (
        "finds the right hospital for 75% of the test images (the mean over hospitals; the worst "
        "50%, the best 100%)",
        "divided by a temperature of 2.",
        "Images of more novelty than 0.25 go to the global model",
        "32 x 32 pixels with one grey channel",
        "not a medical device",
        "bootstrap, 2,000 draws",
        "whether a certain image was among them",
        "konsil predict MODEL",
        "konsil export MODEL",
        "Apache-2.0",
        "seed 3",
    ):
        assert words in flat, words


def test_the_same_facts_give_the_same_text(tmp_path):
    first = super_model([0.0, 1.0], Blend(0.75)).changed(**vars(facts()))
    first.save(tmp_path / "one")
    SuperModel.load(tmp_path / "one").save(tmp_path / "two")
    texts = [(tmp_path / name / "MODEL_CARD.md").read_bytes() for name in ("one", "two")]
    assert texts[0] == texts[1] == model_card(facts()).encode()


def test_a_hospital_that_keeps_its_specialist():
    card = model_card(facts(withheld=["south"]))
    assert "| south | 90 | 9 | stays with the hospital |" in card
    assert "| north | 80 | 8 | in this folder |" in card


def test_without_single_values_there_are_no_intervals_and_it_says_so():
    card = model_card(facts(intervals={}))
    assert "There are no intervals: the hospitals told means" in card
    assert "bootstrap" not in card
    assert "| north | 0.500 | 0.750 |" in card


def test_without_a_selector():
    card = model_card(facts(selector={}, routing=to_json(Even()), limit=None))
    assert "There is no selector" in card
    assert "temperature" not in card
    assert "every site's model, all alike" in card


def test_a_folder_that_no_run_has_written():
    card = model_card(facts(provenance={}, scores={}, intervals={}, reading={}))
    assert "None are known: no run has written this folder." in card
    assert "| north | not known | in this folder |" in card
    assert "seed not known" in card
    assert "Not known: this folder does not say how training read its files." in card


def test_sites_that_read_in_different_ways_and_a_rule_of_its_own():
    ct = {"north": {"window": [0, 100], "view": "axial"}, "south": {"window": "full"}}
    card = model_card(facts(reading=ct, routing=to_json(Threshold(0.5))))
    assert "- north: window [0, 100], view axial" in card
    assert "- south: window full" in card
    assert "the likeliest specialist if surer than 0.5, else the global model" in card


def test_what_16_bit_cost():
    measured = {"labelled_images": 9, "metric": "dice", "before": 0.8, "after": 0.7995}
    card = model_card(facts(provenance=facts().provenance | {"float16": measured}))
    assert "mean Dice 0.8000 before and 0.7995 after (-5.0e-04)" in card


def test_names_that_hold_the_signs_of_a_table():
    odd = facts(sites=["a|b", "c\nd"], reading={}, scores={}, intervals={}, provenance={})
    card = model_card(odd)
    assert "| a\\|b | not known | in this folder |" in card
    assert "| c d | not known | in this folder |" in card


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": {"test": []}},
        {"scores": {"test": {"super": {"north": {"dice": "high"}}}}},
        {"intervals": {"test": {"super": {"north": {"dice": [0.5]}}}}},
        {"provenance": {"images": 7}},
        {"provenance": {"scored": 7}},
        {"provenance": {"float16": 7}},
    ],
)
def test_facts_that_no_run_tells_are_refused(changes):
    with pytest.raises(StateError, match="not what a run writes"):
        model_card(facts(**changes))
