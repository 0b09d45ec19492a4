"""Imported first: it says what to install if the extra is missing."""

from pulsar_retry._extras import need

need("push", "pulsar_retry.push", "h11", "h2", "jwt", "cryptography")
