"""Time, threads, forks, and pulsar-client's handles, for all layers above."""
