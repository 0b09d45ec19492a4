"""What a subscription may read: never the letters that it has written itself. Pure.

A consumer that reads its own dead-letter topic as an input dead-letters what comes from there
again: to a topic of a longer name each time, or to the same one for ever.
"""

from __future__ import annotations

import re
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.wire.names import TopicName

#: Without `enable_retry` each partition has a dead-letter topic.
_PARTITION = re.compile(r"-partition-[0-9]+")

#: Stands for any topic's name in that of its letters.
_ANY = "any-topic"


def checked_sources(plan: Plan) -> None:
    """Check that none of the topics is one of the subscription's own letters.

    Raises:
        ConfigError: one is.
    """
    if plan.policy is None or not isinstance(plan.topic, str | list):
        return
    names = {each: _full(each) for each in topic_list(plan.topic)}
    for name in names.values():
        own = {_PARTITION.sub("", each) for each in _own(plan, name)}
        for each, full in names.items():
            if _PARTITION.sub("", full) in own:
                raise ConfigError.bad(
                    "topic",
                    plan.topic,
                    f"no topic of this subscription's own letters ({each}); read it by another "
                    "subscription, or name other topics in dead_letter_policy",
                )


def without_letters(plan: Plan) -> Any:
    """Return the topics to subscribe to: of a pattern all but the subscription's own letters."""
    if plan.policy is None or not isinstance(plan.topic, re.Pattern):
        return plan.topic
    domain, separator, rest = plan.topic.pattern.rpartition("://")
    namespace, slash, local = rest.rpartition("/")
    home = namespace or "public/default"
    letters = []
    for each in _own(plan, f"persistent://{home}/{_ANY}"):
        name = TopicName.parse(each)
        if f"{name.tenant}/{name.namespace}" == home:
            letters.append(re.escape(name.local).replace(re.escape(_ANY), ".*"))
    if not letters:
        return plan.topic
    # In front of the topic's own name: pulsar-client takes the namespace as it is.
    local = f"(?!(?:{'|'.join(sorted(letters))})$){local}"
    return re.compile(f"{domain}{separator}{namespace}{slash}{local}")


def _own(plan: Plan, topic: str) -> set[str]:
    """Return the full names of the letters' topics of *topic*, without partitions."""
    assert plan.policy is not None  # noqa: S101 - the callers have looked
    if plan.topics is not None:
        return {plan.topics.retry, plan.topics.dead_letter}
    named = [plan.policy.retry_letter_topic, plan.policy.dead_letter_topic]
    if None in named:
        default = plan.naming.topics(topic, plan.subscription)
        named = [named[0] or default.retry, named[1] or default.dead_letter]
    return {_full(each) for each in named if each is not None}


def _full(topic: str) -> str:
    return str(TopicName.parse(topic))
