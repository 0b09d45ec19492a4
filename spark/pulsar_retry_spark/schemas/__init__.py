"""Values with a schema: what Pulsar's registry says of a topic, as columns of Spark and back."""
