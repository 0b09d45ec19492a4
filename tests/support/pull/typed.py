"""Handlers that take their own type, in a form that other processes can import."""

from __future__ import annotations

import dataclasses
from typing import Any

import pulsar
from pulsar.schema import Integer, Record, String

import pulsar_retry as pr


@dataclasses.dataclass
class Payment:
    """What a payload is decoded to."""

    item: str
    price: int


class Order(Record):
    """What a schema gives."""

    item = String()
    price = Integer()


#: What it was when it had a note.
OLD_ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "item", "type": ["null", "string"]},
        {"name": "note", "type": "string", "default": ""},
        {"name": "price", "type": ["null", "int"]},
    ],
}


def _judge(it: Any, message: pulsar.Message) -> pr.Reject:
    """Tell the test what was decoded; at the second attempt, to have seen a letter, too."""
    if pr.attempt_of(message) == 1:
        raise TimeoutError("once more")
    return pr.Reject(f"{type(it).__name__} {it.item} {it.price}")


def charge(payment: Payment, message: pulsar.Message) -> Any:
    """Take a dataclass."""
    return _judge(payment, message)


async def charge_async(payment: Payment, message: pulsar.Message) -> Any:
    """Take a dataclass on an event loop."""
    return _judge(payment, message)


def ship(order: Order, message: pulsar.Message) -> Any:
    """Take what the schema gives."""
    return _judge(order, message)


async def ship_async(order: Order, message: pulsar.Message) -> Any:
    """Take what the schema gives on an event loop."""
    return _judge(order, message)


def by_value(message: pulsar.Message) -> Any:
    """Decode by hand."""
    return _judge(message.value(), message)
