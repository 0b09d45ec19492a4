"""Settings with their origins, and the rule of precedence.

A message's own outcome comes first, then the call, the subscriber, the client, the environment and
the default. This module is the only place that defines the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError

#: The origins of a value, the strongest first.
PRECEDENCE = ("outcome", "call", "subscriber", "client", "environment", "default")

#: The start of the environment variables' names. The setting's name in capitals follows.
PREFIX = "PULSAR_RETRY_"


@attrs.frozen
class Setting:
    """A value and its origin.

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
    """Return each setting with the value from its strongest origin.

    Args:
        said: For each origin of `PRECEDENCE`, its values by name. None: it has no values. The
            default has all settings, and their order.

    Raises:
        ConfigError: an origin is not in `PRECEDENCE`, or a setting has no default.
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
    """Return the settings that environment variables set; blank variables are ignored.

    Args:
        environment: The variables, such as `os.environ`.
        readers: For each setting, the function that parses its text.

    Raises:
        ConfigError: a value is invalid. The error names the variable.
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
