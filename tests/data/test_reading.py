"""How files of images are read, in words: what a plan and a super model carry."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from konsil.data.readers import Percentiles
from konsil.data.reading import ImageReading

WINDOWS = {
    "none": (None, None),
    "full": ("full", "full"),
    "ends": ((-100.0, 300.0), [-100.0, 300.0]),
    "percentiles": (Percentiles(0.5, 99.5), {"percentiles": [0.5, 99.5]}),
}


@pytest.mark.parametrize(("window", "words"), WINDOWS.values(), ids=WINDOWS)
def test_windows_are_written_as_in_a_federation_file(window, words):
    reading = ImageReading(window=window)
    assert reading.to_json()["window"] == words
    assert ImageReading.from_json(json.loads(json.dumps(reading.to_json()))) == reading


ENDS = st.tuples(st.floats(-1e6, 0), st.floats(1, 1e6))
SHARES = st.tuples(st.floats(0, 40), st.floats(60, 100))


@given(
    st.builds(
        ImageReading,
        st.one_of(st.none(), st.just("full"), ENDS, SHARES.map(lambda s: Percentiles(*s))),
        st.sampled_from(["axial", "coronal", "sagittal"]),
        st.one_of(st.none(), st.integers(0, 9)),
        st.one_of(st.none(), st.just("T2.*")),
    )
)
def test_what_is_written_is_read(reading):
    assert ImageReading.from_json(json.loads(json.dumps(reading.to_json()))) == reading


def test_what_is_not_said_is_the_plain_way():
    assert ImageReading.from_json({}) == ImageReading()


WRONG = {
    "no mapping": ([], "channel, series, view, window, and nothing else"),
    "another word": ({"slices": "all"}, "and nothing else"),
    "a view": ({"view": "oblique"}, "one of axial, coronal, sagittal"),
    "a channel": ({"channel": -1}, "channel = -1: a whole number from 0"),
    "a switch for a channel": ({"channel": True}, "channel = True: a whole number from 0"),
    "a series": ({"series": "("}, "not a regular expression"),
    "a number for a series": ({"series": 3}, "not a regular expression"),
    "a word for a window": ({"window": "wide"}, "two numbers, percentiles, or full"),
    "one number": ({"window": [3]}, "two numbers, percentiles, or full"),
    "no number": ({"window": [0, float("nan")]}, "two numbers, percentiles, or full"),
    "a window the wrong way": ({"window": [3, 1]}, "the smaller number first"),
    "percentiles beyond 100": ({"window": {"percentiles": [0, 101]}}, "the smaller number first"),
    "other keys": ({"window": {"percent": [0, 1]}}, "two numbers, percentiles, or full"),
}


@pytest.mark.parametrize(("words", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_a_reading_is_refused(words, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        ImageReading.from_json(words)


def test_in_words():
    reading = ImageReading(Percentiles(1, 99), "coronal", 2)
    assert str(reading) == "window {'percentiles': [1, 99]}, view coronal, channel 2"
