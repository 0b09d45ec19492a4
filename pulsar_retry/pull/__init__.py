"""The managed subscriber and the synchronous pull, both built on the consumer.

`settings` has what can be set. `engine` has the threads and the state of a subscriber, and
`workers` calls the handlers.
"""
