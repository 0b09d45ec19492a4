"""Imported first: says what to install where the extra is missing."""

from pulsar_retry._extras import need

need("push", "pulsar_retry.push", "h11", "h2", "jwt", "cryptography")
