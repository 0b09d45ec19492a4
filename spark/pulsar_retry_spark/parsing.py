"""Reading options: Spark gives lower-case keys with text values, and checks nothing. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

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


def option_texts(options: Mapping[str, Option]) -> dict[str, str]:
    """Return options as texts, as Spark passes them on; those that are None are left out."""
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

    def text(self, key: str) -> str | None:
        """Return a text; None if it is absent or blank."""
        self._known.append(key)
        return self._left.pop(key.lower(), "").strip() or None

    def text_or_none(self, key: str, default: str) -> str | None:
        """Return a text; *default* if it is absent, None if it is blank or ``none``."""
        given = key.lower() in self._left
        value = self.text(key)
        if value is None:
            return None if given else default
        return None if value.lower() == "none" else value

    def needed(self, key: str, accepted: str) -> str:
        """Return a text that must be present."""
        value = self.text(key)
        if value is None:
            raise ConfigError.bad(key, None, accepted)
        return value

    def choice(self, key: str, default: str, accepted: Iterable[str]) -> str:
        """Return one of the *accepted* words."""
        value = (self.text(key) or default).lower()
        if value not in accepted:
            raise ConfigError.bad(key, value, f"one of {', '.join(accepted)}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.text(key)
        return default if value is None else as_flag(key, value)

    def integer(self, key: str, *, minimum: int, maximum: int = MAX_INT) -> int | None:
        """Return a whole number from *minimum* to *maximum*; None if it is absent."""
        value = self.text(key)
        return None if value is None else as_integer(key, value, minimum, maximum)

    def with_prefix(self, prefix: str, names: Collection[str]) -> dict[str, str]:
        """Return the options whose keys start with *prefix*, by their *names* after it.

        Raises:
            ConfigError: an option has the prefix, but none of the names.
        """
        self._known.append(f"{prefix}<name>")
        found = {}
        for key in [each for each in self._left if each.startswith(prefix)]:
            name = key.removeprefix(prefix)
            if name not in names:
                raise ConfigError(unknown_name("option", key, [prefix + each for each in names]))
            found[name] = self._left.pop(key).strip()
        return found

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


def as_flag(key: str, value: str) -> bool:
    """Return *value* as a bool."""
    if value.lower() not in _FLAGS:
        raise ConfigError.bad(key, value, "true or false")
    return _FLAGS[value.lower()]


def as_integer(key: str, value: str, minimum: int, maximum: int = MAX_INT) -> int:
    """Return *value* as a whole number from *minimum* to *maximum*."""
    accepted = f"a whole number, {minimum} or more and {maximum} or less"
    try:
        number = int(value)
    except ValueError:
        raise ConfigError.bad(key, value, accepted) from None
    if not minimum <= number <= maximum:
        raise ConfigError.bad(key, value, accepted)
    return number
