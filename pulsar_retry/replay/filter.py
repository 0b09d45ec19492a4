"""A selection of dead letters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.envelope import read_envelope


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _numbers(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _ids(value: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(_without_defaults(each) for each in _texts(value))


def _without_defaults(message_id: str) -> str:
    """Return an id without a partition and a batch index that say "none"."""
    while message_id.endswith(":-1"):
        message_id = message_id.removesuffix(":-1")
    return message_id


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
        ids: The message ids of the letters, as they are printed.
        search: Texts that occur in the reason, the error, its message, a property or the payload;
            upper and lower case are the same. All of them must occur.
        attempt: The number of the attempt that failed.
    """

    reason: Sequence[str] = attrs.field(default=(), converter=_texts)
    error: Sequence[str] = attrs.field(default=(), converter=_texts)
    fingerprint: Sequence[str] = attrs.field(default=(), converter=_texts)
    key: Sequence[str] = attrs.field(default=(), converter=_texts)
    since: datetime | None = attrs.field(default=None, validator=_zoned)
    until: datetime | None = attrs.field(default=None, validator=_zoned)
    properties: Mapping[str, str] = attrs.field(factory=dict)
    ids: Sequence[str] = attrs.field(default=(), converter=_ids)
    search: Sequence[str] = attrs.field(default=(), converter=_texts)
    attempt: Sequence[int] = attrs.field(default=(), converter=_numbers)

    def __attrs_post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            times = f"{self.since.isoformat()} and {self.until.isoformat()}"
            raise ConfigError(f"until: expected a time after since, got {times}")

    @property
    def takes_all(self) -> bool:
        """Whether there are no conditions."""
        return self == _ALL

    def matches(
        self,
        properties: Mapping[str, str],
        key: str | None,
        published: datetime,
        *,
        message_id: str = "",
        payload: Callable[[], bytes] = bytes,
    ) -> bool:
        """Tell whether a letter matches.

        Args:
            properties: Its properties.
            key: Its partition key.
            published: When the letter itself was published.
            message_id: Its message id.
            payload: Returns its payload; it is called only for a search.
        """
        if self.ids and _without_defaults(message_id) not in self.ids:
            return False
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
            and (not self.attempt or failure.attempt in self.attempt)
            and (self.since is None or when >= self.since)
            and (self.until is None or when < self.until)
            and self._is_found(properties, payload)
        )

    def _is_found(self, properties: Mapping[str, str], payload: Callable[[], bytes]) -> bool:
        """Tell whether all texts of the search occur; all details of a failure are properties."""
        if not self.search:
            return True
        texts = [*properties.values(), payload().decode("utf-8", "replace")]
        found = "\n".join(texts).casefold()
        return all(each.casefold() in found for each in self.search)


_ALL = Filter()
