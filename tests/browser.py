"""A real browser, controlled through two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""  # Chromium reads commands from handle 3 and writes to 4
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Browser:
    """Headless Chromium with one page, controlled by the DevTools protocol; all events are kept."""

    def __init__(self, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, responses = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(responses), CHROMIUM, *flags, "about:blank"],
            pass_fds=(commands, responses),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands), os.close(responses)
        self._buffer, self._id, self._session = b"", 0, None
        self.events: list[dict] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params) -> dict:
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._id:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def _next(self) -> dict:
        deadline = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self._read, 1 << 16) if ready else b""
            assert chunk, "the browser does not respond"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, page: Path | str, width: int, dark: bool) -> None:
        """Open a file or a URL and wait until it has loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.events.clear()
        self("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str):
        """Return the value of an expression on the page."""
        evaluated = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in evaluated, evaluated["exceptionDetails"]
        return evaluated["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        at = self.run(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for event in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=event, x=at[0], y=at[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into the element with the focus."""
        self("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Save the full page as a PNG file."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def trouble(self, own: str = "file:") -> list:
        """Return errors of the page, and requests to URLs that do not start with `own`."""
        problems = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Log.entryAdded" and params["entry"]["level"] != "verbose"
            ):
                problems.append(params)
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                problems.append(params)
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith((own, "data:")):
                problems.append(params["request"]["url"])
        return problems

    def close(self) -> None:
        os.close(self._write), os.close(self._read)  # which ends it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
