"""A broker that is killed while its bookie writes starts again, with all that was acknowledged."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from pulsar_retry.standalone import Standalone
from support.brokers.journals import tear, torn_data, torn_ids, torn_padding

#: It starts a broker four times, which takes a busy machine long.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TIMEOUT_MS = 90_000
SIZE = 300_000


@contextlib.contextmanager
def client_of(broker: Standalone) -> Iterator[pulsar.Client]:
    """Give a quiet client and close it."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=90, logger=logger)
    try:
        yield client
    finally:
        client.close()


def test_a_kill_in_the_middle_of_a_write_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However much of the last entry was written: the topic loads, with all its messages."""
    sent: list[bytes] = []
    with Standalone(tmp_path / "data", fast_start=True) as broker:
        for torn in (torn_data, torn_ids, torn_padding):
            with client_of(broker) as client:
                producer = client.create_producer("torn", send_timeout_millis=90_000)
                for _ in range(3):
                    sent.append(os.urandom(SIZE))
                    producer.send(sent[-1])
            broker.kill()
            file, end = tear(broker.data_dir / "data" / "bookies", torn)
            caplog.clear()
            broker.start()
            assert file.stat().st_size == end
            assert f"from byte {end} on" in caplog.text
            with client_of(broker) as client:
                reader = client.create_reader("torn", pulsar.MessageId.earliest)
                assert [reader.read_next(TIMEOUT_MS).data() for _ in sent] == sent
