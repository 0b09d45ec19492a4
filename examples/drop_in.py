"""From a pulsar-client consumer to retries and a dead-letter topic, in ten lines.

Numbers mark the lines that are new or changed. A consumer of pulsar-client has the other lines too.
"""

import os
import uuid

import pulsar

import pulsar_retry as pr  # 1: new

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"
RETRIES = 2
ORDERS = [b"book: 12.50", b"lamp: 99.00", b"pen: free", b"chair: 45.00"]


class PaymentDownError(Exception):
    """The payment service does not answer; a later attempt may work."""


def charge(order: bytes, attempt: int) -> float:
    """Charge an order: the pen's price is not a number, and the lamp's payment fails at first."""
    name, price = order.decode().split(": ")
    if (name == "lamp" and attempt == 1) or name == "chair":
        raise PaymentDownError(f"no answer for the {name}")
    return float(price)


def main() -> None:
    """Publish the orders, and consume until each is paid or dead-lettered."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pr.Client(URL, logger=logger)  # 2: was pulsar.Client
    consumer = client.subscribe(
        TOPIC,
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,  # 3: new
        delay_levels="200ms 400ms",  # 4: new; the default goes from 1s to 2h
        dead_letter_policy=pr.DeadLetterPolicy(RETRIES),  # 5: new; the default is 16
    )
    producer = client.create_producer(TOPIC)
    for order in ORDERS:
        producer.send(order)

    open_orders = len(ORDERS)
    while open_orders:
        message = consumer.receive()
        attempt = pr.attempt_of(message)  # 6: new
        try:
            price = charge(message.data(), attempt)
        except PaymentDownError as error:
            consumer.reconsume_later(message)  # 7: was consumer.negative_acknowledge(message)
            print(f"attempt {attempt}: {error}")
            open_orders -= attempt > RETRIES  # 8: new; the last time it goes to the DLQ
        except ValueError as error:  # 9: new
            consumer.dead_letter(message, reason="invalid", error=error)  # 10: new
            print(f"attempt {attempt}: dead at once: {error}")
            open_orders -= 1
        else:
            consumer.acknowledge(message)
            print(f"attempt {attempt}: paid {price:.2f}")
            open_orders -= 1
    client.close()
    print(f"all {len(ORDERS)} orders are settled")


if __name__ == "__main__":
    main()
