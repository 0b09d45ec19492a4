"""Negative acknowledgements: what is pending, and when it is handed over."""
