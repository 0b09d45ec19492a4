"""Brokers and clusters to test on, and what stands between them and their clients."""
