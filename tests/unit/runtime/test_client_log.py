"""pulsar-client's own log in a Python logger."""

from __future__ import annotations

import os

import pytest

from support.ending import end_of

_LOGGED = """
import logging
logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout, level="{level}")
import pulsar_retry as pr
"""
_FAILS = """
client = pr.Client(
    "pulsar://127.0.0.1:1", operation_timeout_seconds=1, logger=logging.getLogger("pulsar-client")
)
try:
    client.get_topic_partitions("orders")
except pulsar.PulsarException:
    pass
"""


def test_pulsar_client_s_lines_go_to_a_python_logger():
    """With their level and without pulsar-client's own prefix; those of the end, too."""
    code, said = end_of(_LOGGED.format(level="INFO"), f"{_FAILS}\nclient.close()")

    assert code == 0
    lines = said.splitlines()
    assert any(each.startswith("pulsar-client ERROR ") for each in lines)
    assert any("Closing Pulsar client" in each for each in lines)
    assert all(each.startswith("pulsar-client ") for each in lines)


def test_without_a_logger_they_go_to_the_one_called_pulsar():
    """And not to the console, where nobody has asked for them."""
    fails = _FAILS.replace(', logger=logging.getLogger("pulsar-client")', "")
    code, said = end_of(_LOGGED.format(level="INFO"), f"{fails}\nclient.close()")

    assert code == 0
    assert any(each.startswith("pulsar ERROR ") for each in said.splitlines())
    assert all(each.startswith("pulsar ") for each in said.splitlines())


def test_lines_below_the_logger_s_level_are_not_written():
    """They would cost something, and be thrown away."""
    code, said = end_of(_LOGGED.format(level="ERROR"), _FAILS)

    assert code == 0
    assert "INFO" not in said
    assert "pulsar-client ERROR " in said


@pytest.mark.parametrize("end", ["client.close()", "global kept\nkept = client", "del client"])
def test_a_python_logger_aborts_no_program_at_its_end(end: str):
    """pulsar-client's threads never call Python, so the interpreter's end cannot kill them."""
    code, said = end_of(_LOGGED.format(level="DEBUG"), _FAILS + end)

    assert code == 0
    assert "Python" not in said


_LOGGER = """
import gc, logging, threading, time
import pulsar_retry as pr
URL, LOGGER = "pulsar://127.0.0.1:1", logging.getLogger("pulsar-client")
def threads():
    return sum(each.name == "pulsar-client-log" for each in threading.enumerate())
class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())
"""
_REFUSED = """
try:
    pr.Client(URL, logger=LOGGER, io_threads="many")
except ValueError:
    pass
gc.collect()
"""
_ASYNCIO = """
import asyncio, pulsar_retry.asyncio
async def use():
    async with pulsar_retry.asyncio.Client(URL, logger=LOGGER):
        assert threads() == 1
asyncio.run(use())
"""
_TWO = """
first, second = pr.Client(URL, logger=LOGGER), pr.Client(URL, logger=LOGGER)
first.close()
assert threads() == 1
second.close()
"""


@pytest.mark.parametrize(
    "use",
    [
        pytest.param("with pr.Client(URL, logger=LOGGER): assert threads() == 1", id="closed"),
        pytest.param("with pr.Client(URL): assert threads() == 1", id="without a logger"),
        pytest.param("pr.Client(URL, logger=LOGGER).shutdown()", id="shut down"),
        pytest.param("pr.Client(URL, logger=LOGGER)", id="dropped"),
        pytest.param(_REFUSED, id="never made"),
        pytest.param(_ASYNCIO, id="asyncio"),
        pytest.param(_TWO, id="two of one logger"),
        pytest.param(_TWO.replace("LOGGER)\n", "logging.root)\n"), id="two of two loggers"),
    ],
)
def test_the_last_client_ends_the_thread(use: str):
    """As with pulsar-client, an application that has closed its clients has no thread of theirs."""
    assert end_of(_LOGGER, f"{use}\nprint(threads())") == (0, "0")


def test_a_later_client_s_lines_go_to_its_own_logger():
    """Also after the thread of earlier ones has ended."""
    code, said = end_of(
        _LOGGER,
        """
for name in ("one", "two", "three"):
    logger = logging.getLogger(name)
    logger.addHandler(now := Lines())
    logger.setLevel("INFO")
    with pr.Client(URL, logger=logger): pass
    print(any("Closing Pulsar client" in each for each in now.lines), end=" ")
""",
    )
    assert (code, said) == (0, "True True True")


def test_a_line_that_is_empty_ends_nothing():
    """A message of pulsar-client can have several lines, such as a traceback."""
    code, said = end_of(
        _LOGGER,
        """
LOGGER.addHandler(now := Lines())
client = pr.Client(URL, logger=LOGGER)
for name in ("first\\n\\n", "second"):
    try:
        client.get_topic_partitions(f"{name}://orders")
    except pulsar.PulsarException:
        pass
client.close()
print(sum("second" in each for each in now.lines) > 0, threads())
""",
    )
    assert (code, said) == (0, "True 0")


