"""Durable ordered lanes: failed messages wait in a stream, and their successors behind them."""
