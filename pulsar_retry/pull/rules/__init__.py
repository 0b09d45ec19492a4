"""What a subscriber goes by. Pure: no client, no thread."""
