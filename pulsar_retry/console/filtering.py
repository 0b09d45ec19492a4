"""The filter of a page: that of the command line, in a URL and in a search bar. Pure.

The bar takes words such as ``reason=invalid since=2h``; other words are searched for.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.formatting import moment, name_and_value
from pulsar_retry.replay.filter import Filter

#: The fields that may be given once; and all of them, which are the options of the command line.
_ONCE = ("since", "until")
NAMES = (
    *("reason", "error", "fingerprint", "key", "attempt", "id", "property", "search"),
    *_ONCE,
)

#: More digits no count of attempts has.
_DIGITS = 10

Pairs = Iterable[tuple[str, str]]


def _known(pairs: Pairs) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    for name, text in pairs:
        if name in NAMES and text.strip():
            if name in _ONCE:
                found = {each: None for each in found if each[0] != name}
            found[name, text.strip()] = None
    return tuple(found)


@attrs.frozen
class Query:
    """A filter as text.

    Attributes:
        pairs: Names and values, in the order in which they were given.
    """

    pairs: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_known)

    @classmethod
    def typed(cls, text: str) -> Query:
        """Read the words of the search bar.

        Raises:
            ConfigError: a quotation mark is missing.
        """
        try:
            words = shlex.split(text)
        except ValueError:
            raise ConfigError.bad(
                "filter", text, "words; a second quotation mark is missing"
            ) from None
        pairs = []
        for word in words:
            name, equals, value = word.partition("=")
            name = name.removeprefix("--")
            known = bool(equals) and name in NAMES
            pairs.append((name, value) if known else ("search", word))
        return cls(pairs)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def values(self, name: str) -> list[str]:
        """Return the values of a field."""
        return [text for each, text in self.pairs if each == name]

    def where(self) -> Filter:
        """Return the filter.

        Raises:
            ConfigError: a value is invalid.
        """

        def one(name: str) -> str | None:
            return next(iter(self.values(name)), None)

        attempts: Any = [_number(each) for each in self.values("attempt")]
        return Filter(
            reason=self.values("reason"),
            error=self.values("error"),
            fingerprint=self.values("fingerprint"),
            key=self.values("key"),
            attempt=attempts,
            ids=[str(Position.parse(each)) for each in self.values("id")],
            properties=dict(name_and_value("property", each) for each in self.values("property")),
            search=self.values("search"),
            since=moment("since", one("since")),
            until=moment("until", one("until")),
        )

    def with_(self, more: Mapping[str, str] | Pairs) -> Query:
        """Return the filter with more fields."""
        pairs = more.items() if isinstance(more, Mapping) else more
        return Query((*self.pairs, *pairs))

    def without(self, pair: tuple[str, str]) -> Query:
        """Return the filter without one field."""
        return Query([each for each in self.pairs if each != pair])

    def text(self) -> str:
        """Return the filter as the search bar shows it."""
        return " ".join(
            shlex.quote(text)
            if name == "search" and "=" not in text
            else shlex.quote(f"{name}={text}")
            for name, text in self.pairs
        )

    def options(self) -> str:
        """Return the options of the command line."""
        return " ".join(f"--{name} {shlex.quote(text)}" for name, text in self.pairs)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise ConfigError.bad("attempt", text, "a number")
    return int(text)
