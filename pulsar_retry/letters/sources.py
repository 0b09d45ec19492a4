"""The topics that a subscription can read: never those of its own letters. Pure.

If a consumer reads its own dead-letter topic as an input, it dead-letters these letters again. They
go to topics with longer and longer names, or to the same topic for ever.
"""

from __future__ import annotations

import re
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.wire.names import TopicName

#: Without `enable_retry` each partition has its own dead-letter topic.
_PARTITION = re.compile(r"-partition-[0-9]+")

#: A placeholder for the topic's name in the names of letters' topics.
_ANY = "any-topic"


def checked_sources(plan: Plan) -> None:
    """Check that none of the topics is a topic of the subscription's own letters.

    Raises:
        ConfigError: one of them is a topic of its letters.
    """
    if plan.policy is None or not isinstance(plan.topic, str | list):
        return
    names = {each: _full_name_of(each) for each in topic_list(plan.topic)}
    for name in names.values():
        own = {_PARTITION.sub("", each) for each in _own_letter_topics(plan, name)}
        for each, full in names.items():
            if _PARTITION.sub("", full) in own:
                raise ConfigError.bad(
                    "topic",
                    plan.topic,
                    f"topics other than this subscription's own letter topics ({each}); read that "
                    "one by another subscription, or name other letter topics in "
                    "dead_letter_policy",
                )


def without_letters(plan: Plan) -> Any:
    """Return the topics to subscribe to; for a pattern, all except those of its own letters."""
    if plan.policy is None or not isinstance(plan.topic, re.Pattern):
        return plan.topic
    domain, separator, rest = plan.topic.pattern.rpartition("://")
    namespace, slash, local = rest.rpartition("/")
    home = namespace or "public/default"
    letters = []
    for each in _own_letter_topics(plan, f"persistent://{home}/{_ANY}"):
        name = TopicName.parse(each)
        if f"{name.tenant}/{name.namespace}" == home:
            letters.append(re.escape(name.local).replace(re.escape(_ANY), ".*"))
    if not letters:
        return plan.topic
    # The lookahead precedes the local name, because pulsar-client does not treat the namespace part
    # as a pattern.
    local = f"(?!(?:{'|'.join(sorted(letters))})$){local}"
    return re.compile(f"{domain}{separator}{namespace}{slash}{local}")


def _own_letter_topics(plan: Plan, topic: str) -> set[str]:
    """Return the full names of the topics of the letters of *topic*, without partitions."""
    assert plan.policy is not None  # noqa: S101 - the callers have checked
    if plan.topics is not None:
        return {plan.topics.retry, plan.topics.dead_letter}
    named = [plan.policy.retry_letter_topic, plan.policy.dead_letter_topic]
    if None in named:
        default = plan.naming.topics(topic, plan.subscription)
        named = [named[0] or default.retry, named[1] or default.dead_letter]
    return {_full_name_of(each) for each in named if each is not None}


def _full_name_of(topic: str) -> str:
    return str(TopicName.parse(topic))
