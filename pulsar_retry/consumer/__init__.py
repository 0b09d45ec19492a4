"""The layer above pulsar-client: client, consumers, hand-off of letters, and nacks."""
