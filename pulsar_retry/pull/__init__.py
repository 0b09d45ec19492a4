"""The managed subscriber and the synchronous pull, on top of the consumer.

`flow`, `lease`, `lanes`, `breaker` and `quarantine` are pure: they are told the time and know
neither a thread nor a broker.
"""
