"""Keys that encrypt messages."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import rsa


def key_files(folder: Path) -> list[str]:
    """Write a new public and a new private key to *folder*, and return their files in this order.

    `pulsar.CryptoKeyReader` takes these files.
    """
    private = rsa.generate_private_key(65537, 2048)
    files = [folder / "public.pem", folder / "private.pem"]
    public_form = (pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    private_form = (pem.Encoding.PEM, pem.PrivateFormat.TraditionalOpenSSL, pem.NoEncryption())
    files[0].write_bytes(private.public_key().public_bytes(*public_form))
    files[1].write_bytes(private.private_bytes(*private_form))
    return [str(file) for file in files]
