"""Combinations of features and faults for the matrix test, without the impossible ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import attrs

#: Each axis and its values.
AXES: Mapping[str, tuple[str, ...]] = {
    "kind": ("Exclusive", "Failover", "Shared", "KeyShared", "sticky"),
    "form": ("plain", "batched", "chunked", "compressed", "avro", "encrypted", "null", "keyed"),
    "topics": ("one", "partitioned", "list", "pattern"),
    "fault": ("retry refuses", "dlq refuses", "nack", "kill", "unload"),
    "shell": ("sync", "asyncio", "listener", "subscriber", "push"),
    "path": ("C++", "Python"),
}

Pair = tuple[tuple[str, str], tuple[str, str]]


@attrs.frozen
class Cell:
    """One combination.

    Attributes:
        kind: The type of the subscription; ``sticky`` is Key_Shared with ranges of hashes.
        form: How messages are published.
        topics: The topics that are subscribed to.
        fault: What goes wrong.
        shell: The interface that receives and settles.
        path: Where letters are handed off; in Python, too, if the C++ path cannot be used here.
    """

    kind: str
    form: str
    topics: str
    fault: str
    shell: str
    path: str

    def __str__(self) -> str:
        return "-".join(attrs.astuple(self)).replace(" ", "_")

    @property
    def is_managed(self) -> bool:
        """Whether a subscriber settles, not the application."""
        return self.shell in {"subscriber", "push"}

    @property
    def is_ordered(self) -> bool:
        """Whether messages of one topic or key are handled one after another."""
        return self.kind != "Shared"

    @property
    def by_letters(self) -> bool:
        """Whether failed messages go to the retry topic; otherwise they are redelivered."""
        in_place = self.is_managed and self.is_ordered
        return self.topics != "pattern" and self.fault != "nack" and not in_place

    def pairs(self) -> Iterator[Pair]:
        """Yield each pair of values that this cell tests together."""
        return itertools.combinations(attrs.asdict(self).items(), 2)


#: Pairs of values that cannot be combined, with the reason. All other pairs are tested.
SENSELESS: Mapping[frozenset[str], str] = {
    frozenset({"subscriber", "pattern"}): "a subscriber takes no pattern",
    frozenset({"push", "pattern"}): "a dispatcher takes no pattern",
    frozenset({"subscriber", "sticky"}): "a subscriber takes no ranges of hashes",
    frozenset({"push", "sticky"}): "a dispatcher takes no ranges of hashes",
    frozenset({"subscriber", "encrypted"}): "a subscriber takes no key reader",
    frozenset({"push", "encrypted"}): "a dispatcher takes no key reader",
    frozenset({"push", "avro"}): "a dispatcher posts bytes and takes no schema",
    frozenset({"pattern", "retry refuses"}): "a pattern has no retry topic",
}


def senseless(cell: Cell) -> str | None:
    """Return why a cell is impossible; None if it is possible."""
    for pair in cell.pairs():
        if reason := SENSELESS.get(frozenset(value for _, value in pair)):
            return reason
    if cell.fault == "retry refuses" and cell.is_managed and cell.is_ordered:
        return "an ordered subscriber retries in place, without a retry topic"
    return None


def pairwise() -> list[Cell]:
    """Return a small set of cells in which each possible pair of values occurs."""
    every = [Cell(*values) for values in itertools.product(*AXES.values())]
    sensible = [cell for cell in every if senseless(cell) is None]
    wanted = {pair for cell in sensible for pair in cell.pairs()}
    chosen: list[Cell] = []
    while wanted:
        best = max(sensible, key=lambda cell: sum(pair in wanted for pair in cell.pairs()))
        chosen.append(best)
        wanted.difference_update(best.pairs())
    return chosen
