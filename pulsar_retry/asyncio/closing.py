"""``async with`` for a client and the objects that it makes."""

from __future__ import annotations

from typing import Protocol, Self


class _Closable(Protocol):
    async def close(self) -> None:
        """Close it."""


class Closing:
    """An object that is closed at the end of an ``async with`` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: _Closable, *_: object) -> None:
        await self.close()
