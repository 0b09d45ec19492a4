"""Whatever is typed after `pulsar-retry`: an exit code of 0, 1 or 2, and never a traceback."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pulsar
import pytest
import uvicorn
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pulsar_retry import cli
from pulsar_retry.cli._common.root import _root
from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import Standalone


def leaves(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every verb with its words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            leaf = command.get_command(context, name)
            assert leaf is not None
            yield from leaves(leaf, *path, name)
    else:
        yield path, command


#: But the demo, which reads its data before anything else, and what serves until it is told to end.
VERBS = {path: command for path, command in leaves(_root) if path[0] not in {"demo", "metrics"}}

NAMES = {path[0] for path, _ in leaves(_root)}

#: How an error says what is wrong with the words, and what has failed: in a line, or as JSON.
WRONG = re.compile(r'^(Error: |error: |\{"code": ").*\w', re.MULTILINE)
FAILED = re.compile(r'^(Error: |error: |aborted|\{"code": ")', re.MULTILINE)

#: What a command line can carry: no NUL, but bytes that are no UTF-8.
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0") | st.sampled_from(
    "\udc80\udcff"
)
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.from_regex(r"[0-9]{1,4}(ms|s|m|h|d)?", fullmatch=True),
    st.from_regex(r"(persistent://)?[a-z]{1,4}(/[a-z]{1,4}){0,2}", fullmatch=True),
    st.from_regex(r"[a-z]{1,8}=[a-z0-9]{0,4}", fullmatch=True),
    st.sampled_from(["earliest", "latest", "retry", "origin", "2026-01-01T00:00:00Z", "a:b:c"]),
    st.sampled_from(
        ["http://127.0.0.1:1", "pulsar://127.0.0.1:1", "pulsar://[", "http://a:b", "-", "--", "{}"]
    ),
)


def values(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Return what may be said for a parameter."""
    if isinstance(parameter.type, click.Choice):
        return st.sampled_from([str(each) for each in parameter.type.choices]) | TEXTS
    if isinstance(parameter.type, click.Path | click.File):
        return st.sampled_from(["file", "missing/file", "."])  # nothing is written elsewhere
    return TEXTS


@st.composite
def command_lines(draw: st.DrawFn, path: tuple[str, ...]) -> list[str]:
    """Draw the words of a verb: some of its options, its arguments, and what it does not know."""
    words = list(path)
    options = [each for each in VERBS[path].params if isinstance(each, click.Option)]
    for option in draw(st.lists(st.sampled_from(options), max_size=4)):
        words.append(draw(st.sampled_from([*option.opts, *option.secondary_opts])))
        if not option.is_flag and not option.count:
            words.append(draw(values(option)))
    arguments = [each for each in VERBS[path].params if isinstance(each, click.Argument)]
    words += [draw(values(each)) for each in arguments if draw(st.integers(0, 9))]
    return words + draw(st.lists(TEXTS, max_size=1))


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let no verb reach anything, start anything or write outside of an own folder."""

    def unreachable(*_arguments: Any, **_options: Any) -> Any:
        raise pulsar.ConnectError("nothing is opened in a fuzz test")

    def refuse(*_arguments: Any) -> Any:
        raise ConnectionRefusedError(111, "nothing is opened in a fuzz test")

    def no_java(_self: Standalone) -> None:
        raise StandaloneError("nothing is started in a fuzz test")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("SERVICE_URL", "ADMIN_URL", "TOKEN", "TOKEN_FILE", "TLS_ALLOW_INSECURE"):
            patch.delenv(f"PULSAR_{name}", raising=False)
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        patch.setattr(pulsar.Client, "__init__", unreachable)
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(time, "sleep", lambda _seconds: None)  # before the next try to connect
        patch.setattr(Standalone, "start", no_java)
        patch.setattr(uvicorn.Server, "run", lambda *_arguments, **_options: None)
        yield Path.cwd()


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
@settings(
    max_examples=max(
        20, settings().max_examples // len(VERBS)
    ),  # the profile's, all verbs together
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_verb_with_any_arguments(path, data, capfd) -> None:
    """It works, fails with one line, or says how it is used."""
    line = data.draw(command_lines(path))

    code = cli.main(line)

    output, errors = capfd.readouterr()
    assert code in {0, 1, 2}
    assert "Traceback" not in output + errors
    if code == 2:
        assert WRONG.search(errors)
    elif code == 1:
        assert FAILED.search(errors) or (path[0] == "doctor" and output.strip())


@example(["--"])
@example(["--", "--"])
@example(["no-verb", "-h"])
@given(st.lists(TEXTS | st.sampled_from(["dlq", "push", "-h", "--json"]), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words(capfd, line) -> None:
    """What is no verb is wrong usage, and the error says so."""
    code = cli.main(line)

    _, errors = capfd.readouterr()
    words = line[1:] if line[:1] == ["--"] else line
    if not words:
        assert 2 == code
    elif words[0] in NAMES or words[0].startswith("-h"):
        assert code in {0, 1, 2}
    else:
        assert (2, True) == (code, "No such " in errors)
