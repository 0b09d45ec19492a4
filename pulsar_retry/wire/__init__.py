"""The wire format: topic names and message properties, as in Java, Go and TDMQ. Pure."""
