"""How the letters of a subscription are named and written."""

from __future__ import annotations

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Levels, levels_of
from pulsar_retry.policy.checks import Duration
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import Naming, NamingLike


def _naming(value: NamingLike) -> Naming:
    return Naming.of(value)


@attrs.frozen(kw_only=True)
class Letters:
    """How the letters of a subscription are named and written.

    Attributes:
        naming: The rules for the names of letters' topics that no policy names.
        pubsub_attributes: Whether letters also have the attributes that Pub/Sub adds to dead
            letters: ``CloudPubSubDeadLetterSource…``. They are always read.
        redact: A function that is called with ``reason``, ``message`` or ``traceback``, and the
            text of it, before a letter takes the text out of the process. It returns the text to
            publish, or None.
        letter_send_timeout: Seconds, or a timedelta. A letter without a receipt after this time has
            failed.
        delay_levels: The table of the consumer's delay levels, such as ``"1s 10s 1m"``.
        letter_encryption_key: The name of the key that encrypts letters. With a key reader, either
            this or *plain_letters* is required (`Client.subscribe`).
        plain_letters: Publish letters unencrypted, although messages are decrypted.

    Raises:
        ConfigError: *naming*, *redact* or *delay_levels* is invalid. The other values are checked
            where they are used.
    """

    naming: Naming = attrs.field(default=Naming.PULSAR, converter=_naming)
    pubsub_attributes: bool = False
    redact: Redact | None = attrs.field(default=None)
    letter_send_timeout: Duration = 30.0
    delay_levels: Levels = attrs.field(default=Levels(), converter=levels_of)
    letter_encryption_key: str | None = None
    plain_letters: bool = False

    @redact.validator
    def _callable(self, _attribute: object, value: object) -> None:
        if value is not None and not callable(value):
            raise ConfigError.bad("redact", value, "a function of a name and a text, or None")
