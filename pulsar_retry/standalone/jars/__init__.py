"""Pulsar's jars: fetched once, and kept."""
