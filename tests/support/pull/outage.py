"""A handler whose service can be switched off, also in another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from support.appended import whole_lines


class Service:
    """Fails while it is switched off, and writes each attempt into a file."""

    def __init__(self, folder: Path) -> None:
        self._off, self._log = folder / "off", folder / "log"
        self._log.touch()

    def switch(self, *, on: bool) -> None:
        """Have all handlers succeed, or fail."""
        if on:
            self._off.unlink()
        else:
            self._off.touch()

    def attempts(self) -> list[bytes]:
        """Return the payload of each attempt."""
        return [each.encode() for each in whole_lines(self._log)]

    def __call__(self, message: Any) -> None:
        """Handle a message."""
        self.use(message.data())

    async def call_async(self, message: Any) -> None:
        """Handle a message on an event loop."""
        self.use(message.data())

    def use(self, payload: bytes) -> None:
        """Note an attempt, and fail while the service is off."""
        log = os.open(self._log, os.O_APPEND | os.O_WRONLY)
        try:
            os.write(log, payload + b"\n")
        finally:
            os.close(log)
        if self._off.exists():
            raise TimeoutError("the service is off")
