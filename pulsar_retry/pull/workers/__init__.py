"""The workers that call the handler: threads, an event loop, or processes."""
