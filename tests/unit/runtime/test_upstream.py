"""pulsar-client's private names."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import pulsar_retry
from pulsar_retry.runtime import upstream

PACKAGE = Path(pulsar_retry.__file__).parent
TEXT = "\n".join(each.read_text(encoding="utf-8") for each in PACKAGE.rglob("*.py"))


def test_the_error_names_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the version, for whoever upgraded pulsar-client."""
    names = {"Consumer": ("_consumer", "_gone"), "Message": ("data",), "Lost": ("_one",)}
    monkeypatch.setattr(upstream, "NEEDED", {"pulsar": names})
    lacks = f"pulsar-client {pulsar.__version__} lacks pulsar.Consumer._gone, pulsar.Lost._one,"
    with pytest.raises(ImportError, match=re.escape(lacks)):
        upstream.check(pulsar)


def test_the_error_of_an_older_pulsar_client_says_which_is_needed() -> None:
    """It comes before that of an import from pulsar.asyncio, which names no version."""
    program = "import pulsar.asyncio; del pulsar.asyncio.Reader; import pulsar_retry.asyncio"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "lacks pulsar.asyncio.Reader" in done.stderr
    assert "install pulsar-client 3.13 or later" in done.stderr


#: Makes the installed pulsar-client a later one.
_LATER = """
import inspect, _pulsar, pulsar
pulsar.__version__ = "3.14.0"
original = pulsar.Client.subscribe
def subscribe(self, *args, newest=None, **kwargs):
    return original(self, *args, **kwargs)
known = inspect.signature(original)
newest = inspect.Parameter("newest", inspect.Parameter.KEYWORD_ONLY, default=None)
subscribe.__signature__ = known.replace(parameters=[*known.parameters.values(), newest])
pulsar.Client.subscribe = subscribe
"""

_USE = """
import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
memory = MemoryBroker()
consumer = memory.client().subscribe(
    "orders", "billing", pulsar.ConsumerType.Shared, enable_retry=True
)
memory.client().create_producer("orders").send(b"tea")
consumer.reconsume_later(consumer.receive(5000), delay=0)
assert pr.attempt_of(consumer.receive(5000)) == 2
memory.close()
"""


def run_later(program: str) -> tuple[int, str]:
    """Run *program* with a later pulsar-client; return its exit code and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", _LATER + program], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_a_later_pulsar_client_is_used() -> None:
    """A new argument of its own does no harm."""
    assert (0, "") == run_later(_USE)


@pytest.mark.parametrize("name", ["_pulsar.Consumer.batch_receive", "pulsar.schema.Schema"])
def test_what_a_later_pulsar_client_lacks_is_told_at_once(name: str) -> None:
    """At the import, rather than in the middle of the work."""
    code, errors = run_later(f"del {name}\nimport pulsar_retry\npulsar_retry.Client")
    assert (1, True) == (code, f"ImportError: pulsar-client 3.14.0 lacks {name}" in errors)


def test_every_private_name_of_pulsar_client_is_listed() -> None:
    """What the package uses outside of its own classes is its own, or is listed."""
    used = {
        name
        for line in TEXT.splitlines()
        if "noqa: SLF001" in line
        for name in re.findall(r"\w\.(_[a-z]\w*)", line.partition("#")[0])
    }
    own = set(re.findall(r"(?:self|cls)\.(_[a-z]\w*)(?::[^=]+)? = |def (_[a-z]\w*)\(", TEXT))
    own = {name for both in own for name in both} | set(
        re.findall(r"^    (_\w+): ", TEXT, re.MULTILINE)
    )
    listed = {
        name
        for module in ("pulsar", "pulsar.schema", "pulsar.asyncio")
        for each in upstream.NEEDED[module].values()
        for name in each
    }
    of_python = {"_at_fork_reinit"}  # the standard library itself uses it
    assert used - own - listed - of_python == set()
    assert {"_consumer", "_message", "_msg_id", "_producer"} <= listed


@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_what_is_being_opened_ends_with_the_client(how: str) -> None:
    """pulsar-client forgets it, and an asyncio program would never end."""
    asked, ended = Future[Any](), Future[Any]()
    raw = SimpleNamespace(
        subscribe_async_v2=lambda *arguments: asked.set_result(arguments[-1]),
        **{how: lambda: None},
    )
    opener = upstream.Opener(raw)

    def opening() -> None:
        try:
            opener.subscribe("orders", "billing", None)
        except pulsar.PulsarException as error:
            ended.set_result(error)

    threading.Thread(target=opening, daemon=True).start()
    call_back = asked.result(60)
    getattr(opener, how)()
    assert isinstance(ended.result(60), pulsar.AlreadyClosed)
    call_back(object())  # too late: an error would end the process on a thread of pulsar-client
