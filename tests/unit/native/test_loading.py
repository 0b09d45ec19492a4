"""Whether letters are handed off in C++, and what the extension module makes of a message."""

from __future__ import annotations

import subprocess
import sys

import _pulsar
import pytest

from pulsar_retry.native import loading
from pulsar_retry.native.loading import native, native_rows

MODULE = "pulsar_retry.native._handoff"


@pytest.fixture
def module():
    """Return the extension module."""
    found = native()
    if found.module is None:
        pytest.skip(f"skipped, because letters are handed off in Python: {found.why}")
    return found.module


@pytest.fixture
def afresh():
    """Forget what was found before, and what the test finds."""
    for each in (native, native_rows):
        each.cache_clear()
    yield
    for each in (native, native_rows):
        each.cache_clear()


def message(content=b"payload", **values):
    """Return a raw message that was not published."""
    builder = _pulsar.MessageBuilder()
    builder.content(content)
    for name, value in values.items():
        getattr(builder, name)(value)
    return builder.build()


def test_nacks_need_a_consumer_and_its_ids(module):
    """Anything else is refused, and nothing is nacked."""
    consumer, message_id = _pulsar.Consumer(), _pulsar.MessageId(-1, 1, 2, -1)
    assert module.nack(consumer, [message_id] * 3) is None  # it is not connected
    for arguments in ((consumer, [message_id, message()]), (message_id, [message_id])):
        with pytest.raises(TypeError, match="not the object of pulsar-client"):
            module.nack(*arguments)
    with pytest.raises(TypeError):
        module.nack(consumer, (message_id,))


@pytest.mark.usefixtures("afresh")
def test_switched_off(monkeypatch):
    """The environment switches it off, and that is said."""
    monkeypatch.setenv("PULSAR_RETRY_NATIVE", "0")
    assert (None, "PULSAR_RETRY_NATIVE=0") == (native().module, native().why)


@pytest.mark.usefixtures("afresh")
def test_not_built(monkeypatch, caplog):
    """Without the module, letters are handed off in Python, which is logged once, at DEBUG."""
    monkeypatch.setitem(sys.modules, MODULE, None)
    caplog.set_level("DEBUG", "pulsar_retry")
    assert [native().module, native().module] == [None, None]
    assert "was not built" in native().why
    assert [("DEBUG", True)] == [
        (each.levelname, "handed off in Python" in each.message) for each in caplog.records
    ]


@pytest.mark.usefixtures("module", "afresh")
@pytest.mark.parametrize("found", [native, native_rows])
def test_an_unknown_release(monkeypatch, found):
    """It could crash, so the module is not used, and the release is named."""
    monkeypatch.setattr(loading, "version", lambda _: "99.0.0")
    assert (None, True) == (found().module, "99.0.0" in found().why)


@pytest.mark.usefixtures("module", "afresh")
@pytest.mark.parametrize("found", [native, native_rows])
def test_another_message_is_found(monkeypatch, found):
    """If the self-test's message is not what was built, the module is not used."""
    monkeypatch.setattr(loading, "_WANTED", ({}, b"", b"", b"", False, 0))
    assert "has found another message" in found().why


@pytest.mark.usefixtures("module", "afresh")
def test_another_platform(monkeypatch):
    """If pybind11 does not give its objects away, the module is not used."""
    monkeypatch.setattr(loading, "_PLATFORM", "other")
    assert "TypeError" in native().why


@pytest.mark.parametrize(
    ("original", "copy"),
    [
        (message(b""), (b"", b"", b"", False, 0)),
        (message(b"\x00" * (1 << 20)), (b"\x00" * (1 << 20), b"", b"", False, 0)),
        (message(partition_key="ü"), (b"payload", "ü".encode(), b"", False, 0)),
        (message(ordering_key="o"), (b"payload", b"", b"o", False, 0)),
        (message(event_timestamp=2**62), (b"payload", b"", b"", False, 2**62)),
    ],
    ids=["empty", "large", "key", "ordering-key", "event-time"],
)
def test_copies(module, original, copy):
    """A letter has the original's payload, keys and event time, and only the given properties."""
    properties, *rest = module.copied(original, {"a": "", "b": "ö\x00"})
    assert {"a": b"", "b": "ö\x00".encode()} == properties
    assert copy == tuple(rest)


def test_null_value(module):
    """A message without a value stays one."""
    builder = _pulsar.MessageBuilder()
    builder.set_null_value()
    assert module.copied(builder.build(), {})[4] is True


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((None, {}), AttributeError),
        ((_pulsar.MessageBuilder(), {}), TypeError),
        ((message(), None), TypeError),
        ((message(), {"a": 1}), TypeError),
        ((message(), {"a": "\udc80"}), UnicodeEncodeError),
    ],
)
def test_wrong_arguments(module, arguments, error):
    """They raise an error, and do not crash."""
    with pytest.raises(error):
        module.copied(*arguments)


def test_wrong_producer(module):
    """Only pulsar-client's producer sends."""
    with pytest.raises(TypeError):
        module.Outcomes().sender(message())


def test_nothing_in_flight(module):
    """Taking outcomes returns after its time, or at once when it is woken."""
    outcomes = module.Outcomes()
    assert len(outcomes) == 0
    assert ([], []) == outcomes.take(1, 32, 10, 100)
    outcomes.wake()
    assert ([], []) == outcomes.take(600_000, 32, 10, 100)
    assert outcomes.give_up(7) is True


def test_a_failure_that_was_not_taken(module):
    """It is too late to give its letter up, and the failure is told."""
    outcomes = module.Outcomes()
    sender = outcomes.sender(_pulsar.Producer())  # it is not connected, and fails at once
    job = sender.send(message(), _pulsar.Consumer(), {}, 0, "token")
    outcomes.send_all()
    assert outcomes.give_up(job) is True
    failure = ("token", False, int(_pulsar.Result.ProducerNotInitialized))
    assert ([], [failure]) == outcomes.take(1, 32, 10, 100)
    assert len(outcomes) == 0


@pytest.mark.usefixtures("afresh")
def test_rows_are_switched_off_too(monkeypatch):
    """By the same variable."""
    monkeypatch.setenv("PULSAR_RETRY_NATIVE", "0")
    assert (None, "PULSAR_RETRY_NATIVE=0") == (native_rows().module, native_rows().why)


WITHOUT_THREADS = """
import resource
import _pulsar
from pulsar_retry.native.loading import native
outcomes = native().module.Outcomes()
sender, message = outcomes.sender(_pulsar.Producer()), _pulsar.MessageBuilder().build()
with open("/proc/self/statm") as memory:
    size = int(memory.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size, size))
sender.send(message, _pulsar.Consumer(), {}, 0, "token")
print(outcomes.take(30_000, 32, 10, 100))
"""


@pytest.mark.usefixtures("module")
def test_no_thread_can_be_started():
    """The letter is sent at once then."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_THREADS], capture_output=True, text=True, check=False
    )
    result = int(_pulsar.Result.ProducerNotInitialized)
    assert (f"([], [('token', False, {result})])\n", "") == (done.stdout, done.stderr)
