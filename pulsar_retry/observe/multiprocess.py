"""Metrics of several processes, such as gunicorn's workers, scraped at any one of them.

With prometheus_client, each process writes its values into files of one directory, and a scrape
adds them up. It calls no collector for that. Therefore a thread copies the counts of this process
into its files, regularly and at the end.

Nothing is ever removed from these files. Otherwise the sum over the processes would decrease.
Prometheus takes that for a restart, and counts the remaining events as new.
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
from pulsar_retry.observe.metrics import METRICS, PREFIX, CountersCollector, Spec
from pulsar_retry.observe.sharing import VARIABLE

_log = logging.getLogger("pulsar_retry")

#: Seconds between two copies.
INTERVAL = 1.0

#: The name and the label values of a sample.
_Key = tuple[str, tuple[str, ...]]


def show_all_processes(registry: CollectorRegistry) -> None:
    """Make *registry* show the values of all processes.

    Raises:
        ConfigError: the directory does not exist.
    """
    path = os.environ[VARIABLE]
    if not Path(path).is_dir():
        raise ConfigError.bad(VARIABLE, path, "a directory that exists")
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]


#: Held while the counts are copied. A fork waits for it: prometheus_client has a lock of its own,
#: which a child would inherit as held for ever, and then not end.
_copying = threading.Lock()


class Mirror:
    """Copies the counts of this process into its files. Thread-safe."""

    def __init__(self, collector: CountersCollector) -> None:
        self._collector = collector
        self._specs = {PREFIX + spec.name: spec for spec in METRICS}
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._values: dict[_Key, Any] = {}
        self._written: dict[_Key, float] = {}
        self._gauges: set[_Key] = set()
        self._seen: set[_Key] = set()

    def start(self) -> None:
        """Copy the counts regularly, on a thread, and at the end of the process."""
        threading.Thread(target=self._run, name="pulsar-retry-metrics", daemon=True).start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Copy the counts for the last time."""
        self._ended.set()
        if self._pid == os.getpid():  # a forked child must not do this
            with contextlib.suppress(Exception):  # the directory may be gone, and the process ends
                self.copy()

    def _run(self) -> None:
        has_warned = False
        while not self._ended.wait(INTERVAL):
            try:
                self.copy()
            except Exception as error:  # noqa: BLE001 - the next copy may succeed
                if not has_warned:
                    _log.warning(
                        "the metrics could not be written (this is logged only once): %s", error
                    )
                has_warned = True

    def copy(self) -> None:
        """Copy the counts since the last time."""
        with _copying:
            self._seen.clear()
            for family in self._collector.collect():
                spec, before = self._specs[family.name], 0.0
                for sample in family.samples:
                    if sample.name.endswith("_count"):
                        continue  # the last bucket has the same value
                    value = sample.value
                    if sample.name.endswith("_bucket"):  # in the files, buckets are not cumulative
                        total = value
                        value -= before
                        before = 0.0 if sample.labels["le"] == "+Inf" else total
                    self._write(spec, sample.name, sample.labels, value)
            # Gauges that have no source any more.
            for key in self._gauges - self._seen:
                self._values[key].set(0.0)
            for key in (
                self._written.keys() - self._seen
            ):  # a subscription that starts again, starts at 0
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
            # The file may be from an earlier process with the same id; its values continue.
            self._values[key].inc(change)
            self._written[key] = value


_guard = threading.Lock()
_mirror: Mirror | None = None


def begin_copying() -> None:
    """Start copying, unless it has started."""
    global _mirror  # noqa: PLW0603 - there is one for each process
    with _guard:
        if _mirror is None:
            _mirror = Mirror(CountersCollector())
            _mirror.start()


def _finish_copy() -> None:
    _copying.acquire()


def _go_on() -> None:
    _copying.release()


def _forget() -> None:
    global _mirror, _guard, _copying
    _guard, _copying, _mirror = threading.Lock(), threading.Lock(), None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_finish_copy, after_in_parent=_go_on, after_in_child=_forget)
