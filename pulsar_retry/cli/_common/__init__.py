"""Common code of several commands: options, output, and the connection to the cluster."""
