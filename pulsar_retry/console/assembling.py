"""Makes a console: opens its store, and connects its parts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import attrs

from pulsar_retry.console.app import Console
from pulsar_retry.console.indexing import Indexer
from pulsar_retry.console.jobs import Jobs
from pulsar_retry.console.login import Access
from pulsar_retry.console.lookup import LetterLookup
from pulsar_retry.console.store.database import MEMORY, Database, default_path
from pulsar_retry.console.store.history import History
from pulsar_retry.console.store.letters import LetterIndex
from pulsar_retry.console.store.records import Records
from pulsar_retry.console.watch import JOBS, Changes, Watcher
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster

_log = logging.getLogger("pulsar_retry")


def _namespaces(given: Sequence[str]) -> tuple[str, ...]:
    for each in given:
        parts = each.split("/")
        if len(parts) != 2 or not all(parts):  # noqa: PLR2004 - tenant and namespace
            raise ConfigError.bad("namespace", each, "tenant/namespace")
    if not given:
        raise ConfigError("namespace: expected at least one")
    return tuple(dict.fromkeys(given))


@attrs.frozen(kw_only=True)
class ConsoleOptions:
    """The options of a console.

    Attributes:
        namespaces: The namespaces to show, as ``tenant/namespace``.
        every: Seconds between two questions to the broker.
        store: The file; None means one for the cluster, in the user's folder for state.
        keep: For how many seconds arrivals are kept.
        audits: Whether the audit log of each namespace is written.
    """

    namespaces: Sequence[str] = attrs.field(converter=_namespaces)
    every: float = 15.0
    store: str | None = None
    keep: float = 30 * 86_400.0
    audits: bool = True


@contextlib.contextmanager
def opened(cluster: Cluster, access: Access, options: ConsoleOptions) -> Iterator[Console]:
    """Yield a console, whose store is closed at the end.

    Raises:
        ConfigError: the store that was named cannot be opened. If none was named, and the usual one
            cannot be opened, nothing is remembered, with a warning in the log.
    """
    database = _database(cluster, options.store)
    with contextlib.closing(database):
        yield assembled(cluster, access, options, database)


def assembled(
    cluster: Cluster,
    access: Access,
    options: ConsoleOptions,
    database: Database,
) -> Console:
    """Return a console with this store; nothing is asked yet."""
    changes = Changes()
    history, records = History(database, options.keep), Records(database)
    index = LetterIndex(database)
    indexer = Indexer(cluster, index, changes.tell)
    watcher = Watcher(
        cluster,
        options.namespaces,
        options.every,
        history=history,
        records=records,
        indexer=indexer,
        changes=changes,
    )

    def job_changed(what: str) -> None:
        changes.tell(what)
        changes.tell(JOBS)

    return Console(
        cluster=cluster,
        lookup=LetterLookup(cluster, options.namespaces, watcher, index, indexer),
        jobs=Jobs(cluster, records, audits=options.audits, changed=job_changed),
        history=history,
        records=records,
        watcher=watcher,
        changes=changes,
        access=access,
    )


def _database(cluster: Cluster, store: str | None) -> Database:
    if store is not None:
        return Database(store)
    try:
        return Database(default_path(cluster.service_url))
    except ConfigError as error:
        _log.warning("%s: the console remembers nothing after its end (--store)", error)
        return Database(MEMORY)
