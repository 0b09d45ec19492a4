"""The sink: where each failed row goes, and the code that sends it."""
