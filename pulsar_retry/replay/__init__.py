"""Redrive dead letters, and seek or restore a subscription together with its letters.

Everything here takes a `Cluster`, or a `Subscription` in a cluster: the main topic, the retry topic
and the dead-letter topic together.
"""

from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.patching import LetterDiff
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import Group, Redriven
from pulsar_retry.replay.seeking.goal import PartitionReport
from pulsar_retry.replay.seeking.report import LetterCounts, SeekReport
from pulsar_retry.replay.seeking.seek import seek
from pulsar_retry.replay.seeking.snapshot import Snapshot
from pulsar_retry.replay.subscription import Subscription

__all__ = [
    "Cluster",
    "Filter",
    "Group",
    "LetterCounts",
    "LetterDiff",
    "PartitionReport",
    "Redrive",
    "Redriven",
    "SeekReport",
    "Snapshot",
    "Subscription",
    "seek",
]
