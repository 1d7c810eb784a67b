"""Chromium without a window, by the WebDriver protocol: what a page looks like, and what its console says."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Browser", "is_installed", "started"]

_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
]


def is_installed() -> bool:
    """Whether there are a chromium and its driver: ``apt-get install chromium chromium-driver`` on Debian."""
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Browser:
    """One tab.

    Args:
        address: of the driver.
        session: its session.
    """

    def __init__(self, address: str, session: str) -> None:
        self._session = f"{address}/session/{session}"

    def _post(self, command: str, **values: Any) -> Any:
        return _sent(f"{self._session}/{command}", values)

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self._post("goog/cdp/execute", cmd=command, params=parameters)

    def look(self, *, width: int, dark: bool = False) -> None:
        """Be as wide as this, and prefer dark pages or light ones."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        preference = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", features=preference)

    def open(self, path: Path) -> None:
        """Load a page, and wait until it is there."""
        self._post("url", url=path.absolute().as_uri())

    def value(self, expression: str) -> Any:
        """What JavaScript gives."""
        return self._post("execute/sync", script=f"return {expression}", args=[])

    def console(self) -> list[str]:
        """What the console has said since it was last asked."""
        return [each["message"] for each in self._post("se/log", type="browser")]

    def picture(self, *, top: float = 0, height: float | None = None) -> bytes:
        """A PNG of the page, or of some of it."""
        width, whole = self.value("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": width, "height": height or whole - top, "scale": 1}
        found = self._devtools("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def printed(self) -> bytes:
        """A PDF of the page."""
        found = self._devtools("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(found["data"])


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert process.stdout is not None
            port = next(
                line.rsplit(" ", 1)[1].strip(".\n") for line in process.stdout if "successfully on port" in line
            )
            address = f"http://127.0.0.1:{port}"
            chrome = {"binary": shutil.which("chromium"), "args": [*_OPTIONS, f"--user-data-dir={folder}"]}
            wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
            session = _sent(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            try:
                yield Browser(address, session)
            finally:
                _sent(f"{address}/session/{session}", None, method="DELETE")
        finally:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _sent(address: str, values: Any, method: str = "POST") -> Any:
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)["value"]
