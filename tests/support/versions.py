"""Tests of what only a newer pulsar-client can do."""

from __future__ import annotations

import _pulsar
import pytest

#: `pulsar_retry.asyncio`, and null values.
SINCE_3_13 = pytest.mark.skipif(
    not hasattr(_pulsar.Message, "has_null_value"), reason="pulsar-client 3.13 can do this"
)
