"""Which letters are second ones, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import _pulsar
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.consumer.received_letters import Fingerprint, LetterWindow
from pulsar_retry.consumer.source import Place
from pulsar_retry.letters.facts import gives_identity, identity_of
from pulsar_retry.wire.properties import message_id_text

TOPIC = "persistent://public/default/orders"

FIRST: Place = ((1, 1), -1)
SECOND: Place = ((1, 2), -1)
THIRD: Place = ((1, 3), -1)
PRINT = ("12:34:-1:990000", 7)
ANOTHER = ("12:35:-1:990000", 7)


class Clock:
    """The two clocks of a machine: one that may be set, and one that may not."""

    now = 1000.0
    was_set_by = 0.0

    def wall(self) -> float:
        """Return the seconds since 1970."""
        return self.now + self.was_set_by

    def steady(self) -> float:
        """Return the seconds since the machine was started."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Give clocks that stand still."""
    return Clock()


def window_of(clock: Clock, most: int = 100) -> LetterWindow:
    """Return a window."""
    return LetterWindow(most, clock=clock.wall, steady=clock.steady)


@pytest.fixture
def window(clock: Clock) -> LetterWindow:
    """Give one to which the first letter was delivered at 1000, and settled; it is 1010."""
    window = window_of(clock)
    assert not window.delivered(FIRST, PRINT, 990.0)
    window.settled(FIRST)
    clock.now = 1010.0
    return window


@pytest.mark.parametrize(
    ("letter", "print_", "published", "is_superfluous"),
    [
        (SECOND, PRINT, 999.0, True),  # its message was handled since
        (SECOND, PRINT, 999.5, False),  # half a second is for clocks that differ
        (SECOND, PRINT, 1005.0, False),  # a seek or a redrive made it, perhaps
        (SECOND, ANOTHER, 999.0, False),  # of another message
        (FIRST, PRINT, 990.0, False),  # its acknowledgement was lost, or a seek wants it again
    ],
)
def test_which_letters_are_superfluous(
    window: LetterWindow,
    letter: Place,
    print_: Fingerprint,
    published: float,
    is_superfluous: bool,
) -> None:
    """Those published before an equal one came that is settled since."""
    assert is_superfluous == window.delivered(letter, print_, published)


def test_a_dropped_letter_that_comes_again_is_delivered(window: LetterWindow) -> None:
    """Somebody may want it."""
    window.delivered(SECOND, PRINT, 999.0)
    assert not window.delivered(SECOND, PRINT, 999.0)


def test_a_letter_is_delivered_while_the_first_is_in_hand(clock: Clock) -> None:
    """The first may fail to be settled."""
    window = window_of(clock)
    window.delivered(FIRST, PRINT, 990.0)
    assert not window.delivered(SECOND, PRINT, 991.0)


def test_what_comes_again_while_it_is_in_hand_was_handled_at_first(clock: Clock) -> None:
    """The second handler of the letter may be killed; then nothing has been handled since."""
    window = window_of(clock)
    window.delivered(FIRST, PRINT, 990.0)
    clock.now = 1010.0
    window.delivered(FIRST, PRINT, 990.0)
    window.settled(FIRST)
    assert not window.delivered(SECOND, PRINT, 1005.0)


def test_settling_what_was_not_delivered_does_nothing(window: LetterWindow) -> None:
    """A letter without a fingerprint, or forgotten."""
    window.settled(THIRD)
    assert window.delivered(SECOND, PRINT, 999.0)


def test_one_that_was_passed_over_was_not_handled(clock: Clock) -> None:
    """It made way for a newer letter, which may be the second."""
    window = window_of(clock)
    window.delivered(FIRST, PRINT, 990.0)
    window.settled(FIRST, handled=False)
    assert not window.delivered(SECOND, PRINT, 999.0)


def test_it_forgets_after_a_while(window: LetterWindow, clock: Clock) -> None:
    """Ten minutes."""
    clock.now = 1601.0
    window.delivered(THIRD, ANOTHER, 1600.0)
    assert not window.delivered(SECOND, PRINT, 999.0)


