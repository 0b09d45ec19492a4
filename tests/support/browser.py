"""A real, headless Chromium, driven through a pipe by Chromium's DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from support.waiting import eventually

#: The names of the program in Debian, in other systems, and at Google.
_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Chromium reads file descriptor 3 and writes 4.
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--hide-scrollbars", "--no-proxy-server", "--remote-debugging-pipe"),
)
_PATIENCE = 90.0


def find_chromium() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. A context manager.

    Attributes:
        problems: The problems it reported: scripts, the content security policy, failed loads.
    """

    def __init__(self, chromium: str, width: int = 1280, height: int = 900) -> None:
        self.problems: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), chromium]
        self._process = subprocess.Popen(
            [*command, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb", 0), os.fdopen(ours_out, "wb", 0)
        self._buffer, self._number, self._session = b"", 0, ""
        self._attach("about:blank")
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        self._in.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _attach(self, url: str) -> None:
        """Open a tab."""
        target = self._call("Target.createTarget", url=url)["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def resize(self, width: int, height: int) -> None:
        """Set the width and height of the window, in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def scheme(self, name: str) -> None:
        """Prefer ``light`` or ``dark`` pages."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def scripts(self, *, allowed: bool) -> None:
        """Let pages run scripts, or not."""
        self._call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def press(self, key: str) -> None:
        """Press a key; a single character, or a name such as ``Enter``."""
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        code = {"windowsVirtualKeyCode": 13} if key == "Enter" else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self._call("Page.navigate", url=url)
        self.wait_for("location.href != 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of JavaScript in the page; of a promise, when it is kept."""
        result = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def text(self, selector: str = "main") -> str:
        """Return the visible text of an element."""
        text: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return text

    def click(self, selector: str, *, leaves: bool = True) -> None:
        """Click an element, and wait for the page that follows if the click *leaves* this one."""
        self.evaluate("window.left = true")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        if leaves:
            self.wait_for("window.left === undefined")

    def type(self, selector: str, text: str) -> None:
        """Fill in a field."""
        field = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{field}.value = {json.dumps(text)}")

    def wait_for(self, expression: str) -> None:
        """Wait until JavaScript is true in a loaded page; pages may change meanwhile."""
        self._eventually(lambda: self.evaluate(f"{_READY} && !!({expression})"))

    def picture(self, path: Path) -> None:
        """Write what the window shows to a PNG file, for `tools/console_picture.py`."""

        def is_taken() -> bool:
            shot = self._call("Page.captureScreenshot", format="png")
            return path.write_bytes(base64.b64decode(shot["data"])) > 0

        self._eventually(is_taken)  # a page that is not painted yet has no width

    def _eventually(self, condition: Callable[[], Any]) -> None:
        def is_true() -> Any:
            try:
                return condition()
            except RuntimeError as error:  # the page was closed during the call
                return not error

        eventually(is_true, _PATIENCE)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                result: dict[str, Any] = answer["result"]
                return result
            self._notice(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = self._in.read(65_536)
            assert chunk, "Chromium has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _notice(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] in {"error", "warning"}:
                    self.problems.append(entry["text"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(event["params"]["exceptionDetails"]))
            case "Page.javascriptDialogOpening":
                self.problems.append(f"a script has spoken: {event['params']['message']}")


_READY = "document.readyState === 'complete'"
