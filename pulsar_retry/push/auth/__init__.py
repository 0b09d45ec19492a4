"""Proof of the sender: tokens and signatures, made and verified."""
