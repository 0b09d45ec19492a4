"""The excerpt of an endpoint's answer for people: its beginning, without secrets. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

#: The length of an excerpt, in characters.
MOST = 500

#: The length, in characters, from which a path or query, or one part of it, may be a secret.
_WHOLE, _PART = 4, 8


def excerpt(body: bytes, hidden: Iterable[str] = ()) -> str:
    """Return the beginning of *body* on one line, without the texts of *hidden*.

    Error pages repeat parts of the request: the path, and in debug mode the headers.
    """
    text = body.decode("utf-8", "replace")
    forms = {form for each in hidden for form in (each, unquote(each), html.escape(each)) if each}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "…")
    text = "".join(each if each.isprintable() else " " for each in text)
    text = " ".join(text.split())
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def secrets_of(target: bytes) -> list[str]:
    """Return the parts of an endpoint's path and query that may be secrets."""
    whole = target.decode()
    parts = urlsplit(whole)
    values = [value for _, value in parse_qsl(parts.query)]
    wholes = [each for each in (whole, parts.path, parts.query) if len(each) >= _WHOLE]
    return wholes + [each for each in (*parts.path.split("/"), *values) if len(each) >= _PART]
