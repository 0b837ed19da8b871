"""A headless Chromium, driven by chromedriver over HTTP (W3C WebDriver, and the DevTools protocol through it)."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
LIMIT_S = 30.0

KEYS: Mapping[str, str] = {
    "Tab": "\ue004", "Enter": "\ue007", "Shift": "\ue008", "Backspace": "\ue003", "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015",
}  # fmt: skip
"""Name of a key -> its code in WebDriver."""


class Browser:
    """One window, which takes any certificate. Raises `AssertionError` with what the driver says where it refuses
    something."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        assert DRIVER is not None
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(profile), "TMPDIR": str(profile)},
        )  # fmt: skip
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio"]
        arguments += [f"--user-data-dir={profile / 'profile'}", "--no-first-run", "--disable-background-networking"]
        wanted = {
            "acceptInsecureCerts": True,
            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self._session = ""
        try:
            self._port = self._port_of_driver()
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self.close()
            raise
        self._session = f"/session/{made['sessionId']}"

    def _port_of_driver(self) -> int:
        assert self._driver.stdout is not None
        lines = (re.search(r"successfully on port (\d+)", line) for line in self._driver.stdout)
        port = next((int(found[1]) for found in lines if found), None)
        assert port is not None, "chromedriver ended before it listened"
        return port

    def _call(self, method: str, path: str, body: object = None) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)) as connection:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            value = json.loads(reply.read())["value"]
        assert reply.status == 200, value
        return value

    def close(self) -> None:
        """End the browser, and the driver."""
        try:
            if self._session:
                self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(LIMIT_S)
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What the body of a function returns; a promise is waited for."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": arguments})

    def until(self, expression: str) -> Any:
        """The value of the expression once it is true."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            value = self.run(f"return {expression}")
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}; the page says:\n{self.run('return document.body.innerText')}")

    def devtools(self, command: str, **parameters: object) -> Any:
        """A command of the DevTools protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, width: int, scheme: str = "light", motion: str = "no-preference") -> None:
        """A window of that width in CSS pixels, and what the user prefers."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=listed)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def press(self, *keys: str, held: str | None = None) -> None:
        """Press keys one after another, by their names in `KEYS` or as characters, perhaps with another held."""
        actions: list[Mapping[str, str]] = []
        for key in keys:
            actions += [{"type": kind, "value": KEYS.get(key, key)} for kind in ("keyDown", "keyUp")]
        if held is not None:
            around = [{"type": kind, "value": KEYS[held]} for kind in ("keyDown", "keyUp")]
            actions = [around[0], *actions, around[1]]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window, in CSS pixels."""
        move = {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
        actions = [move, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act({"type": "pointer", "id": "mouse", "actions": actions})

    def _act(self, source: Mapping[str, object]) -> None:
        self._call("POST", f"{self._session}/actions", {"actions": [source]})

    def complaints(self) -> Sequence[str]:
        """What the console has said since the last call, but of connections that failed."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if "net::ERR_" not in entry["message"]]
