"""Proof of the sender: tokens, made and verified."""