def test_it_forgets_the_oldest(clock: Clock) -> None:
    """It remembers as many as it is told, also of those in hand."""
    window = window_of(clock, most=2)
    for number in range(3):
        window.delivered(((1, number), -1), (str(number), 0), 990.0)
    for number in range(3):
        window.settled(((1, number), -1))
    assert window.delivered(((2, 2), -1), ("2", 0), 991.0)
    assert not window.delivered(((2, 0), -1), ("0", 0), 991.0)


@pytest.mark.parametrize("change", [-3600.0, -1.0, 1.0, 3600.0])
def test_it_forgets_when_the_clock_is_set(
    window: LetterWindow, clock: Clock, change: float
) -> None:
    """No time from before tells what was first."""
    clock.was_set_by = change
    assert not window.delivered(SECOND, PRINT, 999.0)


def test_it_forgets_when_it_is_told(window: LetterWindow) -> None:
    """Its consumer seeks."""
    window.clear()
    assert not window.delivered(SECOND, PRINT, 999.0)


LETTERS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "deliver", "settle"]), LETTERS, st.floats(0.0, 2.0)),
    max_size=60,
)


@given(steps=STEPS, most=st.integers(1, 4))
def test_what_is_dropped_was_handled_after_it_was_published(
    steps: list[tuple[str, int, float]], most: int
) -> None:
    """Whatever is delivered, redelivered and settled in whatever order: nothing is lost.

    Of six letters three at a time are equal. Each may be dropped once, and then an equal one was
    delivered after its publication and is settled.
    """
    clock = Clock()
    window = window_of(clock, most)
    published: dict[int, float] = {}
    handed_out: dict[int, float] = {}
    handled: list[tuple[int, float]] = []
    dropped: set[int] = set()
    for step, letter, seconds in steps:
        clock.now += seconds
        letter_id: Place = ((1, letter), -1)
        if step == "publish":
            published.setdefault(letter, clock.now)
        elif step == "deliver" and letter in published:
            if window.delivered(letter_id, (str(letter % 2), 0), published[letter]):
                assert letter not in handed_out
                assert letter not in dropped
                assert any(
                    other % 2 == letter % 2 and when > published[letter] for other, when in handled
                )
                dropped.add(letter)
            else:
                handed_out[letter] = clock.now
        elif step == "settle" and letter in handed_out:
            window.settled(letter_id)
            handled.append((letter, handed_out[letter]))
    assert len(window._known) <= most
    assert len(window._in_hand) <= 4 * most


@attrs.frozen
class Raw:
    """A message as pulsar-client gives it, as far as identities go."""

    producer: str
    topic: str = TOPIC
    place: tuple[int, int, int] = (12, 34, -1)

    def producer_name(self) -> str:
        """Return who has published it."""
        return self.producer

    def topic_name(self) -> str:
        """Return where it is."""
        return self.topic

    def message_id(self) -> Any:
        """Return its id."""
        ledger, entry, index = self.place
        return _pulsar.MessageId(-1, ledger, entry, index)


#: The name of a producer whose letters have an identity.
OURS = "pulsar-retry-1"


def letter(**changes: str | None) -> dict[str, str]:
    """Return a letter's properties."""
    properties: dict[str, str | None] = {
        "colour": "red",
        "REAL_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_IDY_TIME": "12:34:-1",
        "ORIGIN_MESSAGE_ID": "12:34:-1",
        "REAL_SUBSCRIPTION": "billing",
        "RETRY_TOPIC": f"{TOPIC}-billing-RETRY",
        "RECONSUMETIMES": "2",
        "DELAY_TIME": "1000",
        **changes,
    }
    return {name: text for name, text in properties.items() if text is not None}


def origin(text: str) -> dict[str, str]:
    """Return an origin's id under both of its names."""
    return {"ORIGIN_MESSAGE_IDY_TIME": text, "ORIGIN_MESSAGE_ID": text}


def arrived(
    published: float = 0.0, producer: str = OURS, content: bytes = b"x", **changes: str | None
) -> Any:
    """Return a raw letter, with the time at which it was published."""
    raw = Raw(producer)
    return SimpleNamespace(
        **{name: getattr(raw, name) for name in ("producer_name", "topic_name", "message_id")},
        properties=lambda: letter(**changes),
        data=lambda: content,
        publish_timestamp=lambda: round(published * 1000),
    )


def print_of(raw: Any) -> Fingerprint | None:
    """Return the fingerprint of a raw letter; None if it is not remembered."""
    window = LetterWindow()
    window.came(raw, FIRST, raw.properties())
    return next(iter(window._known), None)


