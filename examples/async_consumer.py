"""Retries on an event loop: many orders at a time, and failures that block nobody.

Twenty tasks share a consumer. If the bank does not answer, the order is reconsumed later: it
waits at the broker, and the task goes on with another order.
"""

import asyncio
import os
import uuid

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"
ORDERS = 100
AT_A_TIME = 20


async def pay(order: pulsar.Message) -> None:
    """Take a while, or fail: every second order at its first attempt."""
    await asyncio.sleep(0.005)
    if int(order.data()) % 2 and pr.attempt_of(order) == 1:
        raise ConnectionError("the bank does not answer")


async def work(consumer: pr.asyncio.Consumer, attempts: list[int]) -> None:
    """Pay orders until the consumer is closed."""
    async for message in consumer:
        try:
            await pay(message)
        except ConnectionError:
            await consumer.reconsume_later(message)
            continue
        await consumer.acknowledge(message)
        attempts.append(pr.attempt_of(message))
        if len(attempts) == ORDERS:
            await consumer.close()  # this ends the other tasks, too


async def main() -> None:
    """Send orders, and run the tasks until every order is paid."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    async with pr.asyncio.Client(URL, logger=logger) as client:
        consumer = await client.subscribe(
            TOPIC,
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            enable_retry=True,
            delay_levels="500ms 1s 2s",
        )
        producer = await client.create_producer(TOPIC)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(ORDERS)))

        attempts: list[int] = []
        await asyncio.gather(*(work(consumer, attempts) for _ in range(AT_A_TIME)))

    print(f"{len(attempts)} of {ORDERS} orders are paid")
    print(f"{sum(each > 1 for each in attempts)} were retried, and no task waited for them")


if __name__ == "__main__":
    asyncio.run(main())
