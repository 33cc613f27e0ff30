"""A real browser, driven through a pipe by the protocol of its developer tools."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Chromium:
    """One browser with one tab; ``said`` has what pages wrote to the console or asked for."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.said: list[str] = []
        self._loaded = False
        self._read: list[bytes] = []
        self._number = 0
        command = [
            *(str(BROWSER), "--headless", "--disable-gpu", "--no-sandbox", "--no-first-run"),
            *("--disable-dev-shm-usage", "--remote-debugging-pipe", "--hide-scrollbars"),
            # Any request by name fails, and is then an error on the console.
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"),
        ]

        def as_3_and_4() -> None:
            read, write = os.dup(ours[0]), os.dup(theirs[1])  # away from the numbers wanted
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=as_3_and_4,
            close_fds=False,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = os.fdopen(ours[1], "wb", 0), theirs[0]
        self._session = ""
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        made = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = made["sessionId"]
        for name in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{name}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        session = {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps(message | session).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while not any(b"\0" in part for part in self._read):
            part = os.read(self._from, 1 << 20)
            assert part, "the browser is gone"
            self._read.append(part)
        text, _, rest = b"".join(self._read).partition(b"\0")
        self._read = [rest] if rest else []
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method", ""), message.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(params))
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith(("file:", "about:")) or params.get("type") != "Document":
                self.said.append(f"asked for {address}")
        return message

    def open(self, address: str, width: int = 1280, scheme: str = "light") -> None:
        """Open a page at a width, on a light or a dark ground."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._loaded = False
        self.call("Page.navigate", url=address)
        while not self._loaded:
            self._next()

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(30)
        self._to.close()
        os.close(self._from)
