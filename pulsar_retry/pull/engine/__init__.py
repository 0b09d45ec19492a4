"""The engine of a subscriber: it receives messages, hands them to workers, and settles them."""
