"""What letters are made of."""

from __future__ import annotations

import _pulsar
import pytest

from pulsar_retry.consumer import outbox
from pulsar_retry.native.loading import Native, native


@pytest.mark.parametrize(
    ("module", "wanted"), [(True, {"a": "\\xff", "b": "ü"}), (False, {})], ids=["native", "python"]
)
def test_properties_are_escaped_or_left_out(monkeypatch, module, wanted):
    """Only the extension module can read properties of which some are not UTF-8."""
    if not module:
        monkeypatch.setattr(outbox, "native", lambda: Native(None, "not here"))
    elif native().module is None:
        pytest.skip(native().why)
    raw = _pulsar.MessageBuilder().properties({"a": b"\xff", "b": "ü"}).build()
    assert wanted == outbox.text_properties(raw)
