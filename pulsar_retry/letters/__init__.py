"""What a letter is and where it goes. Pure: no client, no clock, no thread."""
