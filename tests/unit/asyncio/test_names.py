"""`pulsar_retry.asyncio` has the names of the blocking side, and those of `pulsar.asyncio`."""

from __future__ import annotations

import inspect
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

import pulsar_retry as pr

KINDS = ("Client", "Consumer", "Delivery", "Subscriber")

#: What has no place on an event loop: `docs/asyncio.md` says what to use instead.
LEFT_OUT = {
    "Consumer.pause_message_listener",
    "Consumer.resume_message_listener",
}

#: What is different by intention: `pulsar.asyncio` has other defaults, or another order.
OTHER = {"Client.create_producer", "Client.create_reader", "Client.subscribe"}

#: What `pulsar.asyncio` leaves plain, because it does not wait for anything.
PLAIN = {
    "Client.get_service_info",
    "Client.shutdown",
    "Client.subscriber",
    "Consumer.consumer_name",
    "Consumer.is_connected",
    "Consumer.redeliver_unacknowledged_messages",
    "Consumer.subscription_name",
    "Consumer.topic",
    "Subscriber.pause",
    "Subscriber.resume",
    "Subscriber.update_policy",
}


def blocking(kind: str) -> Any:
    """Return the class on the blocking side."""
    return getattr(pr, kind, None) or getattr(pulsar, kind)


def methods(owner: Any) -> list[str]:
    """Return the names of its public methods."""
    return sorted(
        name
        for name, member in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    )


NAMES = [
    (kind, name)
    for kind in KINDS
    for name in methods(blocking(kind))
    if f"{kind}.{name}" not in LEFT_OUT
]


def shape(method: Any) -> list[tuple[str, Any, Any]]:
    """Return what a caller depends on."""
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_each_method_is_there(kind: str, name: str) -> None:
    """With the parameters, their kinds and their defaults; awaitable where it waits."""
    method = getattr(getattr(pr.asyncio, kind), name)
    if f"{kind}.{name}" not in OTHER:
        assert shape(getattr(blocking(kind), name)) == shape(method)
    else:
        theirs = set(inspect.signature(getattr(blocking(kind), name)).parameters)
        ours = set(inspect.signature(method).parameters)
        assert theirs - ours <= {"message_listener", "reader_listener"}
    assert inspect.iscoroutinefunction(
        inspect.unwrap(method, stop=inspect.iscoroutinefunction)
    ) is (f"{kind}.{name}" not in PLAIN)


@pytest.mark.parametrize("kind", KINDS)
def test_each_property_is_there(kind: str) -> None:
    """Also those that can be set."""

    def properties(owner: Any) -> dict[str, bool]:
        members = inspect.getmembers(owner, lambda member: isinstance(member, property))
        return {name: member.fset is not None for name, member in members}

    assert properties(blocking(kind)).items() <= properties(getattr(pr.asyncio, kind)).items()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("Client", "Consumer")
        for name in methods(getattr(pulsar.asyncio, kind))
    ],
)
def test_what_pulsar_asyncio_takes_is_taken(kind: str, name: str) -> None:
    """Same names, order, kinds and defaults first; ours come after them."""
    theirs = shape(getattr(pulsar.asyncio, kind).__dict__[name])
    ours = shape(getattr(getattr(pr.asyncio, kind), name))
    positional = [each for each in ours if each[1] is not inspect.Parameter.KEYWORD_ONLY]
    assert theirs == positional[: len(theirs)]


@pytest.mark.parametrize("kind", ["Client", "Consumer", "Producer", "Reader"])
def test_they_are_pulsars_own(kind: str) -> None:
    """`isinstance` and type hints of existing code hold."""
    assert issubclass(getattr(pr.asyncio, kind), getattr(pulsar.asyncio, kind))


def test_what_is_left_out_is_documented(request: pytest.FixtureRequest) -> None:
    """And is left out."""
    page = (request.config.rootpath / "docs" / "asyncio.md").read_text(encoding="utf-8")
    for name in LEFT_OUT:
        kind, _, method = name.partition(".")
        assert not hasattr(getattr(pr.asyncio, kind), method)
        assert f"`{method}`" in page, name


def test_every_public_name_is_documented() -> None:
    """Classes and methods have a docstring of their own."""
    for name in pr.asyncio.__all__:
        owner = getattr(pr.asyncio, name)
        assert owner.__doc__
        for method in methods(owner):
            assert getattr(owner, method).__doc__, f"{name}.{method}"


def test_subscribe_has_the_same_defaults() -> None:
    """Above all, letters are published unencrypted only if somebody says so."""
    blocking, awaited = (
        {each.name: each.default for each in inspect.signature(kind.subscribe).parameters.values()}
        for kind in (pr.Client, pr.asyncio.Client)
    )
    common = blocking.keys() & awaited.keys() - {"schema"}  # pulsar-client's own differ
    assert "plain_letters" in common
    assert {name: blocking[name] for name in common} == {name: awaited[name] for name in common}
