"""What users see: the names, the signatures, the docstrings."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry import _lazy

PUBLIC = [
    *((name, getattr(pr, name)) for name in pr.__all__ if not name.startswith("__")),
    *((name, getattr(part, name)) for part in (pr.push, pr.replay) for name in part.__all__),
]
CLASSES = [kind for _, kind in PUBLIC if inspect.isclass(kind)]

#: These take what the installed pulsar-client takes, whatever that is, under its signatures.
WRAPPED = {"Client", "Client.create_producer", "Client.create_reader", "Client.subscribe"}


def own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and properties that *kind* itself defines."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod):
            yield f"{kind.__name__}.{name}", getattr(member, "__func__", member)


MEMBERS = [member for kind in CLASSES for member in own_members(kind)]
CALLABLES = [(n, v) for n, v in (*PUBLIC, *MEMBERS) if inspect.isfunction(v) or n == "Client"]


def named(pairs: list[tuple[str, Any]]) -> Any:
    """Parametrize a test with values that are shown by their names."""
    return pytest.mark.parametrize(
        ("name", "value"), [pytest.param(*pair, id=pair[0]) for pair in pairs]
    )


def test_every_line_of_the_stub_is_a_name() -> None:
    """Otherwise type checkers would see a name that a program does not find."""
    stub = Path(str(pr.__file__) + "i").read_text(encoding="utf-8")
    assert len(stub.splitlines()) == len(_lazy.ORIGINS)


def test_names_are_found_in_a_zip_file(tmp_path: Path) -> None:
    """As Spark's `--py-files` and zipapps bring them."""
    root = Path(str(pr.__file__)).parents[1]
    archive = shutil.make_archive(str(tmp_path / "code"), "zip", root, "pulsar_retry")
    program = "import pulsar_retry as pr; print(pr.__file__, pr.Lease.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": archive},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(archive)
    assert done.stdout.endswith(" Lease\n")


def test_dir_lists_all_but_the_names_of_errors() -> None:
    """And the modules that have other names; `pulsar_retry.errors` lists its own."""
    listed = {name for name in dir(pr) if not name.startswith("_")}
    assert {"asyncio", "errors", "push", "replay"} == listed - set(pr.__all__)
    assert set(pr.__all__) - listed - {"__version__"} == {
        name for name, module in _lazy.ORIGINS.items() if module == "pulsar_retry.errors"
    }


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("Retrypolicy", "RetryPolicy"), ("Clinet", "Client"), ("Lettrs", "Letters")],
)
def test_a_misspelt_name_is_answered_with_the_right_one(wrong: str, right: str) -> None:
    """Of all names, also those that `dir` does not list."""
    with pytest.raises(AttributeError, match=f"'{wrong}'; did you mean '{right}'"):
        getattr(pr, wrong)


@pytest.mark.parametrize(
    "kind",
    [
        *(pr.Breaker, pr.DeadLetterPolicy, pr.Exponential, pr.Fixed, pr.FlowControl, pr.Hooks),
        *(pr.Lanes, pr.Lease, pr.Letters, pr.Levels, pr.RetryPolicy),
    ],
)
def test_editors_show_what_a_setting_takes(kind: type) -> None:
    """Those that read the source show a default as it is written there."""
    assert "attrs.field" not in inspect.getsource(kind)
    defaults = [each.default for each in inspect.signature(kind).parameters.values()]
    assert not [each for each in defaults if each is attrs.NOTHING]


@pytest.mark.parametrize("kind", CLASSES)
def test_subclasses_of_pulsars_stay_so(kind: type) -> None:
    """`isinstance` and type hints of existing code hold."""
    theirs = getattr(pulsar, kind.__name__, object)
    assert issubclass(kind, theirs)


def test_client_takes_what_pulsars_takes() -> None:
    """The same parameters, names, order, kinds and defaults."""
    assert inspect.signature(pulsar.Client) == inspect.signature(pr.Client)


