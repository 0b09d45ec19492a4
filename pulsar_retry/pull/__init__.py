"""The managed subscriber and the synchronous pull, both built on the consumer.

The modules in `rules` are pure: the caller passes the time, and they use neither threads nor a
broker. `engine` has the threads and the state of a subscriber, and `workers` calls the handlers.
"""

from pulsar_retry import _lazy

__getattr__, __all__ = _lazy.attach(__name__)  # the names are in __init__.pyi
