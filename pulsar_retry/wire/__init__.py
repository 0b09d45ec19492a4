"""What is on the wire: topic names and message properties, as Java, Go and TDMQ have them. Pure."""
