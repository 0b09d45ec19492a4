"""A managed subscriber: a handler, a retry policy, and everything around them.

Ten handlers run at a time. A payment that times out is retried with a backoff. An order that is not
a number goes to the dead-letter topic at once. SIGTERM or Ctrl-C ends the worker (here, the last
order does), after the messages in hand are settled. At the end, one message is pulled and settled
by hand.
"""

import os
import threading
import uuid

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"
ORDERS = {"tea": "12.50", "chair": "free", "lamp": "99.00", "cup": "3.20"}

paid = threading.Semaphore(0)


def pay(message: pulsar.Message) -> None:
    """Pay an order; returning acknowledges it."""
    item = message.partition_key()
    amount = float(message.data())
    if item == "lamp" and pr.attempt_of(message) == 1:
        raise TimeoutError("no answer")
    # With its end in one write: other threads print, too.
    print(f"paid {amount:.2f} for the {item}, attempt {pr.attempt_of(message)}\n", end="")
    paid.release()


def main() -> None:
    """Send four orders, and run until every order that can be paid is paid."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        producer = client.create_producer(TOPIC)
        for item, amount in ORDERS.items():
            producer.send(amount.encode(), partition_key=item)
        subscriber = client.subscriber(
            TOPIC,
            "billing",
            pay,
            retry_policy=pr.RetryPolicy(
                max_attempts=5, backoff=pr.Exponential(0.2, 60), dead_letter_on=ValueError
            ),
            flow_control=pr.FlowControl(max_messages=100),
            concurrency=10,
        )
        threading.Thread(target=stop_when_paid, args=(subscriber,)).start()
        report = subscriber.run()
        print(f"{report.acknowledged} paid, {report.retried} retried, {report.dead_lettered} dead")

        dead_letter_topic = pr.Naming.PULSAR.topics(TOPIC, "billing").dead_letter
        for delivery in client.pull(dead_letter_topic, "pulsar-retry", max_messages=10):
            letter = pr.DeadLetter.of(delivery.message)
            print(f"dead: {delivery.message.partition_key()}, {letter.failure.message}")
            delivery.ack()


def stop_when_paid(subscriber: pr.Subscriber) -> None:
    """Stop the worker, which would otherwise run for ever."""
    for _ in range(3):
        paid.acquire()
    subscriber.stop()


if __name__ == "__main__":
    main()
