"""Reading options: Spark gives lower-case keys with text values, and checks nothing. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pulsar_retry.errors import ConfigError

#: Options that Spark itself adds to those of a source or sink.
SPARK_OPTIONS = frozenset(
    {
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingenabled",
        "checkpointlocation",
        "queryname",
    }
)

#: The largest int of the JVM and of pulsar-client.
MAX_INT = 2**31 - 1

_FLAGS = {"true": True, "false": False}

#: The value of an option, as `DataFrameWriter.options` takes it.
Option = str | float | bool | None

_Default = TypeVar("_Default")


def option_texts(options: object) -> dict[str, str]:
    """Return options as texts, as Spark passes them on; those that are None are left out.

    Raises:
        ConfigError: *options* is no mapping.
    """
    if not isinstance(options, Mapping):
        kind = type(options).__name__  # not its value, which may have a secret
        raise ConfigError(f"options is a {kind}: expected a dictionary of texts")
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
        if value is not None
    }


class OptionReader:
    """Reads options one by one, and knows at the end which ones nobody has read.

    The case of their names makes no difference: Spark gives them in lower case.

    Every method raises `ConfigError` for an invalid value.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left: dict[str, str] = {}
        self._known: list[str] = []
        for key, value in options.items():
            if not isinstance(value, str):
                raise ConfigError.bad(key, value, "text, like every option of Spark")
            if self._left.setdefault(key.lower(), value) != value:
                raise ConfigError(f"{key}: expected it only once, in any case")

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a text; None if it is blank, *default* if it is absent."""
        self._known.append(key)
        return self._left.pop(key.lower(), default or "").strip() or None

    def choice(self, key: str, default: str, accepted: Iterable[str]) -> str:
        """Return one of the *accepted* words."""
        value = (self.text(key) or default).lower()
        if value not in accepted:
            raise ConfigError.bad(key, value, f"one of {', '.join(accepted)}")
        return value

    def flag(self, key: str, default: _Default) -> bool | _Default:
        """Return true or false; *default* if it is absent."""
        value = self.text(key)
        if value is None:
            return default
        if value.lower() not in _FLAGS:
            raise ConfigError.bad(key, value, "true or false")
        return _FLAGS[value.lower()]

    def integer(
        self, key: str, default: _Default, *, minimum: int, maximum: int = MAX_INT
    ) -> int | _Default:
        """Return a whole number from *minimum* to *maximum*; *default* if it is absent."""
        value = self.text(key)
        if value is None:
            return default
        accepted = f"a whole number, {minimum} or more and {maximum} or less"
        try:
            number = int(value)
        except ValueError:
            raise ConfigError.bad(key, value, accepted) from None
        if not minimum <= number <= maximum:
            raise ConfigError.bad(key, value, accepted)
        return number

    def finish(self) -> None:
        """Refuse options that nobody has read; show no values, as one may be a misspelt secret."""
        if path := self._left.get("path"):  # of `save`, `start` and `load`
            accepted = "no path: use the options topic and subscription"
            raise ConfigError.bad("path", path, accepted)
        for unknown in sorted(self._left.keys() - SPARK_OPTIONS):
            raise ConfigError(unknown_name("option", unknown, self._known))


def unknown_name(what: str, name: str, accepted: Iterable[str]) -> str:
    """Return the text of an error about an unknown name, with a similar known name if any."""
    accepted = sorted(accepted)
    close = difflib.get_close_matches(name, accepted, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown {what} {name!r}: {hint}accepted are {', '.join(accepted)}"
