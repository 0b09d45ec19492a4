"""Completion of words in shells: verbs, options, and the names of a real cluster."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from pulsar_retry.cli._common import completing
from pulsar_retry.cli._common.root import _root
from support.reading import SUBSCRIPTION


def test_a_shell_offers_topics_and_subscriptions(dead, environment, namespace, monkeypatch) -> None:
    """Those of the kind that the verb takes, in the form in which they are typed."""
    monkeypatch.setattr(completing, "_PATIENCE", 60.0)
    dead.subscribe().close()
    dead.fill(1)

    def offered(*words: str) -> list[str]:
        completion = ShellComplete(_root, {}, "pulsar-retry", "_PULSAR_RETRY_COMPLETE")
        return [each.value for each in completion.get_completions(list(words[:-1]), words[-1])]

    short = dead.dlq.removeprefix("persistent://")
    assert [short] == offered("dlq", "show", f"{namespace}/")
    assert [dead.dlq] == offered("redrive", dead.dlq[:-5])
    assert [dead.dlq] == offered("discard", dead.dlq[:-3])
    assert [dead.topic] == offered("seek", dead.topic)
    assert [SUBSCRIPTION] == offered("seek", dead.topic, "bil")
    assert ["keep"] == offered("redrive", dead.dlq, "--dlq-subscription", "k")
    assert [namespace] == offered("dlq", "ls", namespace)
    assert [] == offered("seek", "--admin-url", "http://127.0.0.1:1", dead.topic[:-1])
    odd = dead.dlq.replace("-billing", "$(touch x)-billing")
    dead.cluster.admin().topics.create(odd)
    assert [dead.dlq] == offered("redrive", dead.dlq[:-12])


def test_a_shell_waits_for_a_cluster_only_for_a_moment(monkeypatch) -> None:
    """Whatever takes long, such as the look-up of a name."""
    monkeypatch.setattr(completing, "_PATIENCE", 0.1)
    over = threading.Event()
    context = click.Context(_root)
    try:
        assert [] == completing._asked(context, lambda _admin: [str(over.wait())])
    finally:
        over.set()


BASH = shutil.which("bash") or ""


@pytest.mark.skipif(not BASH, reason="skipped, because there is no bash here")
def test_a_real_bash_completes_verbs_options_and_topics(dead, environment, tmp_path) -> None:
    """As a user types them, with the tabulator key; also the full names, which have colons."""
    dead.subscribe().close()
    dead.fill(1)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PS1": "$ ", "TERM": "dumb", "COLUMNS": "500"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = ""

    def typed(text: str, wanted: str) -> None:
        """Type, and wait for what the shell adds; if it adds nothing, ask for it again.

        It adds nothing if the cluster does not answer within two seconds.
        """
        nonlocal shown
        os.write(ours, text.encode())
        give_up = time.monotonic() + 120
        shown = ""
        while wanted not in shown:
            if select.select([ours], [], [], 20)[0]:
                shown += os.read(ours, 65_536).decode(errors="replace")
            else:
                assert time.monotonic() < give_up, shown
                os.write(ours, b"\t" if text.endswith("\t") else b"")

    with shell:
        try:
            typed("stty columns 500; bind 'set enable-bracketed-paste off'\n", "$ ")
            load = 'eval "$(_PULSAR_RETRY_COMPLETE=bash_source pulsar-retry)"; echo load""ed'
            typed(f"{load}\n", "loaded")
            typed("pulsar-retry red\t", "pulsar-retry redrive ")
            typed(f"{dead.dlq[:-3]}\t", f"{dead.dlq} ")
            typed("--dry-r\t", "--dry-run ")
            typed("--dlq-subscription k\t", "--dlq-subscription keep ")
            typed("\x15echo gone\n", "\ngone")
        finally:
            shell.kill()
            os.close(ours)
