"""Where a reader stands in a partition, and the offsets that Spark keeps of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from pulsar_retry.errors import ConfigError

_TEXT = re.compile(r"(\d{1,19}):(-1|\d{1,19}):(-1|\d{1,19})", re.ASCII)

#: In the offset of a stream that starts at the end: what it found there has been left out.
LATEST = {"starting": "latest"}


class MessagePosition(NamedTuple):
    """A message in a partition; compares as messages are stored.

    Attributes:
        ledger: The id of the ledger. Ledgers of a topic come one after the other, with gaps.
        entry: The number of the entry in it, from 0.
        batch: The number of the message in a batch, from 0; -1: the entry is one message.
    """

    ledger: int
    entry: int
    batch: int = -1

    @classmethod
    def of(cls, message_id: object) -> Self:
        """Return the position of a message id of pulsar-client; of several chunks, of the last."""
        return cls(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())  # type: ignore[attr-defined]

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read ``ledger:entry:batch``.

        Raises:
            ConfigError: it is something else, so the checkpoint is none of this source's.
        """
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError.bad("checkpointLocation", text, "an offset as ledger:entry:batch")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.batch}"

    def back(self, entries: int) -> Self:
        """Return the position *entries* before this one, or the ledger's first."""
        return type(self)(self.ledger, max(0, self.entry - entries))


#: After every message.
END = MessagePosition(2**63, 0)


def to_offset(positions: Mapping[str, MessagePosition], marks: Mapping[str, str]) -> dict[str, str]:
    """Return an offset: the last position read, by partition. Equal ones are equal as JSON."""
    texts = {name: str(position) for name, position in positions.items()}
    return dict(sorted({**texts, **marks}.items()))


def from_offset(offset: Mapping[str, str]) -> dict[str, MessagePosition]:
    """Return the positions of an offset.

    Raises:
        ConfigError: it is none of this source's.
    """
    return {
        name: MessagePosition.parse(text) for name, text in offset.items() if name not in LATEST
    }
