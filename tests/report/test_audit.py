"""An audit trail on the screen: what others wrote is shown, never obeyed."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from konsil.report.audit import show_trail

TIME = "2024-05-01T12:00:00.000+00:00"


def shown(path: Path, **event) -> str:
    path.write_text(json.dumps({"time": TIME, "party": "server", **event}) + "\n")
    console = Console(file=StringIO(), width=200, force_terminal=True, color_system="truecolor")
    show_trail(console, path)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "text",
    ["[bold red]all is well[/]", "[/]", "[link=http://x]here[/link]", "[north]", "ends with \\"],
)
@pytest.mark.parametrize("where", ["reason", "site", "event"])
def test_markup_is_shown_as_it_stands(tmp_path, text, where):
    event = {"event": "missing", "site": "north", "reason": "gone"} | {where: text}
    screen = shown(tmp_path / "audit.jsonl", **event)
    assert text in screen
    assert "\x1b[1;31m" not in screen
    assert "\x1b]8;" not in screen  # a link


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x07bell", "\\x07bell"),
        ("a\x08b", "a\\x08b"),
        ("\u202egnp", "\\u202egnp"),  # right to left from here
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_do_not_reach_the_screen(tmp_path, text, harmless):
    screen = shown(tmp_path / "audit.jsonl", event="missing", site=text, reason=text)
    assert text not in screen
    assert screen.count(harmless) == 2


def test_names_in_a_message_are_data_too(tmp_path):
    event = {"event": "received", "kind": "round", "job": "[red]x[/]", "round": 1}
    screen = shown(tmp_path / "audit.jsonl", **event, parts={"[b]\x1b[0m": {"values": 3}})
    assert "[red]x[/], round 1, round: [b]\\x1b[0m (3)" in screen


def test_an_empty_reason(tmp_path):
    assert "missing" in shown(tmp_path / "audit.jsonl", event="missing", reason="")
