"""The managed subscriber and the synchronous pull, both built on the consumer.

The modules in `rules` are pure: the caller passes the time, and they use neither threads nor a
broker.
"""
