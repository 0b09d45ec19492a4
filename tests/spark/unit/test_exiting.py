"""A driver ends well whose connection has a token file."""

from __future__ import annotations

from pathlib import Path

from support.ending import end_of


def test_a_token_file_aborts_no_driver_at_its_end(tmp_path: Path):
    """The function that reads it is never destroyed, so no thread does it at the end."""
    (tmp_path / "token").write_text("t")
    imports = "from pulsar_retry_spark import clients\nfrom pulsar_retry_spark.connection import *"
    body = f"""
ClusterConnection.read_token = Supplier()
connection = ClusterConnection("pulsar://127.0.0.1:1", token_file={str(tmp_path / "token")!r})
with clients.lease(connection):
    del ClusterConnection.read_token
"""
    assert end_of(imports, body) == (0, "")
