"""Tests of what only a newer pulsar-client, or a newer Pulsar, can do."""

from __future__ import annotations

import os

import _pulsar
import pytest

#: `pulsar_retry.asyncio`, and null values.
SINCE_3_13 = pytest.mark.skipif(
    not hasattr(_pulsar.Message, "has_null_value"), reason="pulsar-client 3.13 can do this"
)

#: `tools/old_pulsar.py` runs 2.7.2 to 3.2.0.
NOT_ON_AN_OLD_PULSAR = pytest.mark.skipif(
    os.environ.get("OLD_PULSAR", "").startswith("2."),
    reason="skipped, because Pulsar 2 counts what a closed consumer had as redelivered",
)
