"""Letters that wait for their delay are cancelled, or made due now."""
