"""Metrics of several processes, such as gunicorn's workers, scraped at any one of them.

prometheus_client has each process write its values into files of one directory, and adds them up.
It calls no collector there. So a thread copies what this process has counted into its files, now
and then and at the end.

Nothing is ever taken out of these files: the sum over the processes would go back, which Prometheus
takes for a restart, and so for as many new events as are left.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, values
from prometheus_client.multiprocess import MultiProcessCollector

from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.metrics import METRICS, PREFIX, LedgerCollector, Spec
from pulsar_retry.observe.sharing import VARIABLE

_log = logging.getLogger("pulsar_retry")

#: Seconds between two copies.
INTERVAL = 1.0

#: The name and the labels of a value.
_Key = tuple[str, tuple[str, ...]]


def show_all_processes(registry: CollectorRegistry) -> None:
    """Have *registry* show the values of all processes.

    Raises:
        ConfigError: there is no such directory.
    """
    path = os.environ[VARIABLE]
    if not Path(path).is_dir():
        raise ConfigError.bad(VARIABLE, path, "a directory that exists")
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]


class Mirror:
    """Copies the counts of this process into its files. Thread-safe."""

    def __init__(self, collector: LedgerCollector) -> None:
        self._collector = collector
        self._specs = {PREFIX + spec.name: spec for spec in METRICS}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._values: dict[_Key, Any] = {}
        self._written: dict[_Key, float] = {}
        self._gauges: set[_Key] = set()
        self._seen: set[_Key] = set()

    def start(self) -> None:
        """Copy from now on, on a thread, and at the end of the process."""
        threading.Thread(target=self._run, name="pulsar-retry-metrics", daemon=True).start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Copy for the last time."""
        self._ended.set()
        if self._pid == os.getpid():  # a forked child has nothing to do with it
            with contextlib.suppress(Exception):  # the directory is gone, as the process will be
                self.copy()

    def _run(self) -> None:
        has_told = False
        while not self._ended.wait(INTERVAL):
            try:
                self.copy()
            except Exception as error:  # noqa: BLE001 - the next time it may work
                if not has_told:
                    _log.warning("the metrics were not written, this is said once: %s", error)
                has_told = True

    def copy(self) -> None:
        """Copy what was counted since the last time."""
        with self._lock:
            self._seen.clear()
            for family in self._collector.collect():
                spec, before = self._specs[family.name], 0.0
                for sample in family.samples:
                    if sample.name.endswith("_count"):
                        continue  # the last bucket says it
                    value = sample.value
                    if sample.name.endswith("_bucket"):  # in the files each is by itself
                        total = value
                        value -= before
                        before = 0.0 if sample.labels["le"] == "+Inf" else total
                    self._write(spec, sample.name, sample.labels, value)
            # Whoever said these is gone.
            for key in self._gauges - self._seen:
                self._values[key].set(0.0)
            for key in self._written.keys() - self._seen:  # if it comes back, it begins at 0
                del self._written[key]

    def _write(self, spec: Spec, name: str, labels: dict[str, str], value: float) -> None:
        names = (*spec.labels, "le") if "le" in labels else spec.labels
        key = (name, tuple(labels[each] for each in names))
        if key not in self._values:
            self._values[key] = values.ValueClass(
                spec.kind,
                PREFIX + spec.name,
                name,
                names,
                key[1],
                spec.text,
                multiprocess_mode=f"live{spec.together}",
            )
        self._seen.add(key)
        if spec.kind == "gauge":
            self._gauges.add(key)
            self._values[key].set(value)
        elif change := value - self._written.get(key, 0.0):
            # A file may be that of an earlier process of this number: it goes on from there.
            self._values[key].inc(change)
            self._written[key] = value


_guard = threading.Lock()
_mirror: Mirror | None = None


def begin_copying() -> None:
    """Copy from now on, if that has not begun."""
    global _mirror  # noqa: PLW0603 - there is one a process
    with _guard:
        if _mirror is None:
            _mirror = Mirror(LedgerCollector())
            _mirror.start()


def _forget() -> None:
    global _mirror, _guard
    _guard, _mirror = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
