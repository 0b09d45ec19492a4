"""Deterministic simulation of the package on the broker in memory."""
