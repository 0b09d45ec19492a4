"""Runs a scenario on the real code, and checks the result and every step."""

from __future__ import annotations

import gc
import logging
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pulsar

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.testing.memory.topic import MemorySubscription
from pulsar_retry.wire.properties import FAILURE_STAMP, ORIGIN_MESSAGE_ID, RECONSUMETIMES
from support.model.machine import Machine
from support.model.witness import NotABehaviourError, Witness
from support.simulation.scenario import Fault, Scenario, smaller
from support.simulation.turns import Turns
from support.simulation.world import Acks, copy_id, simulated

TOPIC, SUBSCRIPTION = "orders", "billing"
MAIN = "persistent://public/default/orders"
TOPICS = (MAIN, f"{MAIN}-billing-RETRY")
DLQ = f"{MAIN}-billing-DLQ"

#: Virtual seconds for every message to end.
HORIZON = 1200.0

#: Virtual seconds in which letters end whose messages were handled: each lost receipt takes 31.
_LETTERS_END = 150.0

#: More than any scenario has.
_MANY = 1000


class FoundError(AssertionError):
    """A simulation has found that something does not hold."""


class Simulation:
    """One run of one scenario.

    Attributes:
        log: What happened, in order.
        untracked: The messages of which the model does not know all.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = random.Random(scenario.seed)
        self.clock = Turns(self.chance.randrange)
        self.log: list[tuple[Any, ...]] = []
        self.untracked: set[int] = set()
        self.runs: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.witnesses: dict[int, Witness] = {}
        self._number_of: dict[tuple[int, int], int] = {}
        self._names: dict[int, str] = {}
        self._receipts: set[tuple[str, tuple[int, int]]] = set()
        self._living: dict[int, tuple[Any, Any]] = {}
        self._problems: list[str] = []
        self._is_over = False
        names = tuple(f"p{each}" for each in range(12))
        self._machine = Machine(
            consumers=names,
            max_retries=scenario.retries,
            max_redrives=0,
            max_copies=_MANY,
            max_faults=_MANY,
            own=scenario.shell == "subscriber",
        )

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the scenario.

        Raises:
            FoundError: something does not hold.
        """
        latency = self.chance.choice([0.0, 0.0, 0.02, 0.3])
        wait = (lambda: self.chance.uniform(0, latency)) if latency else (lambda: 0.0)
        gc.disable()  # finalizers would run at any moment
        memory = MemoryBroker(self.clock)
        try:
            with simulated(self.clock, self.record, wait):
                acknowledge = MemorySubscription.acknowledge
                acks = Acks(memory._world, self.record)
                MemorySubscription.acknowledge = (  # type: ignore[method-assign]
                    lambda subscription, number: acks.acknowledge(acknowledge, subscription, number)
                )
                try:
                    self._go(memory, acks)
                finally:
                    MemorySubscription.acknowledge = acknowledge  # type: ignore[method-assign]
                    self._is_over = True
                    memory.close()
                    with suppress(TimeoutError):
                        self.clock.advance(5)
        finally:
            gc.enable()

    def _go(self, memory: MemoryBroker, acks: Acks) -> None:
        given = self.scenario
        self._world = memory._world
        for place in range(given.processes):
            self._start(memory, place)
        for number, _ in enumerate(given.fates):
            copied = {ORIGIN_MESSAGE_ID: "1:1:-1"} if given.copied else {}
            payload = b"%d" % (0 if given.copied else number)
            where = memory.send(TOPIC, payload, properties=copied)
            key = (where.ledger_id(), where.entry_id())
            if given.copied:
                continue  # the model is of one message
            self._number_of[key] = number
            self.witnesses[number] = Witness(self._machine, key)
            self.clock.advance(self.chance.choice([0.0, 0.05]))
        for fault in sorted(given.faults, key=lambda each: each.at):
            began = self.clock.monotonic() - 1000.0
            self.clock.advance(max(0.0, fault.at - began))
            self._happen(memory, acks, fault)
        self._finish(memory)

    def _start(self, memory: MemoryBroker, place: int) -> None:
        client = memory.client()
        raw = client._client
        raw.fates = {}
        self._names[id(raw)] = f"p{len(self._names)}"
        given = self.scenario
        if given.shell == "subscriber":
            policy = pr.RetryPolicy(
                max_attempts=given.retries + 1, backoff=pr.Fixed(given.delay or 0.001)
            )
            subscriber = client.subscriber(
                TOPIC,
                SUBSCRIPTION,
                lambda message: self._handle(raw, message),
                retry_policy=policy,
                concurrency=given.concurrency,
            ).start()
            self._living[place] = (client, subscriber)
            return
        consumer = client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            enable_retry=True,
            dead_letter_policy=pr.DeadLetterPolicy(given.retries),
            max_pending_letters=given.concurrency,
        )
        self._living[place] = (client, consumer)
        self.clock.thread(
            target=self._consume, args=(raw, consumer), name="application", daemon=True
        ).start()

    def _consume(self, raw: Any, consumer: Any) -> None:
        """Do what an application of a plain consumer does."""
        with suppress(pulsar.PulsarException, pr.PulsarRetryError):
            while not raw._is_closed:
                message = consumer.receive()
                try:
                    self._handle(raw, message)
                except TimeoutError:
                    if self.chance.random() < 0.5:
                        consumer.reconsume_later_async(message, delay=self.scenario.delay)
                        continue
                    with suppress(pr.LetterPublishError, pr.AcknowledgeError):
                        consumer.reconsume_later(message, delay=self.scenario.delay)
                else:
                    consumer.acknowledge(message)

    def _handle(self, raw: Any, message: Any) -> None:
        number = int(message.data())
        self.record("began", raw, copy_id(message._message.message_id()))
        if self.chance.random() < 0.4:
            self.clock.sleep(self.chance.choice([0.05, 0.2, 1.5]))
        if raw._is_closed:
            raise TimeoutError("the process is dead")
        self.runs[number] += 1
        if self.scenario.copied or self.runs[number] <= self.scenario.fates[number]:
            raise TimeoutError("not yet")
        self.done[number] += 1
        self.record("ok", raw, copy_id(message._message.message_id()))

    def _happen(self, memory: MemoryBroker, acks: Acks, fault: Fault) -> None:
        self.log.append(("fault", fault))
        topic = (*TOPICS[1:], DLQ)[fault.target]
        match fault.kind:
            case "refuse":
                memory.faults.fail_send(topic, times=fault.times)
            case "lose":
                memory.faults.lose_receipt(topic, times=fault.times)
            case "crash":
                memory.faults.crash_after_send(topic)
            case "kill":
                self._kill(fault.target % self.scenario.processes)
                self.clock.advance(self.chance.choice([0.0, 0.5, 2.0]))
            case "unload" | "broker":
                acks.unload(TOPICS[fault.target], forget=fault.kind == "broker")
            case "twice":
                for client, _ in self._living.values():
                    client._client.fates["twice"] = True
            case _:
                for client, shell in self._living.values():
                    if self.scenario.shell == "consumer" and not client._client._is_closed:
                        with suppress(pulsar.PulsarException, pr.PulsarRetryError):
                            shell.redeliver_unacknowledged_messages()
        self._revive(memory)

    def _kill(self, place: int) -> None:
        client, _ = self._living[place]
        client.kill()

    def _revive(self, memory: MemoryBroker) -> None:
        for place, (client, _) in list(self._living.items()):
            if client._client._is_closed:
                self._dies(client._client)
                self._start(memory, place)

    def _dies(self, raw: Any) -> None:
        name = self._names[id(raw)]
        for number, witness in self.witnesses.items():
            process = witness.state.process(name)
            if process.up and process != type(process)():
                self._observe(number, witness.act, "kill", name)

    def _finish(self, memory: MemoryBroker) -> None:
        end = self.clock.monotonic() + HORIZON
        while left := sum(memory.backlog(each, SUBSCRIPTION) for each in TOPICS):
            self._revive(memory)
            self.clock.settle()
            due = self.clock.next_due()
            if due > end:
                self._fail(f"{left} messages are left after {HORIZON:g} s")
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
        self.clock.advance(_LETTERS_END)
        self._check(memory)

    # -- checking ---------------------------------------------------------------------------------

    def _check(self, memory: MemoryBroker) -> None:
        given = self.scenario
        dead = Counter(int(each.data()) for each in memory.dead_letters(TOPIC, SUBSCRIPTION))
        if given.copied and dead[0] < len(given.fates):
            self._problems.append(f"{len(given.fates) - dead[0]} copied messages are lost")
        kinds = {each.kind for each in given.faults}
        counts_redeliveries = given.shell == "consumer" and "nack" in kinds
        for number, fate in () if given.copied else enumerate(given.fates):
            ends = self.done[number] + dead[number]
            if not ends:
                self._problems.append(f"message {number} is lost")
            is_early = self.runs[number] < given.retries + 1 and not counts_redeliveries
            if dead[number] and is_early:
                self._problems.append(f"message {number} is dead after {self.runs[number]} runs")
            is_exact = kinds <= ({"refuse"} if given.shell == "subscriber" else set())
            wanted = min(fate, given.retries) + 1
            if is_exact and (ends, self.runs[number]) != (1, wanted):
                self._problems.append(
                    f"message {number} ran {self.runs[number]} times instead of {wanted}, and "
                    f"ended {ends} times"
                )
        self._check_leaks()
        if self._problems:
            self._fail("; ".join(self._problems))

    def _check_leaks(self) -> None:
        """Check that nothing is in flight, and that each permit was given back."""
        for client, shell in self._living.values():
            consumer = shell if self.scenario.shell == "consumer" else shell._consumer
            if client._client._is_closed or consumer is None:
                continue
            hand_off = consumer._outbox.hand_off
            permits = hand_off.permits
            if (permits._free, permits._bytes) != (permits._size, 0) or hand_off.in_flight:
                self._problems.append(
                    f"{permits._size - permits._free} permits and {permits._bytes} bytes are "
                    f"missing; {hand_off.in_flight} letters are in flight"
                )
            if consumer.unsettled:
                self._problems.append(f"{consumer.unsettled} messages are unsettled")

    def _fail(self, why: str) -> None:
        raise FoundError("; ".join([*self._problems, why] if why not in self._problems else [why]))

    # -- the model --------------------------------------------------------------------------------

    def record(self, event: str, raw: Any, copy: tuple[int, int], *rest: Any) -> None:
        """Note an event, and follow it in the model."""
        name = None if raw is None else self._names.get(id(raw))
        if self._is_over or (raw is not None and name is None):
            return
        if event == "stored":
            parent, entry = rest
            if parent is not None:
                self._number_of[copy] = int(entry.messages[0].content.data)
        number = self._number_of.get(copy)
        if number is None:
            return
        told = rest[0].properties if event == "handed" else rest[0] if event == "receipt" else ""
        self.log.append((round(self.clock.monotonic() - 1000, 3), event, name, copy, told))
        if raw is not None and raw._is_closed and event != "stored":
            return
        if number not in self.untracked and number in self.witnesses:
            self._observe(number, self._follow, number, event, name, copy, rest)

    def _observe(self, number: int, act: Any, *arguments: Any) -> None:
        if number in self.untracked:
            return
        try:
            act(*arguments)
        except NotABehaviourError as error:
            self._problems.append(f"message {number}: the model does not allow it: {error}")
            self.untracked.add(number)

    def _follow(
        self, number: int, event: str, name: Any, copy: tuple[int, int], rest: tuple[Any, ...]
    ) -> None:
        """Perform the actions of an event in the model."""
        witness = self.witnesses[number]
        if event in {"stored", "receipt", "redelivered"}:
            getattr(self, f"_{event}")(witness, name, copy, *rest)
            return
        work = witness.work(name, copy)
        if event == "began":
            is_unclear = work is not None
        else:
            is_unclear = event == "handed" and (work is None or work.phase == "acking")
        if is_unclear:
            # It works on two deliveries of one copy, or the broker's count has used it up.
            self.untracked.add(number)
            return
        getattr(self, f"_{event}")(witness, name, copy, work, *rest)

    def _began(self, witness: Witness, name: str, copy: tuple[int, int], _work: Any) -> None:
        witness.delivered(name, copy)

    def _ok(self, witness: Witness, name: str, copy: tuple[int, int], _work: Any) -> None:
        witness.act("succeed", name, witness.number(copy))

    def _handed(
        self, witness: Witness, name: str, copy: tuple[int, int], work: Any, letter: Any
    ) -> None:
        if work.phase != "got":  # a letter that is published again, or one of a second delivery
            if letter.dead != (work.letter.place == "dlq"):
                self.untracked.add(self._number_of[copy])
            return
        count = None if letter.dead else int(letter.properties.get(RECONSUMETIMES, "0"))
        stamp = int(letter.properties.get(FAILURE_STAMP, 0))
        now = round(self.clock.time() * 1e6)  # about the stamp of a dead letter, which is not on it
        witness.failed(name, copy, count=count, stamp=stamp, now=now)

    def _stored(
        self, witness: Witness, name: str, copy: tuple[int, int], parent: Any, entry: Any
    ) -> None:
        if parent is not None:
            self._receipts.discard((name, parent))
            witness.stored(name, parent, copy)
            letter = witness.state.copies[-1].letter
            count = int(entry.messages[0].content.properties.get(RECONSUMETIMES, "0"))
            if letter.place == "retry" and letter.count != count:
                raise NotABehaviourError(f"{copy} counts {count} retries instead of {letter.count}")

    def _receipt(
        self, _witness: Witness, name: str, copy: tuple[int, int], is_published: bool
    ) -> None:
        if is_published:
            self._receipts.add((name, copy))

    def _ack(self, witness: Witness, name: str, copy: tuple[int, int], work: Any) -> None:
        if work is None:
            witness.dropped(name, copy)
        elif work.phase != "acking":
            k = witness.number(copy)
            if (name, copy) in self._receipts:
                witness.act("receipt", name, k)
            elif witness.drops_again(name, k):
                self.untracked.add(self._number_of[copy])
            else:
                raise NotABehaviourError(f"{copy} is acknowledged before a receipt")

    def _acked(self, witness: Witness, name: str, copy: tuple[int, int], work: Any) -> None:
        if work is not None and work.phase == "acking":
            witness.act("acknowledged", name, witness.number(copy))

    def _redelivered(self, witness: Witness, _name: None, copy: tuple[int, int]) -> None:
        k = witness.number(copy)
        at = witness.state.copy(k).at
        if at == "acked":
            witness.act("forget", k)
        elif at not in {"stored", "delayed"}:
            holder = witness.work(at, copy)
            witness.act("redeliver", k)
            if holder is not None and holder.phase in {"publish", "sent"}:
                self._maybe_comes_back(witness, at, copy)

    def _maybe_comes_back(self, witness: Witness, p: str, copy: tuple[int, int]) -> None:
        """Assume that a letter is given up, if nothing is in flight for it any more."""
        raw = next((r for r, name in self._names.items() if name == p), None)
        for client, shell in self._living.values():
            if id(client._client) != raw:
                continue
            consumer = shell if self.scenario.shell == "consumer" else shell._consumer
            hand_off = consumer._outbox.hand_off
            flights = [*hand_off.flights, *hand_off.waiting]
            if not any(copy_id(each.raw) == copy for each in flights):
                witness.assume("come_back", p, witness.number(copy))


def find(scenario: Scenario) -> str | None:
    """Run a scenario; return what does not hold, or None. Logs and finalizers are held back."""
    logging.disable(logging.CRITICAL)
    try:
        Simulation(scenario).run()
    except (FoundError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.disable(logging.NOTSET)
        if scenario.seed % 50 == 0:
            gc.collect()
    return None


def shrunk(scenario: Scenario) -> Scenario:
    """Return the smallest scenario that still fails."""
    while True:
        for each in smaller(scenario):
            if find(each) is not None:
                scenario = each
                break
        else:
            return scenario
