"""Failed rows of Spark jobs to Pulsar retry and dead-letter topics, and back."""
