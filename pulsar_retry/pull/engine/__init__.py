"""What takes messages in, hands them to workers, and settles them."""
