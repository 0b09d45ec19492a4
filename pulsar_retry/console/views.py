"""Renders pages from templates, with escaped values."""

from __future__ import annotations

import shlex
import time
import urllib.parse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pulsar_retry.console.forms import DONE, usual_name
from pulsar_retry.console.login import Access
from pulsar_retry.ops.formatting import clean, short, words_of_age
from pulsar_retry.replay.redriving.report import STAYS, STOPPED
from pulsar_retry.wire.envelope import moment_of
from pulsar_retry.wire.names import TopicName

FILES = Path(__file__).parent / "pages"


class Views:
    """Renders the pages. Thread-safe."""

    def __init__(self, access: Access, problem: Callable[[], str]) -> None:
        """Read the templates.

        Args:
            access: Knows who is logged in.
            problem: Returns what could not be read the last time; every page says it.
        """
        self._problem = problem
        self._environment = Environment(
            loader=FileSystemLoader(FILES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "age": words_of_age,
            "ago": lambda at: words_of_age(max(0.0, time.time() - at)),
            "clean": _cleaned,
            "count": lambda number: f"{number:,}",
            "local": lambda topic: TopicName.parse(topic).local,
            "due": _due,
            "moment": _moment,
            "namespace": _namespace,
            "shell": lambda topic: shlex.quote(usual_name(topic)),
            "short": lambda text, width=60: short(clean(str(text or "")), width),
            "when": _when,
        }
        self._environment.globals |= {
            "link": link,
            "access": access,
            "verbs_done": DONE,
            "stays": STAYS,
            "stopped": STOPPED,
        }

    def page(
        self, template: str, request: Request, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page.

        Args:
            template: The name of the template.
            request: The request.
            status: The HTTP status.
            values: The values for the template.
        """
        known = {
            "user": request.scope.get("user"),
            "path": request.url.path.rpartition("/")[2],
            "problem": self._problem(),
        }
        text = self._environment.get_template(template).render(**{**known, **values})
        # The URL that a user typed may contain a lone surrogate.
        return HTMLResponse(text.encode("utf-8", "replace"), status)


def link(path: str, said: Any = None, **parameters: object) -> str:
    """Return a relative address in this console with a query; empty parameters are left out.

    Args:
        path: The page.
        said: Parameters: a mapping, or pairs of which a name may occur several times.
        parameters: More parameters, which override the others.
    """
    given = list(said.items() if isinstance(said, Mapping) else said or ())
    pairs = [(name, value) for name, value in given if name not in parameters]
    pairs = [(n, str(v)) for n, v in [*parameters.items(), *pairs] if v not in {None, ""}]
    query = urllib.parse.urlencode(pairs, errors="replace")
    return f"{path}?{query}" if query else path


def _cleaned(text: object) -> str:
    return "" if text is None else clean(str(text))


def _namespace(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"{name.tenant}/{name.namespace}"


def _when(at: float | None) -> str:
    """Return a time in seconds since 1970, for people."""
    return "" if at is None else f"{moment_of(round(at * 1000)):%Y-%m-%d %H:%M:%S} UTC"


def _due(at: float) -> str:
    """Return in how long a time is, for people."""
    seconds = at - time.time()
    return f"in {words_of_age(seconds)}" if seconds > 0 else "now"


def _moment(text: str | None) -> str:
    """Return a time that `facts_of` gives, for people."""
    if not text:
        return ""
    when = datetime.fromisoformat(text).astimezone(UTC)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
