"""Finds out once whether the hand-off in C++ can be used here.

It is optional. A missing compiler at the installation, another platform or another version of
pulsar-client's library only mean that the hand-off runs in Python, which is slower and does the
same.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import threading
from functools import cache
from importlib.metadata import version
from typing import Any

import _pulsar
import attrs

from pulsar_retry.wire.properties import message_id_text

__all__ = ["Native", "native"]

_log = logging.getLogger("pulsar_retry")

#: Set to 0, this environment variable switches the hand-off in C++ off.
VARIABLE = "PULSAR_RETRY_NATIVE"

#: The releases of pulsar-client with which the tests have run on it. With another one, the
#: self-test runs in a process of its own first.
VERIFIED = ("3.13.0",)

#: The names that pybind11 has for a platform, in its releases that pulsar-client was built with.
_PLATFORMS = (
    "system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1",
    *(f"_gcc_libstdcpp_cxxabi10{number}" for number in range(11, 20)),
)

_SELF_TEST_SECONDS = 60

_lock = threading.RLock()  # one self-test at a time

#: The properties of the self-test's letter, and what the letter must have.
_PROPERTIES = {"RECONSUMETIMES": "1", "ä": "ö" * 40}
_WANTED = (
    {name: value.encode() for name, value in _PROPERTIES.items()},
    *(b"\x00payload", b"key", b"order", False, 1_234_567),
)
#: A program whose argument is the path of imports, so that it tests the package that runs here.
_PROBE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pulsar_retry.native.loading import self_test
self_test()
"""


@attrs.frozen
class Native:
    """Whether the hand-off runs in C++.

    Attributes:
        module: The extension module; None: the hand-off runs in Python.
        why: Why it runs in Python; "" if it does not.
    """

    module: Any
    why: str


def native() -> Native:
    """Return the extension module if it is usable. The first call tests it. Thread-safe."""
    with _lock:
        return _looked_up()


@cache
def _looked_up() -> Native:
    try:
        found = _found()
    except Exception as error:  # noqa: BLE001 - whatever it is, the Python path works
        found = Native(None, f"{type(error).__name__}: {error}")
    if found.module is None:
        _log.debug("letters are handed off in Python: %s", found.why)
    return found


def _found() -> Native:
    if os.environ.get(VARIABLE) == "0":
        return Native(None, f"{VARIABLE}=0")
    try:
        module = importlib.import_module("pulsar_retry.native._handoff")
    except ImportError as error:
        return Native(None, f"the extension module was not built ({error})")
    release = version("pulsar-client")
    if release not in VERIFIED and not _passes_in_a_process():
        return Native(None, f"pulsar-client {release} does not pass the self-test")
    self_test()
    return Native(module, "")


def self_test() -> None:
    """Set the extension module up, and compare what it reads and builds with pulsar-client.

    Raises:
        ImportError: something is missing, or not as expected.
    """
    module = importlib.import_module("pulsar_retry.native._handoff")
    builder = _pulsar.MessageBuilder()
    builder.content(b"\x00payload")
    builder.partition_key("key")
    builder.ordering_key("order")
    builder.event_timestamp(1_234_567)
    builder.property("was", "before")
    message = builder.build()
    for platform in _PLATFORMS:
        module.setup(_pulsar.__file__, platform)
        try:
            letter = module.copied(message, _PROPERTIES)
        except TypeError:  # another platform's name
            continue
        if letter != _WANTED:
            raise ImportError(f"the self-test has built another message: {letter}")
        _test_calls(module, message)
        return
    raise ImportError("pulsar-client's objects cannot be reached on this platform")


def _test_calls(module: Any, message: Any) -> None:
    """Call what sends and acknowledges, with a producer and a consumer that are not connected.

    Raises:
        ImportError: their results are not those that pulsar-client gives.
    """
    text = message_id_text(message.message_id())
    wanted = tuple(each.encode() for each in (message.topic_name(), text, message.producer_name()))
    if (found := module.read(message)) != wanted:
        raise ImportError(f"the self-test has read another message: {found}")
    outcomes, consumer = module.Outcomes(), _pulsar.Consumer()
    rule = module.Rule("retry", "subscription", 16, (1.0,), 0)
    rule.topic(message.topic_name(), "topic")
    sender = outcomes.sender(_pulsar.Producer())
    sender.retry(rule, message, consumer, 1.0, -1, 2.0, 0.0, "token")
    _, failed = outcomes.take(1_000, 32, 10, 100)
    if failed != [("token", False, int(_pulsar.Result.ProducerNotInitialized))]:
        raise ImportError(f"the self-test has sent with another result: {failed}")
    result = module.acknowledge(message, consumer)
    if result != int(_pulsar.Result.ConsumerNotInitialized):
        raise ImportError(f"the self-test has acknowledged with another result: {result}")


def _passes_in_a_process() -> bool:
    """Run the self-test where a crash does no harm."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return False  # no interpreter that could be started
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", _PROBE, json.dumps([str(each) for each in sys.path])],
        capture_output=True,
        timeout=_SELF_TEST_SECONDS,
        env={**os.environ, VARIABLE: "0"},  # the self-test itself does not look at it
        check=False,
    )
    return done.returncode == 0
