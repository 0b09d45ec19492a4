"""Snapshots of a subscription: taken, stored, and restored."""
