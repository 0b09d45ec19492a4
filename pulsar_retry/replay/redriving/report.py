"""The result of a redrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.redriving.patching import LetterDiff
from pulsar_retry.wire.envelope import Envelope
from pulsar_retry.wire.owner import Owner

#: Why a dead letter stays where it is.
FILTERED = "filtered"
TOO_OFTEN = "redriven_too_often"
NO_TARGET = "no_target"
ANOTHERS = "other_subscription"
#: A letter in a retry topic does not wait.
DUE = "due"
UNREADABLE = "unreadable"
#: The letter can be read, but it has not come from the broker in time.
LATE = "late"
REFUSED = "refused"
#: The letter is redriven, but the broker may not know that it is acknowledged.
UNCONFIRMED = "unconfirmed"
#: The letter is redriven, but the broker acknowledges only whole batches, and something of its
#: batch stays.
WITH_BATCH = "with_batch"
#: The patch does not fit the letter.
PATCH_REFUSED = "patch_refused"
#: The same reasons, in words.
STAYS = {
    FILTERED: "left out by the filter",
    TOO_OFTEN: "already redriven too often",
    NO_TARGET: "no topic to publish them to",
    ANOTHERS: "of another subscription",
    DUE: "due already",
    UNREADABLE: "unreadable",
    LATE: "not delivered in time",
    REFUSED: "refused by their topic",
    UNCONFIRMED: "published or discarded, but perhaps not acknowledged",
    WITH_BATCH: "published or discarded, but other letters of their batch stay",
    PATCH_REFUSED: "the patch does not fit them",
}
#: The reasons of letters that count as redriven, too.
_REDRIVEN = (UNCONFIRMED, WITH_BATCH)
#: The reasons that a redrive which meant these letters is not complete.
_INCOMPLETE = (NO_TARGET, UNREADABLE, LATE, REFUSED, UNCONFIRMED, WITH_BATCH, PATCH_REFUSED)
#: The problem of letters that pulsar-client does not deliver.
WHY_UNREADABLE = (
    "some letters are encrypted or incomplete; publish encrypted ones again from a consumer that "
    "has the keys"
)
#: The problems of letters that a redrive has not seen, by reason.
WHY_NOT_SEEN = {
    UNREADABLE: WHY_UNREADABLE,
    LATE: "the broker has not delivered some letters in time: run it again",
}
WHY_UNCONFIRMED = (
    "the broker has not reported some acknowledgements: run it again; what is published twice has "
    "the same DEDUPE_ID"
)
WHY_WITH_BATCH = (
    "this broker acknowledges only whole batches (acknowledgmentAtBatchIndexLevelEnabled): letters "
    "of which others of their batch stay are taken again by the next redrive"
)
MAY_STAY = (
    "{} letters of batches of which others stay may be taken again by the next redrive: this role "
    "may not read whether the broker acknowledges single letters of a batch"
)
#: Why a redrive ends early, besides REFUSED; SAMPLE: a dry run has not read all in its time.
LIMIT, CANCELLED, SAMPLE = "limit", "cancelled", "sample"
#: Why a redrive ended early, in words.
STOPPED = {
    LIMIT: "The limit is reached. Run it again for the next letters.",
    CANCELLED: "Cancelled. Run it again to continue.",
    SAMPLE: "Not all letters were read.",
    REFUSED: "Stopped: the broker was away, or a topic took no letters. Run it again to continue.",
}

#: How many ids of letters are shown for a group.
SAMPLES = 3


@attrs.frozen
class Group:
    """Dead letters that failed for the same reason in the same place in the code.

    Attributes:
        reason: Why they are dead; None if the letters do not give it.
        error: The class of the error.
        fingerprint: The place in the code where it was raised.
        message: The text of one error.
        count: How many there are.
        oldest: When the first of them died, in seconds since 1970.
        newest: When the last of them died.
        samples: The ids of the first ones.
    """

    reason: str | None
    error: str | None
    fingerprint: str | None
    message: str | None
    count: int
    oldest: float
    newest: float
    samples: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return the group as JSON-compatible values."""
        times = {"oldest": _moment(self.oldest), "newest": _moment(self.newest)}
        return {**attrs.asdict(self), **times, "samples": list(self.samples)}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


