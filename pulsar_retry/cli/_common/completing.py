"""Names that a shell offers when a user completes a word: namespaces, topics, subscriptions.

A name that means something to a shell is not offered: others may choose the names of topics, and a
shell puts what is offered into the command line as it is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from pulsar_retry.cli._common.cluster import cluster_of
from pulsar_retry.wire.names import Kind, TopicName, kind_of

__all__ = ["complete_namespace", "complete_subscription", "complete_topic", "register_shells"]

_Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_DEFAULT = "public/default"
_SCHEME = "persistent://"
#: A name without a character that a shell interprets.
_PLAIN = re.compile(r"[\w@%+=:,./-]+")
#: Seconds that a user waits for an answer of the cluster.
_PATIENCE = 2.0
#: The parameters that name a topic.
_TOPICS = ("topic", "dlq", "dlqs", "topics")


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
        return _offered(names, incomplete)

    return complete


def complete_namespace(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the namespaces of the tenant that is typed, or else of ``public``."""
    tenant = incomplete.partition("/")[0] if "/" in incomplete else "public"
    return _offered(_asked(ctx, lambda admin: admin.namespaces.names(tenant)), incomplete)


def complete_subscription(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[str]:
    """Offer the subscriptions of the command's topic, as `complete_topic` offers topics."""
    # After an option without its value, click has not assigned the arguments yet.
    topic = next((found for each in _TOPICS if (found := ctx.params.get(each))), ctx.args) or [""]
    topic = topic if isinstance(topic, str) else topic[0]
    names = _asked(ctx, lambda admin: admin.subscriptions.names(topic))
    return _offered((each for each in names if not each.startswith("__")), incomplete)


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    return [each for each in names if each.startswith(incomplete) and _PLAIN.fullmatch(each)]


def _asked(ctx: click.Context, ask: Callable[[Any], list[str]]) -> list[str]:
    """Return an answer of the cluster; nothing if it fails, or takes too long."""
    found: list[str] = []

    def run() -> None:
        try:
            with cluster_of(ctx.params).admin() as admin:
                found.extend(ask(admin))
        except Exception:  # noqa: BLE001 - the user types on, and the command will say what is wrong
            return

    # A request may wait for longer than a user, for example for the look-up of a name.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return list(found)


class _Bash(BashComplete):
    """Bash divides words at colons, which the full names of topics and message ids have."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words, incomplete = super().get_completion_args()
        whole: list[str] = []
        joins = False
        for each in [*words, incomplete]:
            glued = joins or each.startswith(":")
            whole[-1:] = [whole[-1] + each] if glued and whole else [*whole[-1:], each]
            joins = each.endswith(":")
        self._before = len(whole[-1]) - len(incomplete) if incomplete != ":" else len(whole[-1])
        return whole[:-1], whole[-1]

    def format_completion(self, item: CompletionItem) -> str:
        # Bash replaces only what follows the last colon.
        return f"{item.type},{item.value[self._before :]}"


def register_shells() -> None:
    """Let click use what this module knows of shells."""
    add_completion_class(_Bash)
