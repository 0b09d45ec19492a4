"""The source: retry and dead-letter topics as rows, in a batch or a stream."""
