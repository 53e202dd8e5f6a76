"""A real Chromium that a test drives: DevTools' messages through two pipes, nothing in between."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --hide-scrollbars "
    "--remote-debugging-pipe"
)
PATIENCE = 60.0
GLANCE = 0.05


class Browser:
    """One tab; `with Browser(folder) as browser:`. Downloads land in `folder`/downloads."""

    def __init__(self, folder: Path) -> None:
        self.downloads = folder / "downloads"
        self.downloads.mkdir(parents=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4
        moved = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        command = ["bash", "-c", moved, "bash", str(CHROMIUM), *FLAGS.split()]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=[theirs_in, theirs_out],
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._buffer, self.said = 0, b"", list[dict[str, Any]]()
        self._session = ""

    def __enter__(self) -> Browser:
        tabs = self.do("Target.getTargets")["targetInfos"]
        tab = next(tab for tab in tabs if tab["type"] == "page")
        attached = self.do("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.do(f"{domain}.enable")
        self.do("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; what it gives."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
            self.said.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            self._buffer += os.read(self._in, 1 << 16)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str) -> None:
        """Go to a page, and wait for it."""
        self.do("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression on the page; promises are awaited."""
        found = self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, patience: float = PATIENCE) -> Any:
        """Wait for the page; what the expression is when it is true."""
        return wait_for(lambda: self.js(expression), expression, patience)

    def text(self, selector: str) -> str:
        """What is written there."""
        return str(self.js(f"document.querySelector({selector!r}).textContent"))

    def choose(self, selector: str, value: str) -> None:
        """A person chooses from a list, or moves a slider."""
        element = f"document.querySelector({selector!r})"
        for event in ("input", "change"):
            self.js(f"{element}.value = {value!r}; {element}.dispatchEvent(new Event('{event}'))")

    def click(self, selector: str) -> None:
        """A click."""
        self.js(f"document.querySelector({selector!r}).click()")

    def press(self, key: str) -> None:
        """A key, where the focus is."""
        code = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.do(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def drop(self, selector: str, *files: Path) -> None:
        """Drag files from outside onto an element and let go."""
        box = self.js(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.do("Input.dispatchDragEvent", type=kind, x=box[0], y=box[1], data=data)

    def size(self, width: int, height: int) -> None:
        """The window, as large as a screen or a phone."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def shot(self, path: Path) -> Path:
        """A picture of the whole page."""
        found = self.do("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def downloaded(self, name: str) -> Path:
        """A finished download."""
        path = self.downloads / name
        wait_for(lambda: path.exists() and not list(self.downloads.glob("*.crdownload")), name)
        return path

    def complaints(self) -> list[str]:
        """What the console has said, and what went wrong unseen."""
        self.do("Runtime.evaluate", expression="0")  # all that was before it has arrived
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(one["params"]) for one in self.said if one.get("method") in kinds]

    def fetched(self) -> list[str]:
        """Every address that the page has asked."""
        asked = [one for one in self.said if one.get("method") == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in asked]


def wait_for(look: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Look until there is something."""
    end = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(GLANCE)
    return found
