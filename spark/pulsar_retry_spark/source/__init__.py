"""Retry and dead-letter topics as rows: a batch, or a stream."""
