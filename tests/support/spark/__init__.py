"""Letters for Spark to read, and looks at its processes, to kill or to measure them."""
