"""Raises an error that says what to install if the extra ``push`` is missing. Imported first."""

from pulsar_retry._extras import need

need("push", "pulsar_retry.push", "h11", "jwt", "cryptography")
