"""Nacks: the pending ones, and when they are given to pulsar-client."""
