"""Snapshots of a subscription: how they are made, stored, and restored."""