@pytest.mark.parametrize(
    "same", [{"DELAY_TIME": "7"}, {"colour": "blue"}, {"FAILURE_STAMP": "7"}, {"content": b"y"}]
)
def test_letters_of_one_delivery_are_equal(same: dict[str, Any]) -> None:
    """Whatever two processes say of the failure, or add."""
    assert print_of(arrived()) is not None
    assert print_of(arrived()) == print_of(arrived(**same))


@pytest.mark.parametrize("other", [{"RECONSUMETIMES": "3"}, origin("12:35:-1")])
def test_another_retry_or_message_is_another_letter(other: dict[str, str]) -> None:
    """The count and the identity tell."""
    assert print_of(arrived(**other)) not in {None, print_of(arrived())}


@pytest.mark.parametrize(
    "unknown",
    [
        {"RECONSUMETIMES": None},
        {"RECONSUMETIMES": "many"},
        {"ORIGIN_MESSAGE_ID": None},
        {"ORIGIN_MESSAGE_ID": ""},
        {"producer": "standalone-7"},
    ],
)
def test_what_has_no_identity_of_its_own_is_never_dropped(unknown: dict[str, Any]) -> None:
    """Letters of other clients, and what an application has copied properties to."""
    assert print_of(arrived(**unknown)) is None


def letter_of(raw: Raw, carried: dict[str, str] | None = None) -> tuple[dict[str, str], bool]:
    """Return the properties of a letter of *raw*, and whether the letter has an identity."""
    properties = origin(message_id_text(raw.message_id())) | (carried or {})
    return properties, gives_identity(raw, properties)


def test_letters_made_of_one_delivery_have_one_identity() -> None:
    """By whichever process, and along its whole way through the retry topic."""
    first, named = letter_of(Raw("application-1"))
    assert named
    next_one, named = letter_of(Raw(OURS, place=(20, 1, -1)), first)
    assert named
    identities = [identity_of(Raw(OURS), each) for each in (first, next_one)]
    assert ["12:34:-1"] * 2 == identities


@pytest.mark.parametrize("place", [(12, 35, -1), (12, 34, 1)])
def test_letters_of_copies_have_no_identity(place: tuple[int, int, int]) -> None:
    """Whatever properties the copies have inherited, and on all their way."""
    inherited, _ = letter_of(Raw("application-1"))
    copied, named = letter_of(Raw("application-2", place=place), inherited)
    assert not named
    assert not letter_of(Raw("standalone-7", place=(20, 1, -1)), copied)[1]


def test_an_empty_origin_is_no_identity() -> None:
    """An application may have written it to many messages."""
    empty = {"ORIGIN_MESSAGE_ID": ""}
    assert not letter_of(Raw(OURS, place=(20, 1, -1)), empty)[1]


def test_letters_of_other_clients_have_no_identity() -> None:
    """Their origin may be inherited, and so may be that of the letters made of them."""
    theirs, _ = letter_of(Raw("application-1"))
    assert identity_of(Raw("standalone-7"), theirs) is None
    assert not letter_of(Raw("standalone-7", place=(20, 1, -1)), theirs)[1]


def test_letters_of_non_persistent_topics_have_no_identity() -> None:
    """Their ids are all alike."""
    raw = Raw(OURS, topic=TOPIC.replace("persistent", "non-persistent"), place=(-1, -1, -1))
    assert not letter_of(raw)[1]
    assert identity_of(raw, origin("-1:-1:-1")) is None


@pytest.mark.parametrize(
    ("stamp", "is_superfluous"), [("990000000", True), ("1000500001", False), ("", True)]
)
def test_a_deferred_letter_is_news(clock: Clock, stamp: str, is_superfluous: bool) -> None:
    """It is equal to the letter that it was made of, and the clock of its process is behind.

    The stamp tells that it was made of a letter that this process made at 1000.5.
    """
    window = window_of(clock)

    def is_dropped(raw: Any, place: Place) -> bool:
        return window.came(raw, place, raw.properties())

    assert not is_dropped(arrived(980.0, FAILURE_STAMP="980000000"), FIRST)
    window.settled(FIRST)
    clock.now = 1010.0
    assert is_superfluous == is_dropped(arrived(990.0, FAILURE_STAMP=stamp), SECOND)
