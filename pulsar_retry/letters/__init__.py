"""The content and the target of letters. Pure: no client, no clock, no thread."""
