"""Positions in a topic, in the text forms that Pulsar uses. Pure."""

from __future__ import annotations

import re
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError

_NUMBERS = re.compile(r"-?[0-9]{1,19}([:,]-?[0-9]{1,19}){1,3}", re.ASCII)


@attrs.frozen(order=True)
class Position:
    """The position of a message in a topic or partition. It sorts as messages of a partition do.

    Attributes:
        ledger: The ledger.
        entry: The entry in the ledger; -1: before its first entry.
        partition: The partition; -1: there is none, or it is not known.
        batch: The message in the entry; -1: the entry is not a batch, or the whole entry is meant.
    """

    ledger: int
    entry: int
    partition: int = -1
    batch: int = -1

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse ``ledger:entry[:partition[:batch]]``; pulsar-client's brackets are accepted too.

        Raises:
            ConfigError: the text is not a position.
        """
        bare = text[1:-1] if text[:1] == "(" and text[-1:] == ")" else text
        if not _NUMBERS.fullmatch(bare):
            raise ConfigError.bad("message id", text, "ledger:entry[:partition[:batch]]")
        return cls(*map(int, re.split("[:,]", bare)))

    @classmethod
    def of(cls, message_id: Any) -> Position:
        """Return the position of a message id, raw or not; if it is chunked, of its last chunk."""
        return cls.parse(str(message_id).rsplit(";", maxsplit=1)[-1])

    @classmethod
    def of_first(cls, message_id: Any) -> Position:
        """Return the position of a message id, raw or not; if it is chunked, of its first chunk."""
        return cls.parse(str(message_id).partition(";")[0])

    @classmethod
    def read(cls, facts: Any) -> Position:
        """Read the JSON of the REST API."""
        return cls(
            int(facts["ledgerId"]),
            int(facts["entryId"]),
            int(facts.get("partitionIndex", -1)),
            int(facts.get("batchIndex", -1)),
        )

    def json(self) -> dict[str, int]:
        """Return the position as JSON for the REST API."""
        facts = {"ledgerId": self.ledger, "entryId": self.entry, "partitionIndex": self.partition}
        return facts if self.batch < 0 else {**facts, "batchIndex": self.batch}

    def __str__(self) -> str:
        """Return the position in the Java client's text form, without a batch if there is none."""
        text = f"{self.ledger}:{self.entry}:{self.partition}"
        return text if self.batch < 0 else f"{text}:{self.batch}"
