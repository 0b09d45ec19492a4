"""Delay levels: your own table, and the three ways to set the delay of a retry."""

import os
import time
import uuid

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"levels-{uuid.uuid4().hex[:8]}"

# Level 1 is 300 ms, level 2 is 600 ms, level 3 and all above are 1 s. The format is
# TDMQ's MESSAGE_DELAYLEVEL; units are ms, s, m, h and d. The default table goes from 1s to 2h.
#
# The broker decides how exact delays are: it may deliver early by up to its setting
# delayedDeliveryTickTimeMillis, which is 1000 by default (100 in `pulsar-retry standalone`).
TABLE = "300ms 600ms 1s"


def main() -> None:
    """Send one message through five retries."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(URL, logger=logger) as client:
        consumer = client.subscribe(
            TOPIC,
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            enable_retry=True,
            delay_levels=TABLE,
        )
        client.create_producer(TOPIC).send(b"order 1")

        message = consumer.receive()
        message = send_back(consumer, message)  # automatic: the first retry is level 1,
        message = send_back(consumer, message)  # the second level 2
        message = send_back(consumer, message, level=3)  # a level of your choice
        message = send_back(consumer, message, delay=0.5)  # seconds, or a timedelta
        message = send_back(consumer, message, level=0)  # no delay
        consumer.acknowledge(message)


def send_back(
    consumer: pr.Consumer,
    message: pulsar.Message,
    *,
    delay: float | None = None,
    level: int | None = None,
) -> pulsar.Message:
    """Retry the message, receive it again, and say how long that took."""
    started = time.monotonic()
    consumer.reconsume_later(message, delay=delay, level=level)
    message = consumer.receive()
    took = time.monotonic() - started
    retry = pr.RetryProperties.of(message)
    asked = f"delay={delay}, level={level}"
    print(f"retry {retry.reconsume_times}, {asked}: {retry.delay} s, back after {took:.2f} s")
    return message


if __name__ == "__main__":
    main()
