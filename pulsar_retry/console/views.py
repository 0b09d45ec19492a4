"""Renders pages from templates, with escaped values."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pulsar_retry.console.access import Access
from pulsar_retry.ops.formatting import clean, short, words_of_age
from pulsar_retry.replay.redriving.report import STAYS, STOPPED
from pulsar_retry.wire.names import TopicName

FILES = Path(__file__).parent / "pages"


class Views:
    """Renders the pages. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(FILES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "age": words_of_age,
            "clean": _cleaned,
            "local": lambda topic: TopicName.parse(topic).local,
            "moment": _moment,
            "short": lambda text: short(clean(text or "")),
            "stays": lambda why: STAYS.get(why, why),
            "stopped": lambda why: STOPPED.get(why, why),
        }
        self._environment.globals |= {"link": link, "access": access}

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
        text = self._environment.get_template(template).render(path=request.url.path, **values)
        # The URL that a user typed may contain a lone surrogate.
        return HTMLResponse(text.encode("utf-8", "replace"), status)


def link(path: str, said: Mapping[str, object] | None = None, **parameters: object) -> str:
    """Return a URL path on this console with a query; empty parameters are left out.

    Args:
        path: The page.
        said: Parameters.
        parameters: More parameters, which override the others.
    """
    meant = {**(said or {}), **parameters}
    pairs = {name: str(value) for name, value in meant.items() if value not in {None, ""}}
    query = urllib.parse.urlencode(pairs, errors="replace")
    return f"{path}?{query}" if query else path


def _cleaned(text: object) -> str:
    return "" if text is None else clean(str(text))


def _moment(text: str | None) -> str:
    """Return a time that `facts_of` gives, for people."""
    if not text:
        return ""
    when = datetime.fromisoformat(text).astimezone(UTC)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
