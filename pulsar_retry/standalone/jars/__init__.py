"""Pulsar's jars: downloaded once, and kept."""
