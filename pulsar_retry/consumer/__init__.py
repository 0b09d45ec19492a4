"""The shells over pulsar-client: client, consumer, letters, negative acknowledgements."""
