"""Finds out once whether the extension modules in C++ can be used here.

They are optional. A missing compiler at the installation, another platform or another version of
pulsar-client's library only mean that their work is done in Python, which is slower and does the
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
from array import array
from functools import cache
from importlib.metadata import version
from typing import Any

import _pulsar
import attrs

from pulsar_retry.runtime.fork import free_in_child
from pulsar_retry.runtime.raw import position_of

__all__ = ["Native", "native", "native_rows"]

_log = logging.getLogger("pulsar_retry")

#: Set to 0, this environment variable switches both modules off.
VARIABLE = "PULSAR_RETRY_NATIVE"

#: The releases of pulsar-client with which the tests have run on them. With another one, the
#: self-test runs in a process of its own first.
VERIFIED = ("3.13.0",)

#: The names that pybind11 has for a platform, in its releases that pulsar-client was built with.
_PLATFORMS = (
    "system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1",
    *(f"_gcc_libstdcpp_cxxabi10{number}" for number in range(11, 20)),
)

_SELF_TEST_SECONDS = 60

_lock = free_in_child(threading.RLock())  # one self-test at a time

#: The properties of the self-test's letter, and what the letter must have.
_PROPERTIES = {"RECONSUMETIMES": "1", "ä": "ö" * 40}
_WANTED = (
    {name: value.encode() for name, value in _PROPERTIES.items()},
    *(b"\x00payload", b"key", b"order", False, 1_234_567),
)
_ROW = {"b": "1", "ü": "ö" * 40}

#: A program whose arguments are the path of imports, so that it tests the package that runs here,
#: and the name of a self-test.
_PROBE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from pulsar_retry.native import loading
getattr(loading, sys.argv[2])()
"""


@attrs.frozen
class Native:
    """Whether an extension module is used.

    Attributes:
        module: The extension module; None: its work is done in Python.
        why: Why it is not used; "" if it is.
    """

    module: Any
    why: str


def native() -> Native:
    """Return the module that hands letters off, if it is usable. The first call tests it.

    Thread-safe.
    """
    with _lock:
        return _looked_up("_handoff", "self_test", "letters are handed off")


def native_rows() -> Native:
    """Return the module that sends and reads Spark's rows, if it is usable, as `native` does."""
    with _lock:
        return _looked_up("_rows", "self_test_of_rows", "rows are sent and read")


@cache
def _looked_up(name: str, test: str, what: str) -> Native:
    try:
        found = _found(name, test)
    except Exception as error:  # noqa: BLE001 - whatever it is, the Python path works
        found = Native(None, f"{type(error).__name__}: {error}")
    if found.module is None:
        _log.debug("%s in Python: %s", what, found.why)
    return found


def _found(name: str, test: str) -> Native:
    if os.environ.get(VARIABLE) == "0":
        return Native(None, f"{VARIABLE}=0")
    try:
        module = importlib.import_module(f"pulsar_retry.native.{name}")
    except ImportError as error:
        return Native(None, f"the extension module was not built ({error})")
    release = version("pulsar-client")
    if release not in VERIFIED and not _passes_in_a_process(test):
        return Native(None, f"pulsar-client {release} does not pass the self-test")
    globals()[test]()
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
    if (found := module.properties(message)) != {"was": "before"}:
        raise ImportError(f"the self-test has read other properties: {found}")
    if (found := module.position(message)) != position_of(message.message_id()):
        raise ImportError(f"the self-test has found another position: {found}")
    outcomes, consumer = module.Outcomes(), _pulsar.Consumer()
    job = outcomes.sender(_pulsar.Producer()).send(message, consumer, _PROPERTIES, 0, "token")
    _, failed = outcomes.take(30_000, 32, 10, 100)
    if not job or failed != [("token", False, int(_pulsar.Result.ProducerNotInitialized))]:
        raise ImportError(f"the self-test has sent with another result: {failed}")
    result = module.acknowledge(message, consumer)
    if result != int(_pulsar.Result.ConsumerNotInitialized):
        raise ImportError(f"the self-test has acknowledged with another result: {result}")
    module.nack(consumer, [message.message_id()])  # without a connection, this does nothing


def self_test_of_rows() -> None:
    """Set the module for rows up; compare what it builds, sends and reads with pulsar-client.

    Raises:
        ImportError: something is missing, or not as expected.
    """
    module = importlib.import_module("pulsar_retry.native._rows")
    letters = module.Letters()
    for platform in _PLATFORMS:
        module.setup(_pulsar.__file__, platform)
        try:
            letters.append(_pulsar.MessageBuilder().content(b"before").build())
        except TypeError:  # another platform's name
            continue
        _test_rows(module, letters)
        return
    raise ImportError("pulsar-client's objects cannot be reached on this platform")


def _test_rows(module: Any, letters: Any) -> None:
    offsets = array("q", (0, 0, 3)).tobytes()
    text = (0, None, offsets, b"abc")
    times = (0, None, None, array("q", (0, 1_234_567)).tobytes())
    columns = module.Columns(2, (text, text, text, times, times, text))
    receipts, producer, each = module.Receipts(), _pulsar.Producer(), True
    letters.send(producer, receipts, "topic", each)
    plan = (("b", "1"), ("c", 5), ("ü", _ROW["ü"]))
    letters.extend(columns, array("q", (1,)).tobytes(), plan, 5)
    properties = {name: value.encode() for name, value in (_ROW | {"c": "abc"}).items()}
    if (found := letters.first()) != (properties, b"abc", b"abc", b"abc", False, 1_234_567):
        raise ImportError(f"the self-test has built another message: {found}")
    letters.send(producer, receipts, "topic", each)
    refused = ("topic", 1, int(_pulsar.Result.ProducerNotInitialized))
    if (sent := receipts.take(1, 10_000)) != (0, [refused, refused]):
        raise ImportError(f"the self-test has sent with another result: {sent}")
    if (result := module.unconnected()) != int(_pulsar.Result.ConsumerNotInitialized):
        raise ImportError(f"the self-test has read with another result: {result}")
    _test_reading(module)


def _test_reading(module: Any) -> None:
    builder = _pulsar.MessageBuilder().content(b"payload").partition_key("key").ordering_key("o")
    message = builder.event_timestamp(7).properties(_ROW).build()
    ledger_end = (2**62, 0, 0)
    reading = module.Reading(3, None, None, ledger_end, -1, ("b", "missing"), 2, 100)
    reading.add(message)
    rows, payload, key, ordering_key, _ids, _published, times, versions, *rest = reading.take()
    _wanted, names, values, _places, readable = rest
    texts = [each[3] for each in (payload, key, ordering_key, names, values)]
    found = (rows, *texts, times + versions, readable)
    numbers = array("q", (7, -1)).tobytes()
    wanted = (1, b"payload", b"key", b"o", "ü".encode(), _ROW["ü"].encode(), numbers, b"\x01")
    if found != wanted:
        raise ImportError(f"the self-test has read another message: {found}")


def _passes_in_a_process(test: str) -> bool:
    """Run a self-test where a crash does no harm."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return False  # no interpreter that could be started
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", _PROBE, json.dumps([str(each) for each in sys.path]), test],
        capture_output=True,
        timeout=_SELF_TEST_SECONDS,
        env={**os.environ, VARIABLE: "0"},  # the self-test itself does not look at it
        check=False,
    )
    if done.returncode != 0:
        _log.debug("the self-test has failed: %s", done.stderr.decode(errors="replace").strip())
    return done.returncode == 0