def test_a_handler_that_raises_stops_nothing():
    """Lines that nobody reads would fill the memory."""
    code, said = end_of(
        _LOGGER,
        """
class Broken(logging.Handler):
    def emit(self, record):
        raise SystemExit if record.levelname == "INFO" else OSError("the disk is full")
LOGGER.setLevel("DEBUG")
LOGGER.addHandler(now := Lines())
LOGGER.addHandler(Broken())
client = pr.Client(URL, logger=LOGGER)
for number in range(30):
    try:
        client.get_topic_partitions(f"{number:02}://" + "x" * 50_000)
    except pulsar.PulsarException:
        pass
client.close()
while threads():  # where errors are slow to be shown, `close` does not wait for all of them
    time.sleep(0.01)
print({number for number in range(30) if any(f"{number:02}://" in each for each in now.lines)})
""",
    )
    assert (code, said) == (0, str(set(range(30))))


_HELD = """
import ctypes
from pulsar_retry.runtime import client_log
class Read(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines, self.began, self.may = [], threading.Event(), threading.Event()
    def emit(self, record):
        self.began.set()
        self.may.wait()
        self.lines.append(record.getMessage())
LOGGER.setLevel("INFO")
LOGGER.addHandler(read := Read())
client = pr.Client(URL, logger=LOGGER)
write = ctypes.PyDLL(None).write  # with the interpreter's lock, as pulsar-client does
def fill(lines, line=b"0 0 INFO  [1] x | " + b"x" * 1000):
    for number in range(lines):
        text = b"%s %d\\n" % (line, number)
        assert write(client_log._log._file, text, len(text)) == len(text)
"""


def test_lines_are_written_while_the_lock_is_held():
    """More than any pipe holds; the reader needs the lock, so pulsar-client must not wait for it.

    The lines come all and in order.
    """
    code, said = end_of(
        _LOGGER + _HELD,
        """
fill(2000)
other = pr.Client(URL, logger=LOGGER)
other.shutdown()
read.may.set()
fill(2000, b"0 0 WARN  [1] x | y")
client.close()
while threads(): pass
ours = [int(each.rpartition(" ")[2]) for each in read.lines if each[:1] in "xy"]
print(ours == [*range(2000), *range(2000)])
""",
    )
    assert (code, said) == (0, "True")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux frees a part of a file")
def test_lines_that_were_read_use_no_memory():
    """A process that logs for months keeps none of it."""
    code, said = end_of(
        _LOGGER + _HELD,
        """
read.may.set()
fill(5000)
while len(read.lines) < 5000 or os.fstat(client_log._log._file).st_blocks > 100:
    time.sleep(0.01)
client.close()
""",
    )
    assert (code, said) == (0, "")


def test_lines_that_are_too_many_are_counted():
    """An application's logger that is too slow costs no more memory than said, and no more time."""
    code, said = end_of(
        _LOGGER + _HELD,
        """
client_log._MOST_WAITING = 1 << 20
fill(1)
read.began.wait()
fill(3000)
read.may.set()
client.close()
while threads(): pass
ours = sum(each[:1] == "x" for each in read.lines)
(dropped,) = (int(each.partition(" ")[0]) for each in read.lines if "were dropped" in each)
print(ours <= 1, dropped >= 3000)
""",
    )
    assert (code, said) == (0, "True True")


def test_clients_that_are_not_ours_never_wait_for_a_reader():
    """pulsar-client writes their lines to the same place as ours; they then go to stderr."""
    code, said = end_of(
        _LOGGER,
        """
LOGGER.setLevel("INFO")
os.dup2(1, 2)
pr.Client(URL, logger=LOGGER).close()
for _ in range(1500):
    pulsar.Client(URL).close()
""",
    )
    assert code == 0
    assert said.count("Closing Pulsar client") == 1500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_a_log_of_its_own():
    """Neither process waits for the other's thread, or reads the other's lines."""
    code, said = end_of(
        _LOGGER,
        """
LOGGER.addHandler(lines := Lines())
LOGGER.setLevel("INFO")
client = pr.Client(URL, logger=LOGGER)
ready, done = os.pipe(), os.pipe()
if os.fork() == 0:
    lines.lines.clear()
    with pr.Client(URL, logger=LOGGER): pass
    os.write(ready[1], b"%d %d" % (threads(), len(lines.lines) > 0))
    os.read(done[0], 1)  # until the parent has closed its client
    os._exit(0)
print(os.read(ready[0], 9).decode(), len(lines.lines), threads(), end=" ")
client.close()
print(threads(), len(lines.lines) > 0)
os.write(done[1], b".")
os.wait()
""",
    )
    assert (code, said) == (0, "0 1 0 1 0 True")
