"""What pulsar-client raises under a seek."""

import pulsar
import pytest

from pulsar_retry.errors import LetterPublishError, SeekError
from pulsar_retry.replay import Cluster
from pulsar_retry.replay.seeking.seek import client_of

CLUSTER = Cluster("pulsar://127.0.0.1:1")


@pytest.fixture(autouse=True)
def there_is_a_broker(monkeypatch):
    """Look for none."""
    monkeypatch.setattr(Cluster, "check", lambda _self: None)


def test_pulsar_clients_errors():
    """They come as one of ours that names the cluster, so that the command line shows a line."""
    with (
        pytest.raises(SeekError, match=r"127\.0\.0\.1:1: no answer; run it again"),
        client_of(CLUSTER),
    ):
        raise pulsar.Timeout("no answer")


def test_our_own_errors():
    """Ours stay what they are."""
    with pytest.raises(LetterPublishError), client_of(CLUSTER):
        raise LetterPublishError("topic", "why")
