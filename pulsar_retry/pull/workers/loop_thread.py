"""An event loop on a thread of its own, for awaitables of handlers that have no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future


class LoopThread:
    """An event loop on a thread of its own.

    Attributes:
        loop: The running loop.
    """

    def __init__(self) -> None:
        made: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event | None = None
        threading.Thread(
            target=lambda: asyncio.run(self._run(made)), name="pulsar-retry-loop", daemon=True
        ).start()
        self.loop = made.result()

    async def _run(self, made: Future[asyncio.AbstractEventLoop]) -> None:
        self._over = asyncio.Event()
        made.set_result(asyncio.get_running_loop())
        await self._over.wait()

    def stop(self) -> None:
        """Cancel the tasks of the loop, and end it. Thread-safe."""
        assert self._over is not None  # noqa: S101 - it runs
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._over.set)
