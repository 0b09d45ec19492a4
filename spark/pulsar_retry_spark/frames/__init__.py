"""Frames, rows and columns. Pure, but for what Spark is asked."""
