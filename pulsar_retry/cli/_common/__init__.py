"""What several commands share: options, output, and reaching the cluster."""
