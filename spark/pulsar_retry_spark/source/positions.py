"""The position of a reader in a partition, and the offsets that Spark stores. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from pulsar_retry.errors import ConfigError

_TEXT = re.compile(r"(\d{1,19}):(-1|\d{1,19}):(-1|\d{1,19})", re.ASCII)

#: A mark in the offset of a stream that starts at the end: earlier messages were left out.
LATEST = {"starting": "latest"}


class MessagePosition(NamedTuple):
    """The position of a message in a partition; positions compare in the order of storage.

    Attributes:
        ledger: The id of the ledger. The ids of a topic's ledgers increase, with gaps.
        entry: The number of the entry in the ledger, from 0.
        batch: The number of the message in its batch, from 0; -1 if the entry is one message.
    """

    ledger: int
    entry: int
    batch: int = -1

    @classmethod
    def of(cls, message_id: object) -> Self:
        """Return the position of a pulsar-client message id; for chunks, that of the last one."""
        return cls(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())  # type: ignore[attr-defined]

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse ``ledger:entry:batch``.

        Raises:
            ConfigError: the text has another form, so the checkpoint is not this source's.
        """
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError.bad(
                "checkpointLocation", text, "an offset in the form ledger:entry:batch"
            )
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.batch}"

    def back(self, entries: int) -> Self:
        """Return the position *entries* before this one, but at most back to the ledger's start."""
        return type(self)(self.ledger, max(0, self.entry - entries))


#: A position after every message.
END = MessagePosition(2**63, 0)


def to_offset(positions: Mapping[str, MessagePosition], marks: Mapping[str, str]) -> dict[str, str]:
    """Return an offset: the last position read of each partition. Equal offsets have equal JSON."""
    texts = {name: str(position) for name, position in positions.items()}
    return dict(sorted({**texts, **marks}.items()))


def from_offset(offset: Mapping[str, str]) -> dict[str, MessagePosition]:
    """Return the positions of an offset.

    Raises:
        ConfigError: the offset is not one of this source.
    """
    return {
        name: MessagePosition.parse(text) for name, text in offset.items() if name not in LATEST
    }
