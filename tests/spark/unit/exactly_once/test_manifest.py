"""Fingerprints of rows, also those of an earlier release."""

from __future__ import annotations

from pulsar_retry_spark.exactly_once.manifest import fingerprint, same_rows


def test_a_fingerprint_that_release_020_kept():
    """It has no sum, and the same rows are still the same."""
    now = fingerprint(3, -1, 5)
    assert "3 rows, ffffffffffffffff-0000000000000005" == now
    assert same_rows(now, now)
    assert same_rows(now, "3 rows, ffffffffffffffff")
    assert not same_rows(now, "3 rows, fffffffffffffffe")
    assert not same_rows(now, fingerprint(3, -1, 6))


def test_a_stream_has_none():
    """Its micro-batches are numbered."""
    assert same_rows(None, None)
    assert not same_rows(None, fingerprint(0, 0, 0))
    assert not same_rows(fingerprint(0, 0, 0), None)
