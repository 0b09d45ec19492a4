"""The options of a subscriber, checked before anything is opened."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import attrs
import pulsar

from pulsar_retry.consumer.arguments import check_nameable, letter_encryption
from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.hooks import Hooks, checked_hooks
from pulsar_retry.policy.checks import not_blank, one_of, whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.engine.hand import AdmissionControl
from pulsar_retry.pull.settings import Breaker, FlowControl, Lanes, Lease, Letters
from pulsar_retry.pull.typed import of_message

#: Where handlers run.
Workers = Literal["threads", "processes"]
Redelivery = Literal["letters", "nack"]
THREADS: Workers = "threads"
PROCESSES: Workers = "processes"
LOOP: Literal["loop"] = "loop"


@attrs.frozen(kw_only=True)
class Options:
    """The arguments of `Client.subscriber` and `Client.pull`."""

    topic: Any
    subscription: str
    handler: Callable[[Any], Any] | None = None
    retry_policy: RetryPolicy | None = None
    dead_letter_policy: DeadLetterPolicy | None = None
    flow_control: FlowControl = attrs.Factory(FlowControl)
    concurrency: int = 10
    workers: Workers | Literal["loop"] = THREADS
    consumer_type: pulsar.ConsumerType | None = None
    redelivery: Redelivery = "letters"
    lease: Lease = attrs.Factory(Lease)
    lanes: Lanes = attrs.Factory(Lanes)
    breaker: Breaker | None = attrs.Factory(Breaker)
    letters: Letters = attrs.Factory(Letters)
    schema: Any = attrs.Factory(pulsar.schema.BytesSchema)
    initial_position: pulsar.InitialPosition = pulsar.InitialPosition.Earliest
    consumer_name: str | None = None
    crypto_key_reader: pulsar.CryptoKeyReader | None = None
    hooks: Hooks | None = None
    #: A dispatcher sets these two: a control that holds messages back, and a context manager that
    #: the event loop of the workers enters.
    admission: AdmissionControl | None = None
    around: AbstractAsyncContextManager[object] | None = None

    @property
    def letter_topics(self) -> DeadLetterPolicy:
        """The topics of letters. Its limit is never reached: the retry policy counts attempts."""
        policy = self.dead_letter_policy or DeadLetterPolicy()
        return attrs.evolve(policy, max_redeliver_count=2**31 - 1)


def checked_options(**arguments: Any) -> Options:
    """Check the arguments that `subscribe` does not check, and return the options.

    Raises:
        ConfigError: an argument is invalid.
    """
    topic = arguments["topic"]
    if not (isinstance(topic, list) and topic):
        not_blank("topic", topic, "the name of a topic, or a list of names")
    not_blank("subscription", arguments["subscription"], "a name that is not blank")
    for name, kind, optional in _KINDS:
        value = arguments.get(name)
        if name in arguments and not isinstance(value, kind) and not (optional and value is None):
            accepted = f"a {kind.__module__.partition('.')[0]}.{kind.__name__}"
            raise ConfigError.bad(name, value, accepted + " or None" * optional)
    if "concurrency" in arguments:
        whole("concurrency", arguments["concurrency"])
    one_of("redelivery", arguments.get("redelivery", "letters"), ("letters", "nack"))
    one_of("workers", arguments.get("workers", THREADS), (THREADS, PROCESSES))
    policy = arguments.get("dead_letter_policy")
    arguments["dead_letter_policy"] = None if policy is None else DeadLetterPolicy.of(policy)
    checked_hooks(arguments.get("hooks"))
    options = Options(**arguments)
    is_retried = options.redelivery == "letters"
    check_nameable(options.subscription, options.letter_topics, retry=is_retried)
    letter_encryption(
        options.letter_topics,
        options.crypto_key_reader,
        options.letters.letter_encryption_key,
        options.letters.plain_letters,
    )
    return options


def with_handler(options: Options) -> Options:
    """Check the handler, set where it runs, and make it a function of a message.

    A worker process does the last by itself.

    Raises:
        ConfigError: the handler is not callable, cannot take a message or a payload, or cannot run
            there.
        ModuleNotFoundError: its type needs an extra that is not installed.
    """
    handler = options.handler
    _check_handler(handler)
    assert handler is not None  # it was checked
    if not _is_async(handler):
        workers = options.workers
    elif options.workers == PROCESSES:
        raise ConfigError.bad("workers", PROCESSES, '"threads", because the handler is async def')
    else:
        workers = LOOP
    of_messages = of_message(handler, options.schema)
    if workers == PROCESSES:
        from pulsar_retry.pull.workers.processes import pickled, recipe  # few need it

        pickled("handler", handler)
        pickled("schema", recipe(options.schema))
        return attrs.evolve(options, workers=workers)
    return attrs.evolve(options, workers=workers, handler=of_messages)


def effective(options: Options) -> RetryPolicy:
    """Return the retry policy, with the count of the dead-letter policy if it has none itself.

    Raises:
        ConfigError: the retry policy is not a `RetryPolicy`.
    """
    policy, letters = options.retry_policy, options.dead_letter_policy
    if policy is None:
        policy = RetryPolicy()
    elif not isinstance(policy, RetryPolicy):
        raise ConfigError.bad("retry_policy", policy, "a pulsar_retry.RetryPolicy or None")
    return policy if letters is None else policy.within(letters)


def _check_handler(handler: Any) -> None:
    """Check that *handler* can be called and then has run.

    Raises:
        ConfigError: the handler is not callable, or is a generator function, which does not run
            when it is called.
    """
    accepted = "a function of one message, def or async def"
    if not callable(handler):
        raise ConfigError.bad("handler", handler, accepted)
    forms = _forms(handler)
    if any(map(inspect.isgeneratorfunction, forms)) or any(map(inspect.isasyncgenfunction, forms)):
        raise ConfigError.bad("handler", handler, f"{accepted}, without a yield")


def _is_async(handler: Callable[[Any], Any]) -> bool:
    """Tell whether a handler (function, method or object with `__call__`) is ``async def``."""
    return any(map(inspect.iscoroutinefunction, _forms(handler)))


def _forms(handler: Any) -> tuple[Any, Any]:
    """Return a handler, and the method that is called if it is an object."""
    return handler, getattr(handler, "__call__", None)  # noqa: B004 - what it is


_KINDS: tuple[tuple[str, type, bool], ...] = (
    ("retry_policy", RetryPolicy, True),
    ("flow_control", FlowControl, False),
    ("lease", Lease, False),
    ("lanes", Lanes, False),
    ("breaker", Breaker, True),
    ("letters", Letters, False),
    ("consumer_type", pulsar.ConsumerType, True),
    ("schema", pulsar.schema.Schema, False),
    ("initial_position", pulsar.InitialPosition, False),
    ("consumer_name", str, True),
    ("crypto_key_reader", pulsar.CryptoKeyReader, True),
)
