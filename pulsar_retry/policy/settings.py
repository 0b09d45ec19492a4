"""Where a setting's value comes from: the one rule of precedence, and values with their origins.

A message's own outcome beats what a call says, that the subscriber, that the client, that the
environment, and that the default. Here and nowhere else is that order written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError

#: Who can say a value, the strongest first.
PRECEDENCE = ("outcome", "call", "subscriber", "client", "environment", "default")

#: What the environment variable of a setting starts with; its name in capitals follows.
PREFIX = "PULSAR_RETRY_"


@attrs.frozen
class Setting:
    """A value and who said it.

    Attributes:
        name: The setting's name.
        value: Its value.
        origin: One of `PRECEDENCE`.
    """

    name: str
    value: Any
    origin: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value} ({self.origin})"


def resolve(said: Mapping[str, Mapping[str, Any] | None]) -> tuple[Setting, ...]:
    """Return each setting with the value of the strongest that says one.

    Args:
        said: For each of `PRECEDENCE` what it says: values by name. None stands for nothing said.
            The default names every setting, and their order.

    Raises:
        ConfigError: one is not of `PRECEDENCE`, or names a setting that has no default.
    """
    defaults = said["default"] or {}
    for origin, values in said.items():
        if origin not in PRECEDENCE:
            raise ConfigError.bad("origin", origin, f"one of {', '.join(PRECEDENCE)}")
        for name in values or ():
            if name not in defaults:
                raise ConfigError.bad(origin, name, f"one of {', '.join(defaults)}")
    layers = [(origin, said.get(origin) or {}) for origin in PRECEDENCE]
    return tuple(
        next(
            Setting(name, values[name], origin)
            for origin, values in layers
            if values.get(name) is not None or origin == "default"
        )
        for name in defaults
    )


def from_environment(
    environment: Mapping[str, str], readers: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """Return the settings that environment variables name; blank ones say nothing.

    Args:
        environment: The variables, such as `os.environ`.
        readers: For each setting what reads its text.

    Raises:
        ConfigError: a value is not acceptable; it names the variable.
    """
    values = {}
    for name, read in readers.items():
        variable = PREFIX + name.upper()
        text = environment.get(variable, "").strip()
        if text:
            try:
                values[name] = read(text)
            except ConfigError as error:
                raise ConfigError(f"{variable}: {error}") from None
    return values
