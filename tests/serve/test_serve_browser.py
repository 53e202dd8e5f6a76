"""The page in a real browser: a person drops files, asks others, looks at planes, downloads."""

import numpy as np
import pytest
from PIL import Image

from tests.cli.test_experiments import called
from tests.serve.chromium import CHROMIUM, Browser
from tests.serve.conftest import serving
from tests.supermodel.test_segment_volume import SITES

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
CYAN, YELLOW = (0, 0xE5, 0xFF), (0xFF, 0xE8, 0)
PANEL = "document.querySelectorAll('.panel')"


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "browser") as tab:
        yield tab


@pytest.fixture(scope="module")
def predicted(model, ward, tmp_path_factory):
    out = tmp_path_factory.mktemp("seen") / "out"
    assert called("predict", model, ward, "-o", out, "--compare").code == 0
    return out


def opened(browser, server):
    browser.size(1280, 900)
    browser.open(server.page)
    browser.until("document.querySelector('#ask').options.length > 2")


def answered(browser, *who):
    """Wait until these have answered, one panel each."""
    browser.until(
        f"{PANEL}.length == {len(who)} && [...{PANEL}].every((panel, n) => "
        f"panel.querySelector('h2').textContent.includes({list(who)}[n]))"
        " && document.querySelector('#status').textContent.includes('answered by')"
    )


def test_a_picture_is_dropped_answered_and_its_mask_downloaded(browser, served, ward, predicted):
    opened(browser, served)
    browser.drop("#drop", ward / "photo.png")
    answered(browser, "")
    browser.click(".download")
    got = browser.downloaded("photo.png").read_bytes()
    assert got == (predicted / "masks" / "photo.png").read_bytes()
    asked = browser.text(".panel h2").removeprefix("Answered by ")
    assert asked in ("global", *SITES)
    assert asked in browser.text("#status")
    likes = [
        browser.js(f"document.querySelectorAll('.likes .name')[{n}].textContent") for n in (0, 1)
    ]
    assert likes == list(SITES)
    assert browser.complaints() == []
    elsewhere = [u for u in browser.fetched() if not u.startswith((served.url, "data:", "blob:"))]
    assert elsewhere == []


def test_another_is_asked_and_two_are_compared(browser, served, ward, predicted):
    opened(browser, served)
    browser.drop("#drop", ward / "photo.png")
    answered(browser, "")
    for who in ("global", *SITES):
        browser.choose("#ask", who)
        answered(browser, who)
        browser.click(".download")
        got = browser.downloaded("photo.png")
        assert got.read_bytes() == (predicted / "compare" / who / "photo.png").read_bytes()
        got.unlink()
    browser.choose("#compare", "global")
    answered(browser, SITES[-1], "global")
    assert browser.js(f"{PANEL}[1].querySelector('canvas').width") > 0


def test_a_volume_is_looked_at_plane_by_plane(browser, served, ward, predicted, tmp_path):
    opened(browser, served)
    browser.drop("#drop", ward / "v.nii.gz")
    answered(browser, "")
    assert browser.text("#plane-number") == "3 of 5"
    before = browser.js("document.querySelector('canvas').toDataURL()")
    browser.js("document.querySelector('#plane').focus()")
    browser.press("ArrowRight")
    browser.until("document.querySelector('#plane-number').textContent == '4 of 5'")
    browser.until(f"document.querySelector('canvas').toDataURL() != {before!r}")
    assert "Plane 4 of 5" in browser.js("document.querySelector('canvas').ariaLabel")
    browser.js(
        "document.querySelector('canvas').dispatchEvent("
        "new WheelEvent('wheel', {deltaY: -1, bubbles: true, cancelable: true}))"
    )
    browser.until("document.querySelector('#plane-number').textContent == '3 of 5'")
    browser.click(".download")
    got = browser.downloaded("v.nii.gz").read_bytes()
    assert got == (predicted / "masks" / "v.nii.gz").read_bytes()


def test_the_opacity_of_the_mask(browser, served, ward, tmp_path):
    """At 0 the picture is as it is, at 1 structures have their colours."""
    opened(browser, served)
    browser.drop("#drop", ward / "photo.png")
    answered(browser, "")
    colours = {}
    for opacity in (0, 100):
        browser.choose("#opacity", str(opacity))
        browser.js("new Promise(done => setTimeout(done, 200))")
        pixels = browser.js(
            "(() => { const c = document.querySelector('canvas');"
            "return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"
        )
        seen = np.array(pixels).reshape(-1, 4)[:, :3]
        colours[opacity] = {tuple(one) for one in seen}
    assert all(r == g == b for r, g, b in colours[0])
    assert colours[100] & {CYAN, YELLOW}


def test_a_folder_of_slices_is_a_series(browser, served, ward):
    opened(browser, served)
    browser.drop("#drop", ward / "T2")
    answered(browser, "")
    assert browser.text("#plane-number") == "2 of 4"
    assert "series: answered by" in browser.text("#status")


def test_what_cannot_be_answered_is_said_and_the_page_lives_on(browser, served, ward, tmp_path):
    opened(browser, served)
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\n")
    browser.drop("#drop", bad)
    browser.until("document.querySelector('#problem').textContent.includes('cannot be read')")
    browser.drop("#drop", ward / "photo.png")
    answered(browser, "")
    assert browser.text("#problem") == ""


def test_it_can_be_used_without_a_mouse_and_without_eyes(browser, served):
    """Everything has a name, and the keyboard reaches it in order."""
    opened(browser, served)
    nameless = browser.js(
        "[...document.querySelectorAll('input, select, button')].filter(one => "
        "!one.labels?.length && !one.textContent.trim()).map(one => one.id)"
    )
    assert nameless == []
    reached = []
    for _ in range(6):
        browser.press("Tab")
        reached.append(browser.js("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["file", "folder", "ask", "compare", "opacity", "SUMMARY"]
    assert browser.js("document.documentElement.lang") == "en"
    assert browser.js("document.querySelector('#status').getAttribute('aria-live')") == "polite"


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_a_phone_and_a_screen(browser, served, ward, width, tmp_path):
    opened(browser, served)
    browser.size(width, 844)
    browser.drop("#drop", ward / "photo.png")
    answered(browser, "")
    assert browser.js("document.documentElement.scrollWidth") <= width
    pixels = np.asarray(Image.open(browser.shot(tmp_path / "shot.png")).convert("RGB")).astype(int)
    for colour in (CYAN, YELLOW):  # of the legend, at least
        assert (np.abs(pixels - colour).sum(axis=2) < 40).sum() > 50


def test_the_token_comes_with_the_address_and_leaves_it(browser, model, ward):
    with serving(model, "--workers", 1, KONSIL_TOKEN="open sesame") as server:
        opened(browser, server)
        assert "sesame" not in browser.js("location.href")
        browser.drop("#drop", ward / "photo.png")
        answered(browser, "")
        browser.js("sessionStorage.clear()")
        browser.open(server.url)
        browser.until("!document.querySelector('#token-form').hidden")
        browser.js("document.querySelector('#token').value = 'open sesame'")
        browser.click("#token-form button")
        browser.until("document.querySelector('#ask').options.length > 2")
