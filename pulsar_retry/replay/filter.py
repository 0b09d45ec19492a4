"""A selection of dead letters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.codecs import read_envelope


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _zoned(_: object, attribute: attrs.Attribute[datetime | None], value: datetime | None) -> None:
    if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
        raise ConfigError.bad(attribute.name, value, "a datetime with a time zone")


@attrs.frozen(kw_only=True)
class Filter:
    """A selection of dead letters: those that match all given conditions. By default all match.

    If a condition has several values, one of them must match. A letter without the information does
    not match.

    Attributes:
        reason: Why they are dead, such as ``invalid``.
        error: The class of the error.
        fingerprint: An id that errors from the same place in the code share.
        key: The partition key.
        since: Dead since this time: the time of the failure, or of the letter itself if the letter
            does not give it.
        until: Dead before this time.
        properties: Properties and their values.
    """

    reason: Sequence[str] = attrs.field(default=(), converter=_texts)
    error: Sequence[str] = attrs.field(default=(), converter=_texts)
    fingerprint: Sequence[str] = attrs.field(default=(), converter=_texts)
    key: Sequence[str] = attrs.field(default=(), converter=_texts)
    since: datetime | None = attrs.field(default=None, validator=_zoned)
    until: datetime | None = attrs.field(default=None, validator=_zoned)
    properties: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def takes_all(self) -> bool:
        """Whether there are no conditions."""
        return self == Filter()

    def matches(self, properties: Mapping[str, str], key: str | None, published: datetime) -> bool:
        """Tell whether a letter matches.

        Args:
            properties: Its properties.
            key: Its partition key.
            published: When the letter itself was published.
        """
        if any(properties.get(name) != text for name, text in self.properties.items()):
            return False
        if self.key and key not in self.key:
            return False
        failure = read_envelope(properties)
        when = failure.when or published
        return (
            (not self.reason or failure.reason in self.reason)
            and (not self.error or failure.error in self.error)
            and (not self.fingerprint or failure.fingerprint in self.fingerprint)
            and (self.since is None or when >= self.since)
            and (self.until is None or when < self.until)
        )
