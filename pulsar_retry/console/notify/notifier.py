"""Tells webhooks of new failures, and of failures that grow."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import attrs
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_retry.console.indexing import Indexer
from pulsar_retry.console.notify.outbox import NoticeMessage, NoticeOutbox
from pulsar_retry.console.notify.rules import WHOLE, Notice, WaitingCount, to_tell
from pulsar_retry.console.notify.webhook import Webhook
from pulsar_retry.console.notify.wording import Wording
from pulsar_retry.console.store.history import History
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.observe.metrics import NOTIFY_METRICS, family_of
from pulsar_retry.policy.backoff import Exponential
from pulsar_retry.wire.names import kind_of

_log = logging.getLogger("pulsar_retry")

#: Seconds between two looks at the store: cheap, because nothing is counted unless it has changed.
_TICK = 1.0
#: After a look, wait at least this many times as long as it took; and look at least so often.
_PAUSE_RATIO, _AT_LEAST = 5, 60.0
#: Seconds for which a message is tried again.
_PATIENCE = 24 * 3600.0
#: The statuses that refuse the content of a message: it is given up after so many attempts.
_REFUSED, _MOST_REFUSED = frozenset({"400", "413", "422"}), 5
_BACKOFF = Exponential(5.0, 600.0)
#: Seconds to wait at the end.
_ENDING = 5.0


@attrs.frozen
class NotifyOptions:
    """What is told, and how often.

    Attributes:
        webhooks: Who is told.
        growth: The least growth of a group or of a topic that is told, in letters.
        pause: Seconds between two messages to a webhook; what comes meanwhile is one message.
        console: The address of the console, for links; None for the one that it listens on.
    """

    webhooks: Sequence[Webhook]
    growth: int = 100
    pause: float = 60.0
    console: str | None = None


class Notifier(Collector):
    """Looks at what waits, and tells webhooks. It has one thread. Thread-safe."""

    def __init__(
        self,
        options: NotifyOptions,
        wording: Callable[[str], Wording],
        *,
        outbox: NoticeOutbox,
        history: History,
        indexer: Indexer,
        changed: Callable[[], int],
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            options: What is told, and how often.
            wording: Returns what makes bodies, by the address of the console.
            outbox: Knows what was told.
            history: Knows the depths of topics.
            indexer: Knows the groups of letters.
            changed: Returns a number that grows whenever letters change.
        """
        self.console = options.console
        self._options, self._wording, self._outbox = options, wording, outbox
        self._history, self._indexer, self._changed = history, indexer, changed
        self._seen: tuple[int, int, Mapping[str, int]] = (-1, 0, {})
        self._failed: dict[str, int] = {}
        self._why: dict[str, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._limiter = LogLimiter()
        self._thread = threading.Thread(target=self._run, name="pulsar-retry-notify", daemon=True)
        self._stop: Callable[[], object] = lambda: None
        self._ended = threading.Event()

    @property
    def problem(self) -> str:
        """Which webhooks do not accept messages, and why, in words; empty if all do."""
        whys = [(each, self._why.get(each.key)) for each in self._options.webhooks]
        return "; ".join(f"{hook} is not told of failures: {why}" for hook, why in whys if why)

    def start(self, console: str) -> None:
        """Start to tell.

        Args:
            console: The address of the console, for links, if the options do not name one.
        """
        self.console = self.console or console
        self._thread.start()

    def stop(self) -> None:
        """End; a request that is under way is given up, and sent again by the next process."""
        self._ended.set()
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            self._stop()
        if self._thread.ident is not None:
            self._thread.join(_ENDING)

    # -- metrics ----------------------------------------------------------------------------------

    def describe(self) -> list[Metric]:
        """Return the metrics without values."""
        return [family_of(spec) for spec in NOTIFY_METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        messages, pending = self.describe()
        for each in self._options.webhooks:
            for result in NOTIFY_METRICS[0].values:
                messages.add_metric([str(each), result], self._counts[str(each), result])  # type: ignore[attr-defined]
            pending.add_metric([str(each)], self._outbox.pending(each.key))  # type: ignore[attr-defined]
        yield from (messages, pending)

    # -- looking ----------------------------------------------------------------------------------

    def look(self, now: float) -> list[Notice]:
        """Compare what waits with what was told, and store what is to be told; return that."""
        depths = {
            topic: depth
            for topic, depth in self._history.latest().items()
            if kind_of(topic) == "dead_letter"
        }
        # What was told a moment ago may be told again later, although nothing has changed.
        seen = (self._changed(), int(now // _AT_LEAST), depths)
        if seen == self._seen:
            return []
        if self._seen[0] < 0:  # those of webhooks that are not told any more
            self._outbox.forget(now - 2 * _PATIENCE)
        topics = list(self._indexer.counts())
        whole = frozenset(each for each in topics if self._indexer.progress(each).is_whole)
        found = self._outbox.waiting(topics)
        found += [
            WaitingCount(topic=each, group=WHOLE, count=depth) for each, depth in depths.items()
        ]
        notices, told = to_tell(found, self._outbox.told(), whole, now, self._options.growth)
        if told:
            keys = [each.key for each in self._options.webhooks]
            self._outbox.add(keys, notices, told, now)
        self._seen = seen
        return notices

    async def _look(self) -> float:
        began = time.monotonic()
        self.look(time.time())
        return max(_TICK, _PAUSE_RATIO * (time.monotonic() - began))

    # -- sending ----------------------------------------------------------------------------------

    async def _send(self, hook: Webhook, wording: Wording) -> float:
        """Send what there is to tell, and return after how many seconds to go on."""
        message = self._outbox.message(hook.key, time.time())
        if message is None:
            return _TICK
        outcome = await hook.post(message.id, hook.body(message, wording))
        if not outcome.why:
            self._settle(hook, message, "sent")
            return self._options.pause
        self._counts[str(hook), "failed"] += 1
        self._why[hook.key] = outcome.why
        attempt = self._failed[hook.key] = self._failed.get(hook.key, 0) + 1
        is_refused = outcome.code in _REFUSED and attempt >= _MOST_REFUSED
        if is_refused or time.time() - message.at > _PATIENCE:
            _log.warning(
                "a notification of %d failures was given up after %d attempts: %s: %s",
                *(sum(message.counts.values()), attempt, hook, outcome.why),
            )
            self._settle(hook, message, "dropped")
            return _TICK
        wait = _BACKOFF.delay(attempt)
        if (turn := self._limiter.turn((hook.key, outcome.code))) is not None:
            _log.warning(
                "a notification was not accepted (attempt %d, the next one in %.0f s): %s: %s%s",
                *(attempt, wait, hook, outcome.why, turn),
            )
        return wait

    def _settle(self, hook: Webhook, message: NoticeMessage, result: str) -> None:
        self._outbox.settle(hook.key, message.id)
        self._counts[str(hook), result] += 1
        self._failed.pop(hook.key, None)
        self._why.pop(hook.key, None)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - this is one
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._ended.is_set():
            return
        wording = self._wording(self.console or "")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forever(self._look))
            for each in self._options.webhooks:
                group.create_task(self._forever(functools.partial(self._send, each, wording)))

    async def _forever(self, step: Callable[[], Awaitable[float]]) -> None:
        while True:
            try:
                wait = await step()
            except Exception as error:  # noqa: BLE001 - the store may be full: it may work later
                wait = _BACKOFF.minimum
                if (turn := self._limiter.turn(type(error).__name__)) is not None:
                    what = f"{type(error).__name__}: {error}"
                    _log.warning("notifications cannot be made: %s%s", what, turn)
            await asyncio.sleep(wait)


async def try_webhooks(webhooks: Sequence[Webhook], wording: Wording) -> list[str]:
    """Send a message without a failure to each webhook, and return why some refuse it."""
    message = NoticeMessage(id="msg_test", at=time.time(), notices=[], counts={}, topics=0)
    outcomes = [await each.post(message.id, each.body(message, wording)) for each in webhooks]
    both = zip(webhooks, outcomes, strict=True)
    return [f"{each}: {outcome.why}" for each, outcome in both if outcome.why]