@pytest.mark.parametrize(
    "method", ["create_producer", "create_reader", "create_table_view", "get_topic_partitions"]
)
def test_methods_of_the_client_take_what_pulsars_take(method: str) -> None:
    """What is only passed on keeps its signature."""
    theirs = inspect.signature(getattr(pulsar.Client, method))
    assert theirs == inspect.signature(getattr(pr.Client, method))


def shape(parameters: list[inspect.Parameter]) -> list[tuple[str, Any, Any]]:
    """Return what a caller depends on; annotations are ours to better."""
    return [(each.name, each.kind, each.default) for each in parameters]


def test_subscribe_starts_with_pulsars_parameters() -> None:
    """Names, order, kinds and defaults, so positional calls mean the same."""
    theirs = list(inspect.signature(pulsar.Client.subscribe).parameters.values())
    ours = list(inspect.signature(pr.Client.subscribe).parameters.values())
    assert shape(theirs) == shape(ours[: len(theirs)])


def test_what_subscribe_adds_is_keyword_only_with_a_default() -> None:
    """An upstream argument that is new one day takes no position of ours."""
    theirs = inspect.signature(pulsar.Client.subscribe).parameters
    ours = inspect.signature(pr.Client.subscribe).parameters
    added = {name: each for name, each in ours.items() if name not in theirs}
    assert {
        "enable_retry",
        "naming",
        "delay_levels",
        "negative_ack_backoff",
        "max_pending_letters",
        "letter_send_timeout",
        "hooks",
        "letter_encryption_key",
        "plain_letters",
    } == set(added)
    assert {inspect.Parameter.KEYWORD_ONLY} == {each.kind for each in added.values()}
    assert inspect.Parameter.empty not in [each.default for each in added.values()]


@pytest.mark.parametrize("name", sorted(n for n in vars(pulsar.Consumer) if not n.startswith("_")))
def test_a_consumer_does_all_that_pulsars_does(name: str) -> None:
    """Each method is there and can be called with pulsar-client's arguments."""
    theirs = shape(list(inspect.signature(getattr(pulsar.Consumer, name)).parameters.values()))
    ours = inspect.signature(getattr(pr.Consumer, name)).parameters.values()
    positional = [each for each in ours if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert theirs == shape(positional)


@named([pair for pair in CALLABLES if pair[0] not in WRAPPED])
def test_every_argument_is_named(name: str, value: Any) -> None:
    """No `*args` and no `**kwargs`: a misspelt argument is an error."""
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    kinds = {each.kind for each in inspect.signature(value).parameters.values()}
    assert set() == kinds & variable, name


def test_parts_are_imported_when_they_are_asked_for() -> None:
    """`pr.replay` needs no import of its own, and costs those nothing who do not use it."""
    program = """
import sys
import pulsar_retry as pr
assert not [name for name in sys.modules if name.startswith("pulsar_retry.policy")]
assert pr.Client
assert not {"asyncio", "multiprocessing", "urllib3"} & set(sys.modules)
assert not {"pulsar_retry.admin", "pulsar_retry.replay"} & set(sys.modules)
assert pr.replay.Cluster().admin_url == "http://localhost:8080"
assert "h11" not in sys.modules
assert pr.push.Dispatcher
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_metrics_cost_an_import_only_those_who_show_them() -> None:
    """They are counted without prometheus_client, which imports an HTTP server."""
    program = """
import sys
import pulsar_retry as pr
from pulsar_retry.observe.watch import Watch
assert Watch
assert "prometheus_client" not in sys.modules
assert pr.start_metrics_server is pr.start_metrics_server
assert "prometheus_client" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_misspelt_name_is_an_error() -> None:
    """The package's own `__getattr__` says what Python would."""
    with pytest.raises(AttributeError, match="module 'pulsar_retry' has no attribute 'replya'"):
        pr.replya  # noqa: B018 - it is the look-up that is tested
