"""Time, threads, forks, and the handles of pulsar-client, for every shell."""
