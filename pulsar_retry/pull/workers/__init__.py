"""What calls the handler: threads, an event loop, processes."""
