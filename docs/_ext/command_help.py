"""The directive ``command-help``: what each verb of a click command prints for ``--help``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

_WIDTH = 100


def _verbs(name: str, command: click.Command) -> Iterator[tuple[str, str]]:
    """Yield the name and the help of *command* and of all that are in it."""
    with click.Context(command, info_name=name, terminal_width=_WIDTH) as context:
        yield name, command.get_help(context)
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                inner = command.get_command(context, verb)
                if inner is not None and not inner.hidden:
                    yield from _verbs(f"{name} {verb}", inner)


class CommandHelp(SphinxDirective):
    """``command-help``, with the program's name and ``module:object`` of its click command."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Return a section for each verb."""
        program, place = self.arguments
        module, _, attribute = place.partition(":")
        lines = StringList()
        for name, text in _verbs(program, getattr(importlib.import_module(module), attribute)):
            lines.extend(StringList([f"## {name}", "", "```text", *text.splitlines(), "```", ""]))
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Sphinx calls this."""
    app.add_directive("command-help", CommandHelp)
    return {"version": "1", "parallel_read_safe": True}