class Groups:
    """Counts dead letters by reason and fingerprint."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str | None, str | None, str | None], _Counted] = {}

    def add(self, failure: Envelope, position: str, published: int) -> None:
        """Count the letter at *position*.

        Args:
            failure: What it says about its failure.
            position: Its message id.
            published: When it was published, in milliseconds since 1970; it died then, if it does
                not say when.
        """
        key = (failure.reason, failure.error, failure.fingerprint)
        at = published / 1000 if failure.when is None else failure.when.timestamp()
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Counted(failure.message, at, at)
        group.count += 1
        group.oldest, group.newest = min(group.oldest, at), max(group.newest, at)
        if len(group.samples) < SAMPLES:
            group.samples.append(position)

    def all(self) -> tuple[Group, ...]:
        """Return the groups, the largest first."""
        groups = sorted(self._groups.items(), key=lambda each: -each[1].count)
        return tuple(
            Group(*key, it.message, it.count, it.oldest, it.newest, tuple(it.samples))
            for key, it in groups
        )


@attrs.define
class _Counted:
    """The letters of a group so far; see `Group`."""

    message: str | None
    oldest: float
    newest: float
    count: int = 0
    samples: list[str] = attrs.field(factory=list)


@attrs.frozen
class Became:
    """What became of the letters that a redrive has published to the topics of their subscriptions.

    Attributes:
        handled: How many were acknowledged.
        waiting: How many were not acknowledged: they wait, also for another retry, or are in hand.
        dead: How many are dead again.
    """

    handled: int
    waiting: int
    dead: int

    def in_words(self) -> str:
        """Return the numbers as people read them."""
        return f"{self.handled} handled, {self.waiting} waiting, {self.dead} dead again"


@attrs.frozen(kw_only=True)
class Redriven:
    """The result of a redrive, or of a dry run.

    Attributes:
        source: The dead-letter topic.
        job: The id of the redrive, which its messages carry as ``REDRIVE_ID``.
        dry_run: Whether nothing was changed.
        redriven: How many letters were, or would be, redriven.
        left: How many of the letters seen stay in the dead-letter topic, by reason. A redrive that
            was *stopped* has not seen all letters.
        verb: ``redriven`` or ``discarded``.
        targets: How many letters went to each topic.
        owners: How many of them were of each owner, ``subscription billing of persistent://…``.
        became: What became of them; None: nothing was published to a retry topic or an origin, or
            it is not known.
        doubts: What may have been lost, in words: a target was deleted meanwhile.
        patched: How many of them a patch has changed, or would change.
        stopped: Why it ended early: ``limit``, ``cancelled`` or ``refused``, or ``sample`` for a
            dry run that has not read all letters in its time; None if nothing is left to do.
        problems: In words, why letters stay; the first problem of each kind.
        groups: For a dry run: what would be redriven, by reason and fingerprint.
        others: For a dry run that means no letter: those that the filter leaves out, in groups.
        diffs: For a dry run with a patch: what it changes in the first letters.
        backlog: For a dry run: about how many letters the dead-letter topic has; None if no
            subscription counts them.
        waits: What the redrive waits for, in words; empty if nothing hinders it.
        seconds: How long it took.
    """

    source: str
    job: str
    dry_run: bool
    verb: str = "redriven"
    redriven: int = 0
    left: Mapping[str, int] = attrs.field(factory=dict)
    targets: Mapping[str, int] = attrs.field(factory=dict)
    owners: Mapping[str, int] = attrs.field(factory=dict)
    became: Became | None = None
    doubts: tuple[str, ...] = ()
    patched: int = 0
    stopped: str | None = None
    problems: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    others: tuple[Group, ...] = ()
    diffs: tuple[LetterDiff, ...] = ()
    backlog: int | None = None
    waits: str = ""
    seconds: float = 0.0

    @property
    def read(self) -> int:
        """How many letters were read."""
        return self.redriven + sum(n for why, n in self.left.items() if why not in _REDRIVEN)

    @property
    def is_complete(self) -> bool:
        """Whether all letters that were to be redriven could be redriven."""
        is_left = any(map(self.left.get, _INCOMPLETE))
        return self.stopped in {None, LIMIT, SAMPLE} and not (is_left or self.doubts)

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        facts = attrs.asdict(self)
        for name in ("groups", "others"):
            facts[name] = [each.facts() for each in getattr(self, name)]
        count = {facts.pop("verb"): facts.pop("redriven")}
        return {**count, **facts, "problems": list(self.problems), "doubts": list(self.doubts)}

    def recorded(self) -> dict[str, Any]:
        """Return what the audit log has of it."""
        facts = self.facts()
        names = ("job", self.verb, "left", "targets", "owners", "became", "stopped", "seconds")
        patched = {"patched": self.patched} if self.patched else {}
        return {**{name: facts[name] for name in names}, **patched, "complete": self.is_complete}


@attrs.define
class Tally:
    """The counts of a redrive, or of a dry run, so far; see `Redriven`."""

    redriven: int = 0
    patched: int = 0
    left: Counter[str] = attrs.field(factory=Counter)
    targets: Counter[str] = attrs.field(factory=Counter)
    owners: Counter[Owner] = attrs.field(factory=Counter)
    problems: dict[str, None] = attrs.field(factory=dict)
    stopped: str | None = None
    waits: str = ""

    def moved(self, letter: Letter | None, owner: Owner) -> None:
        """Count a letter that was published to its topic, or is discarded: None."""
        self.redriven += 1
        if letter is not None:
            self.targets[letter.topic] += 1
            self.owners[owner] += 1
            self.patched += letter.payload is not None

    def report(self, **facts: Any) -> Redriven:
        """Return the counts, with further *facts*."""
        return Redriven(
            redriven=self.redriven,
            patched=self.patched,
            left=dict(self.left),
            targets=dict(self.targets),
            owners={
                f"subscription {each.subscription} of {each.topic}": count
                for each, count in self.owners.items()
                if each.topic is not None and each.subscription is not None
            },
            problems=first_of_each(self.problems),
            stopped=self.stopped,
            waits=self.waits,
            **facts,
        )


def first_of_each(problems: Iterable[str]) -> tuple[str, ...]:
    """Return the first ten different *problems*."""
    return tuple(dict.fromkeys(problems))[:10]
