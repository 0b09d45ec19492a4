"""Positions in a topic, in the spellings that Pulsar has for them. Pure."""

from __future__ import annotations

import re
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError

_NUMBERS = re.compile(r"-?[0-9]{1,19}([:,]-?[0-9]{1,19}){1,3}", re.ASCII)


@attrs.frozen(order=True)
class Position:
    """A message's place in a topic, or in one partition. Sorts as the messages of a partition do.

    Attributes:
        ledger: The ledger.
        entry: The entry in it; -1: before its first.
        partition: The partition; -1: none, or not known.
        batch: The message in the entry; -1: the entry is no batch, or all of it is meant.
    """

    ledger: int
    entry: int
    partition: int = -1
    batch: int = -1

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``ledger:entry[:partition[:batch]]``, also in pulsar-client's brackets.

        Raises:
            ConfigError: it is none.
        """
        bare = text[1:-1] if text[:1] == "(" and text[-1:] == ")" else text
        if not _NUMBERS.fullmatch(bare):
            raise ConfigError.bad("message id", text, "ledger:entry[:partition[:batch]]")
        return cls(*map(int, re.split("[:,]", bare)))

    @classmethod
    def of(cls, message_id: Any) -> Position:
        """Read a `pulsar.MessageId`, or a `_pulsar.MessageId`; of a chunked one its last chunk."""
        return cls.parse(str(message_id).rsplit(";", maxsplit=1)[-1])

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
        """Return it as the REST API takes it."""
        facts = {"ledgerId": self.ledger, "entryId": self.entry, "partitionIndex": self.partition}
        return facts if self.batch < 0 else {**facts, "batchIndex": self.batch}

    def __str__(self) -> str:
        """Return it as the Java client prints it: no batch where there is none."""
        text = f"{self.ledger}:{self.entry}:{self.partition}"
        return text if self.batch < 0 else f"{text}:{self.batch}"
