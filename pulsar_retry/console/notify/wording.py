"""The messages to webhooks: our own JSON, and that of Slack's incoming webhooks. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.console.notify.outbox import NoticeMessage
from pulsar_retry.console.notify.rules import Notice, NoticeKind
from pulsar_retry.ops.formatting import clean, short
from pulsar_retry.wire.names import TopicName

#: The version of our own JSON. A new field does not change it.
VERSION = 1

_PAGE = "https://pulsar-retry.readthedocs.io/en/stable/operating.html"
#: The sections of docs/operating.md.
RUNBOOKS: dict[NoticeKind, str] = {
    "new": f"{_PAGE}#dead-letters-arrive",
    "returned": f"{_PAGE}#the-same-letters-come-back",
    "growing": f"{_PAGE}#dead-letters-arrive",
}
_WORDS: dict[NoticeKind, str] = {"new": "new", "returned": "back", "growing": "growing"}
#: The longest names and texts of errors, in characters. Slack refuses longer messages.
_NAME, _TEXT, _LINE = 200, 500, 2900
#: The longest address of a page, in characters: letters choose the names in it.
_ADDRESS = 2000
#: Characters that mean something in Slack's text.
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@attrs.frozen
class Wording:
    """Makes the body of a message.

    Attributes:
        cluster: The name of the cluster.
        console: The address of the console, with a slash at the end.
        link: Returns the path and query of a page of the console, by its path and fields.
    """

    cluster: str
    console: str
    link: Callable[..., str]

    def summary(self, message: NoticeMessage) -> str:
        """Return the message in one line."""
        if not message.counts:
            return "A test: notifications of pulsar-retry arrive here"
        if len(message.notices) == 1 and not message.more:
            (one,) = message.notices
            topic = _local(one.waiting.topic)
            count = _letters(one.waiting.count)
            if not one.is_group:
                return f"{topic} is growing: {count}, {one.before:,} before"
            said = {"new": "New failure", "returned": "Failure is back", "growing": "Failure grows"}
            return f"{said[one.kind]} in {topic}: {_title(one)}, {count}"
        counts = [f"{count:,} {_WORDS[kind]}" for kind, count in _sorted(message)]
        where = f"{message.topics:,} topics"
        if message.topics == 1:
            where = _local(message.notices[0].waiting.topic)
        return f"Failures in {where}: {', '.join(counts)}"

    def as_json(self, message: NoticeMessage) -> dict[str, Any]:
        """Return the message in our own form, which docs/console.md describes."""
        return {
            "version": VERSION,
            "type": "pulsar-retry.failures" if message.counts else "pulsar-retry.test",
            "id": message.id,
            "at": _moment(message.at),
            "cluster": self.cluster,
            "console": self.console,
            "summary": self.summary(message),
            "counts": dict(_sorted(message)),
            "events": [self._event(each) for each in message.notices],
            "more": message.more,
        }

    def as_slack(self, message: NoticeMessage) -> dict[str, Any]:
        """Return the message for an incoming webhook of Slack.

        What comes from letters is plain text, in which Slack sees no markup. The text beside the
        blocks, which is for notifications, is escaped.
        """
        summary = self.summary(message)
        blocks: list[dict[str, Any]] = [_block("header", _plain(summary, 150))]
        for each in message.notices:
            event = self._event(each)
            lines = [f"{_title(each)} · {_letters(each.waiting.count)} in {_local(event['topic'])}"]
            if each.kind != "new":
                lines[0] += f", {each.before:,} before"
            if event["message"]:
                lines.append(short(event["message"], _TEXT))
            blocks.append(_block("section", _plain("\n".join(lines), _LINE)))
            links = f"<{event['url']}|Open in the console> · <{event['runbook']}|What to do>"
            blocks.append(_context({"type": "mrkdwn", "text": links, "verbatim": True}))
        if message.more:
            more = f"and {message.more:,} more"
            blocks.append(
                _context({"type": "mrkdwn", "text": f"<{self.console}|{more}>", "verbatim": True})
            )
        text = short(clean(summary), _TEXT).translate(_SLACK)
        return {"text": text, "mrkdwn": False, "unfurl_links": False, "blocks": blocks}

    def _event(self, notice: Notice) -> dict[str, Any]:
        waiting = notice.waiting
        return {
            "kind": notice.kind,
            "about": "group" if notice.is_group else "topic",
            "topic": waiting.topic,
            "reason": short(waiting.reason, _NAME),
            "error": short(waiting.error, _NAME),
            "fingerprint": short(waiting.fingerprint, _NAME),
            "message": waiting.message[:_TEXT],
            "waiting": waiting.count,
            "before": notice.before,
            "first_seen": None if waiting.first_seen is None else _moment(waiting.first_seen),
            "url": self._page(notice),
            "runbook": RUNBOOKS[notice.kind],
        }

    def _page(self, notice: Notice) -> str:
        """Return the address of the group, or of the topic, if it is not too long."""
        topic = self.link("/topic", name=notice.waiting.topic)
        pages = [self.link("/group", notice.where, name=notice.waiting.topic), topic, "/"]
        found = (self.console.rstrip("/") + each for each in pages[not notice.where :])
        return next((each for each in found if len(each) <= _ADDRESS), self.console)


def _title(notice: Notice) -> str:
    waiting = notice.waiting
    if not notice.is_group:
        return "All letters"
    names = (waiting.error, waiting.reason, waiting.fingerprint)
    return " · ".join(short(each, 80) for each in names[:2] if each) or names[2] or "no error"


def _sorted(message: NoticeMessage) -> list[tuple[NoticeKind, int]]:
    return [(kind, message.counts[kind]) for kind in _WORDS if kind in message.counts]


def _letters(count: int) -> str:
    return f"{count:,} {'letter waits' if count == 1 else 'letters wait'}"


def _local(topic: str) -> str:
    return TopicName.parse(topic).local


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _plain(text: str, most: int) -> dict[str, Any]:
    cleaned = clean(text)
    shown = cleaned if len(cleaned) <= most else cleaned[: most - 1] + "…"
    return {"type": "plain_text", "text": shown, "emoji": False}


def _block(kind: str, text: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "text": text}


def _context(element: dict[str, Any]) -> dict[str, Any]:
    return {"type": "context", "elements": [element]}
