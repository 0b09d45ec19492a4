"""The `pulsar-retry` command lines in the documentation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from pulsar_retry.cli._common.root import _root

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *(ROOT / "docs").rglob("*.md"),
]
BLOCK = re.compile(r"^```(?:bash|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:\$ )?pulsar-retry ((?:.*\\\n)*.*)$", re.MULTILINE)
INLINE = re.compile(r"`pulsar-retry ([^`|…]+)`")


def commands() -> list[str]:
    """Return what follows `pulsar-retry` in code blocks and in code within a text."""
    found = set()
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for block in BLOCK.findall(text):
            found.update(LINE.findall(block))
        found.update(INLINE.findall(BLOCK.sub("", text)))
    return sorted(re.split(" [#>]", command.replace("\\\n", " "))[0] for command in found)


def verb_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the verb that *words* name, and the rest."""
    command: click.Command = _root
    while isinstance(command, click.Group) and words and words != ["--help"]:
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("command", commands())
def test_the_verb_takes_them(command):
    """Verbs, options and values are accepted; abbreviations are not. A verb alone is a name."""
    verb, words = verb_of(shlex.split(command))
    known = {name for option in verb.params for name in (*option.opts, *option.secondary_opts)}

    used = {word.partition("=")[0] for word in words if word.startswith("--")}

    assert used <= known | {"--help"}
    if words and "--help" not in words:
        verb.make_context(str(verb.name), words)


def verbs() -> dict[str, click.Command]:
    """Return all verbs by their names."""
    found, groups = {}, [("", _root)]
    while groups:
        path, group = groups.pop()
        for name in group.list_commands(click.Context(group)):
            verb = group.get_command(click.Context(group), name)
            assert verb is not None
            if isinstance(verb, click.Group):
                groups.append((f"{path} {name}", verb))
            found[f"{path} {name}".strip()] = verb
    return found


VERBS = verbs()


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_has_json_and_help_on_one_screen(name):
    """JSON is also for its errors. The help has an example, and 48 lines of 100 columns."""
    help_ = VERBS[name].get_help(
        click.Context(VERBS[name], info_name=name, terminal_width=100, max_content_width=100)
    )
    assert help_.partition("Example:")[2].strip().startswith(f"pulsar-retry {name}")
    assert len(help_.splitlines()) <= 48
    if not isinstance(VERBS[name], click.Group):
        assert "--json" in {option for each in VERBS[name].params for option in each.opts}


def test_all_verbs_are_looked_at():
    """With the groups."""
    assert len(VERBS) >= 20


def test_there_are_commands():
    """The patterns above still find what they are for."""
    assert len(commands()) > 20
