"""What ``async with`` does with a client and what it opens."""

from __future__ import annotations

from typing import Protocol, Self


class _Closable(Protocol):
    async def close(self) -> None:
        """Close it."""


class Closing:
    """Is closed at the end of an ``async with`` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: _Closable, *_: object) -> None:
        await self.close()
