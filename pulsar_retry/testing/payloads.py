"""Payloads of messages that a test sends and expects."""

from __future__ import annotations

import dataclasses
from typing import Any

from pulsar_retry._extras import need
from pulsar_retry.errors import ConfigError


def payload_of(value: Any) -> bytes:
    """Return bytes as they are; a dataclass, a dict or a pydantic model as JSON.

    Raises:
        ConfigError: *value* is none of these, or JSON cannot represent it.
        ModuleNotFoundError: it is not bytes, and the extra ``typed`` is not installed.
    """
    if isinstance(value, bytes):
        return value
    accepted = "bytes, a dataclass, a dict or a pydantic model"
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if not (is_dataclass or isinstance(value, dict) or hasattr(value, "model_dump_json")):
        raise ConfigError.bad("data", value, accepted)
    need("typed", "a payload that is not bytes", "pydantic")
    from pydantic import TypeAdapter  # an extra

    try:
        return TypeAdapter(type(value)).dump_json(value, by_alias=True)
    except Exception as error:  # noqa: BLE001 - of the value's own class
        raise ConfigError.bad("data", value, f"{accepted} that is JSON ({error})") from None
