"""A million messages, one after the other: `tox run -e bench`.

What a message costs at the end and what it cost at first, and what the process holds. The letters
stay outstanding, so this is also what they cost where there are 100 to 1,000,000 of them.
PULSAR_RETRY_BENCH_MESSAGES is how many, in windows of a tenth.
"""

from __future__ import annotations

import os
import re
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import attrs
import pytest

from support.benchmarks.comparing import Stopwatch
from support.benchmarks.enduring import Enduring, Window
from support.benchmarks.figures import Point, Result
from support.benchmarks.loads import CONTESTANTS, OURS, Load

MESSAGES = int(os.environ.get("PULSAR_RETRY_BENCH_MESSAGES", "1000000"))
SIZE = 100
#: Where windows end: at powers of ten first, then at each tenth.
ENDS = sorted(
    {10**power for power in range(2, 6) if 10**power < MESSAGES // 10}
    | {MESSAGES * tenth // 10 for tenth in range(1, 11)}
)
TENTH = MESSAGES // 10
#: The cost of the first tenth ought to be so much of that of the last at least. What is between is
#: noise of one run: what else the machine does.
FLOOR = 0.8


def broker_memory(admin_url: str, topic: str) -> str:
    """Return what the broker holds in memory for each letter that it has read of *topic*."""
    with urllib.request.urlopen(f"{admin_url}/metrics/", timeout=120) as response:  # noqa: S310
        text = response.read().decode()

    def total(name: str) -> float:
        lines = re.findall(rf"^{name}{{[^}}]*{topic}[^}}]*}} (\S+)", text, re.MULTILINE)
        return sum(map(float, lines))

    letters = total("pulsar_subscription_delayed")
    size = total("pulsar_delayed_message_index_size_bytes") / letters if letters else 0
    return f"{size:.1f} B, of {letters:,.0f} that it has read"


def tenths(name: str, windows: list[Window]) -> Iterator[Result]:
    """Yield how the first tenth and the last one did."""
    begin = windows[: ENDS.index(TENTH) + 1]
    first = Stopwatch.of(TENTH, sum(w.seconds for w in begin), sum(w.cpu for w in begin))
    last = Stopwatch.of(TENTH, windows[-1].seconds, windows[-1].cpu)
    for which, watch, floor in (("first", first, 0.0), ("last", last, FLOOR)):
        yield Result(
            f"{name}, the {which} tenth",
            (watch.rate, watch.rate, watch.rate),
            watch.rate / first.rate,
            watch.cpu,
            first.cpu / watch.cpu,
            floor if name in OURS else 0.0,
        )


@pytest.mark.parametrize("doing", CONTESTANTS)
@pytest.mark.usefixtures("report")
def test_a_million(benchmark, broker, namespace, doing):
    """In windows, in turn with the bare client's; the last is no dearer than the first."""
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    names = list(CONTESTANTS[doing])
    counts = [end - begin for begin, end in pairwise([0, *ENDS])]
    windows: dict[str, list[Window]] = {name: [] for name in names}

    def run() -> None:
        with ExitStack() as stack:
            running = {
                name: stack.enter_context(Enduring(broker.service_url, topic, doing, name))
                for name in names
            }
            Load(MESSAGES, SIZE).publish(broker.service_url, topic)
            for count in counts:
                for name, process in running.items():
                    windows[name].append(process.settle(count))
            if doing == "letter":
                held = broker_memory(broker.admin_url, topic.rpartition("/")[2])
                benchmark.extra_info["the broker's memory per letter"] = held

    benchmark.pedantic(run, rounds=1)
    bare = windows[names[0]]
    points = [
        Point(end, name, n / w.seconds, w.cpu / n * 1e6, base.cpu / w.cpu)
        for name in names
        for end, n, w, base in zip(ENDS, counts, windows[name], bare, strict=True)
    ]
    results = [each for name in names for each in tenths(name, windows[name])]
    benchmark.extra_info |= {
        "axis": "letters outstanding" if doing == "letter" else "messages so far",
        "points": list(map(attrs.asdict, points)),
        "results": list(map(attrs.asdict, results)),
    }
    for name in names:
        first, last = windows[name][ENDS.index(TENTH)].memory, windows[name][-1].memory
        benchmark.extra_info[f"{name}: memory"] = (
            f"{first / 2**20:.0f} MiB after the first tenth, {last / 2**20:.0f} MiB at the end: "
            f"{(last - first) / (MESSAGES - TENTH):.1f} B a message"
        )
