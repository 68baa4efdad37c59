"""A real browser: headless Chromium, driven through its debugging pipe (no port, no driver).

with Browser() as browser:
    browser.open(path.as_uri())
    browser.text("h1"), browser.evaluate("1 + 1"), browser.click("button")
    browser.screenshot(path)
"""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: `make browser` installs Debian's"
)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-default-apps --disable-extensions --remote-debugging-pipe"
)


class Browser:
    """One tab. `requests` is every address that pages asked for, `errors` what scripts reported."""

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False):
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._size, self._dark = (width, height), dark
        self._number = 0
        self._read = b""

    def __enter__(self) -> "Browser":
        from tempfile import mkdtemp

        assert CHROMIUM is not None
        self._profile = mkdtemp(prefix="browser-")
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()

        def wire() -> None:  # Chromium reads from descriptor 3 and writes to 4
            first, second = os.dup(to_browser), os.dup(from_browser)
            os.dup2(first, 3)
            os.dup2(second, 4)

        command = [CHROMIUM, *QUIET.split(), f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=wire,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        found = self._call("Target.getTargets")["targetInfos"]
        tab = next(one for one in found if one["type"] == "page")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{part}.enable")
        self.resize(*self._size)
        self.dark(self._dark)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        self._loaded = False
        failed = self._call("Page.navigate", url=address).get("errorText")
        assert not failed, f"{address}: {failed}"
        deadline = time.monotonic() + 60
        while not self._loaded:
            self._receive(deadline)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        found = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """Until an expression is true; its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"not true after {seconds} s: {script}"
            time.sleep(0.1)
        return value

    def text(self, selector: str = "body") -> str:
        """What a person reads in the first element of this kind."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Write into a field, as a person does."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self._call("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def dark(self, on: bool = True) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path | str, whole: bool = True) -> bytes:
        """A PNG of the page; whole: down to its end."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        picture = base64.b64decode(data)
        Path(path).write_bytes(picture)
        return picture

    @property
    def left_the_machine(self) -> list[str]:
        """Requests to anything but this machine."""
        here = ("file:", "data:", "about:", "http://127.0.0.1", "http://localhost", "http://[::1]")
        return [address for address in self.requests if not address.startswith(here)]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        import select

        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser did not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            self._read += part
        line, _, self._read = self._read.partition(b"\0")
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        return message
