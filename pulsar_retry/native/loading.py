"""Finds out once whether the extension modules in C++ can be used here.

They are optional. A missing compiler at the installation, another platform or another version of
pulsar-client's library only mean that their work is done in Python, which is slower and does the
same.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import _pulsar
import attrs

_log = logging.getLogger("pulsar_retry")

#: Set to 0, this environment variable switches both modules off.
VARIABLE = "PULSAR_RETRY_NATIVE"

#: The releases of pulsar-client with which the tests have run on them. Any other could crash.
VERIFIED = ("3.13.0",)

#: The name that pybind11 has for the platform, in these releases.
_PLATFORM = "system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"

#: The properties of the self-test's message, and what the modules must find in it.
_PROPERTIES = {"RECONSUMETIMES": "1", "ä": "ö" * 40}
_WANTED = (
    {name: value.encode() for name, value in _PROPERTIES.items()},
    *(b"\x00payload", b"key", b"order", False, 1_234_567),
)


@attrs.frozen
class Native:
    """Whether an extension module is used.

    Attributes:
        module: The extension module; None: its work is done in Python.
        why: Why it is not used; "" if it is.
    """

    module: Any
    why: str


@cache
def native() -> Native:
    """Return the module that hands letters off, if it is usable. The first call tests it.

    Thread-safe.
    """

    def read(module: Any, message: Any) -> Any:
        return module.copied(message, _PROPERTIES)

    return _looked_up("_handoff", read, "letters are handed off")


@cache
def native_rows() -> Native:
    """Return the module that sends and reads Spark's rows, if it is usable, as `native` does."""

    def read(module: Any, message: Any) -> Any:
        return module.described(message)

    return _looked_up("_rows", read, "rows are sent and read")


def _looked_up(name: str, read: Callable[[Any, Any], Any], what: str) -> Native:
    """Return the module *name*; *read* returns what it finds in pulsar-client's message."""
    try:
        found = _found(name, read)
    except Exception as error:  # noqa: BLE001 - whatever it is, the Python path works
        found = Native(None, f"{type(error).__name__}: {error}")
    if found.module is None:
        _log.debug("%s in Python: %s", what, found.why)
    return found


def _found(name: str, read: Callable[[Any, Any], Any]) -> Native:
    if os.environ.get(VARIABLE) == "0":
        return Native(None, f"{VARIABLE}=0")
    if (release := version("pulsar-client")) not in VERIFIED:
        return Native(None, f"it is tested with pulsar-client {VERIFIED[0]}, this is {release}")
    try:
        module = importlib.import_module(f"pulsar_retry.native.{name}")
    except ImportError as error:
        return Native(None, f"the extension module was not built ({error})")
    module.setup(_pulsar.__file__, _PLATFORM)
    builder = _pulsar.MessageBuilder().content(b"\x00payload").properties(_PROPERTIES)
    builder.partition_key("key").ordering_key("order").event_timestamp(1_234_567)
    if (seen := read(module, builder.build())) != _WANTED:
        return Native(None, f"the self-test has found another message: {seen}")
    return Native(module, "")
