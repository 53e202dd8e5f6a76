"""The preview page in a real browser, if there is one: nothing is fetched, nothing complains."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from konsil.prepare.preview import write_preview
from tests.prepare.test_preview import CYAN, YELLOW, write_classes, write_sites

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --hide-scrollbars"
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture
def browse(tmp_path):
    """Open a page; give the document, what the console said, and every address asked for."""

    def run(page, *flags):
        log = tmp_path / "net.json"
        command = [
            str(CHROMIUM),
            *FLAGS.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--log-net-log={log}",
            "--enable-logging=stderr",
            *flags,
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, console, _addresses(json.loads(log.read_text()), page)

    return run


def _addresses(log, page):
    """What the page fetched beside itself and the pictures inside it.

    The browser asks its makers for the time and other things of its own; those have no origin.
    """
    facts = [event.get("params", {}) for event in log["events"]]
    asked = {f["url"] for f in facts if f.get("initiator", "not an origin") != "not an origin"}
    return {url for url in asked if not url.startswith(("data:", page.as_uri()))}


def test_the_page_opens_and_fetches_nothing(build, browse):
    page = write_preview(write_sites(build), build.root / "page.html", images=6)
    document, console, fetched = browse(page, "--dump-dom")
    assert console == []
    assert fetched == set()
    for site in ("north", "south"):
        assert f'data-site="{site}"' in document
    assert document.count('class="outlines"') == 12


def test_the_policy_stops_what_might_slip_in(build, browse):
    """A stranger's picture is refused; without the policy it would be asked for, and seen here."""
    page = write_preview(write_classes(build), build.root / "page.html", images=2)
    stranger = "http://127.0.0.1:9/x.png"
    text = page.read_text().replace("</main>", f'<img src="{stranger}"></main>')
    page.write_text(text)
    _, console, fetched = browse(page, "--dump-dom")
    assert any("Content Security Policy" in line for line in console)
    assert fetched == set()
    page.write_text(text.replace("Content-Security-Policy", "nothing"))
    assert browse(page, "--dump-dom")[2] == {stranger}


@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_and_outlines_are_drawn(build, browse, width, tmp_path):
    page = write_preview(write_sites(build), build.root / "page.html", images=6)
    shot = tmp_path / "shot.png"
    browse(page, f"--window-size={width},4000", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    for colour in (CYAN, YELLOW):
        near = np.abs(pixels - colour).sum(axis=2) < 40
        assert near.sum() > 300  # legend and outlines of twelve pictures
