"""Names that a shell offers when a user completes an argument: topics and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_of
from pulsar_retry.wire.letter_topics import Kind, kind_of
from pulsar_retry.wire.names import TopicName

__all__ = ["complete_subscription", "complete_topic"]

_Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_DEFAULT = "public/default"
_SCHEME = "persistent://"


def complete_topic(kind: Kind | None) -> _Complete:
    """Return a function that offers topics of a *kind*; None: those that have no letters.

    Without a namespace, the topics of public/default are offered. It offers nothing if the cluster
    is not reached: a shell has no place for an error.
    """

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        scheme = _SCHEME if incomplete.startswith(_SCHEME) else ""
        parts = incomplete.removeprefix(scheme).split("/")
        full = len(parts) > 2  # noqa: PLR2004 - tenant, namespace and topic
        namespace = "/".join(parts[:2]) if full else _DEFAULT
        prefix = f"{scheme}{namespace}/" if full else ""
        names = (
            prefix + TopicName.parse(each).local
            for each in _asked(ctx, lambda admin: admin.namespaces.topics(namespace))
            if kind_of(each) == kind
        )
        return [each for each in names if each.startswith(incomplete)]

    return complete


def complete_subscription(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[str]:
    """Offer the subscriptions of the command's topic, as `complete_topic` offers topics."""
    topic = ctx.params.get("topic") or ""
    names = _asked(ctx, lambda admin: admin.subscriptions.names(topic))
    return [each for each in names if each.startswith(incomplete) and not each.startswith("__")]


def _asked(ctx: click.Context, ask: Callable[[Any], list[str]]) -> list[str]:
    try:
        with cluster_of(ctx.params).admin() as admin:
            return ask(admin)
    except Exception:  # noqa: BLE001 - the user types on, and the command will say what is wrong
        return []
