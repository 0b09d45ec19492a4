"""Frames, rows and columns. Pure, except where Spark is asked."""
