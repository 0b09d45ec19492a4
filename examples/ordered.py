"""Order by key: on a Key_Shared subscription a key whose message fails waits, the others go on.

The failed message is retried in place, before any later message of its key. So each account's
transactions are booked in order, even if one fails. Attempts are counted in memory: for a message
that is parked, the count starts again when the process ends.
"""

import os
import threading
import uuid
from collections import defaultdict

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"accounts-{uuid.uuid4().hex[:8]}"
ACCOUNTS = ["alice", "bob", "carol"]
TRANSACTIONS = 4

booked: defaultdict[str, list[int]] = defaultdict(list)
first_done: list[str] = []
failed = threading.Event()
done = threading.Semaphore(0)


def book(message: pulsar.Message) -> None:
    """Book a transaction; the first one of alice fails once."""
    account, number = message.partition_key(), int(message.data())
    if account == "alice" and number == 0 and not failed.is_set():
        failed.set()
        raise TimeoutError("no answer for alice")
    booked[account].append(number)
    if number == TRANSACTIONS - 1:
        first_done.append(account)
    done.release()


def main() -> None:
    """Send the transactions of three accounts in turn."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        producer = client.create_producer(TOPIC)
        for number in range(TRANSACTIONS):
            for account in ACCOUNTS:
                producer.send(b"%d" % number, partition_key=account)
        with client.subscriber(
            TOPIC,
            "ledger",
            book,
            consumer_type=pulsar.ConsumerType.KeyShared,
            retry_policy=pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(3)),
            lanes=pr.Lanes(max_parked=100),
        ):
            for _ in range(len(ACCOUNTS) * TRANSACTIONS):
                done.acquire()
    for account in ACCOUNTS:
        print(f"{account}: {booked[account]}")
    print(f"the last to be done: {first_done[-1]}, who had to wait")


if __name__ == "__main__":
    main()
