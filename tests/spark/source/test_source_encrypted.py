"""Encrypted letters: rows with the key, and an error or a warning without it, but never silence."""

from __future__ import annotations

import pulsar
import pyarrow as pa
import pytest

from pulsar_retry import ConfigError
from pulsar_retry.native.loading import Native
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import Task, send_batches
from pulsar_retry_spark.source import extent, reading
from pulsar_retry_spark.source.batch import schema
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.source import FailureReader
from pulsar_retry_spark.source.unlimited import UnlimitedStreamReader
from support.encrypting import key_files
from support.spark.sourcing import Micro

pytestmark = pytest.mark.usefixtures("closed_clients")

#: What is written: a letter is encrypted if its name says so; a batch is one entry.
ORDERS = {
    "between": ["a", "encrypted", "b"],
    "batch between": ["a", "encrypted,encrypted", "b"],
    "first": ["encrypted", "a"],
    "last": ["a", "encrypted"],
    "batch last": ["a", "encrypted,encrypted"],
    "alone": ["encrypted"],
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Wait less for letters that never come."""
    monkeypatch.setattr(reading, "_UNCERTAIN_LOOKS", 3)


@pytest.fixture
def keys(tmp_path):
    """Give options with a new pair of keys."""
    public, private = key_files(tmp_path)
    return {"crypto.public_key_file": public, "crypto.private_key_file": private}


@pytest.fixture
def write(letters, keys):
    """Return a function that writes letters to the dead-letter topic, and returns them."""

    def write(order):
        written = []
        for entry in ORDERS[order]:
            texts = [each.encode() for each in entry.split(",")]
            more = {}
            if "encrypted" in entry:
                reader = pulsar.CryptoKeyReader(*keys.values())
                more = {"encryption_key": "key", "crypto_key_reader": reader}
            producer = letters.client.create_producer(
                letters.dead,
                batching_enabled=len(texts) > 1,
                batching_max_publish_delay_ms=60_000,
                **more,
            )
            for each in texts:
                producer.send_async(each, None)
            producer.flush()
            producer.close()
            written += texts
        return written

    return write


def batch(options, **more):
    """Return the payloads that a batch query reads."""
    reader = FailureReader(options | more, schema())
    return [
        payload
        for each in reader.partitions()
        for rows in reader.read(each)
        for payload in rows.column("payload").to_pylist()
    ]


def stream(options, **more):
    """Return the payloads that a stream reads."""
    micro = Micro(options | more)
    try:
        return [each for rows in micro.run_all() for each in rows]
    finally:
        micro.kill()


def earlier_stream(options, **more):
    """Return the payloads that a stream reads before Spark 4.2."""
    reader = UnlimitedStreamReader(SourceOptions.parse(options | more, streaming=True))
    try:
        return [
            payload
            for each in reader.partitions({}, reader.latestOffset())
            for rows in reader.read(each)
            for payload in rows.column("payload").to_pylist()
        ]
    finally:
        reader.stop()


@pytest.mark.parametrize("native", ["1", "0"], ids=["native", "python"])
@pytest.mark.parametrize("read", [batch, stream])
@pytest.mark.parametrize("order", ORDERS)
def test_letters_that_cannot_be_decrypted(
    letters, write, keys, read, order, native, monkeypatch, caplog
):
    """They fail the query, or are left out with a warning; with the key they are rows."""
    if native == "0":
        monkeypatch.setattr(reading, "native_rows", lambda: Native(None, "a test"))
    written = write(order)

    with pytest.raises(PulsarSourceError, match=r"UNREADABLE\].*crypto\.private_key_file"):
        read(letters.options)

    plain = [each for each in written if each != b"encrypted"]
    assert plain == read(letters.options, fail_on_data_loss="false")
    assert "encrypted" in caplog.text

    assert written == read(letters.options | keys)


@pytest.mark.parametrize("read", [batch, stream, earlier_stream])
@pytest.mark.parametrize("plain", [[], [b"a"]], ids=["alone", "last"])
def test_encrypted_chunks_at_the_end(letters, keys, read, plain, monkeypatch, caplog):
    """Nothing follows that would show that they did not come: they are left out with a warning.

    Nothing tells them from a part of a message. A batch fails if there is nothing else.
    """
    for where, name in [
        (extent, "_FIRST_TIMEOUT_MS"),
        (extent, "_LAST_TIMEOUT_MS"),
        (reading, "_LAST_PATIENCE_MS"),
    ]:
        monkeypatch.setattr(where, name, 1_000)  # for what does not come
    letters.send(*plain)
    chunked = letters.client.create_producer(
        letters.dead,
        batching_enabled=False,
        chunking_enabled=True,
        encryption_key="key",
        crypto_key_reader=pulsar.CryptoKeyReader(*keys.values()),
    )
    chunked.send(bytes(6_000_000))
    if read is batch and not plain:
        with pytest.raises(PulsarSourceError, match=r"TIMEOUT\].*encrypted.*fail_on_data_loss"):
            read(letters.options)

    assert plain == read(letters.options, fail_on_data_loss="false")
    assert "left out: they are incomplete, or encrypted in chunks" in caplog.text


def test_letters_are_written_encrypted(letters, keys):
    """With the name of a key; somebody with the keys is asked for it."""
    given = SinkOptions.parse(
        letters.options | keys | {"max_attempts": "1", "crypto.key_name": "key"}
    )
    rows = [pa.record_batch({"payload": [b"%d" % n for n in range(10)]})]
    assert 10 == send_batches(rows, given, Task()).rows

    with pytest.raises(PulsarSourceError, match="UNREADABLE"):
        batch(letters.options)
    assert [b"%d" % n for n in range(10)] == batch(letters.options | keys)

    with pytest.raises(ConfigError, match=r"crypto\.key_name=None: expected the name of the key"):
        SinkOptions.parse(letters.options | keys)
    plain = SinkOptions.parse(letters.options | keys | {"crypto.key_name": "none"})
    assert plain.encryption_key is None
