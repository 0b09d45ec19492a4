"""What is posted, and which addresses it is posted to."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import _pulsar
import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.errors import ConfigError
from pulsar_retry.push.body import (
    Pushed,
    common_headers,
    names_of_letters,
    subscription_name,
    wrapped,
)
from pulsar_retry.push.endpoint import PushEndpoint, refusal
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.owner import Recipient

NAME = "projects/myproject/subscriptions/mysubscription"
SEED = {
    "message": {
        "attributes": {"key": "value"},
        "data": "SGVsbG8gQ2xvdWQgUHViL1N1YiEgSGVyZSBpcyBteSBtZXNzYWdlIQ==",
        "messageId": "2070443601311540",
        "message_id": "2070443601311540",
        "publishTime": "2021-02-26T19:13:55.749Z",
        "publish_time": "2021-02-26T19:13:55.749Z",
    },
    "subscription": NAME,
}
MESSAGE = Pushed(
    b"Hello Cloud Pub/Sub! Here is my message!",
    {"key": "value"},
    "2070443601311540",
    1_614_366_835_749,
)

#: What Pub/Sub tells receivers of a dead letter.
SOURCE = {
    "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    "CloudPubSubDeadLetterSourceSubscription": "billing",
}


def test_the_seeds_body():
    """Pub/Sub's own example, member by member."""
    assert SEED == json.loads(wrapped(MESSAGE, NAME, None))


def test_what_some_messages_have():
    """The ordering key inside, the attempt outside; a null value has no data."""
    message = Pushed(None, {}, "1:2:-1", 0, "k")
    body = json.loads(wrapped(message, NAME, 3))
    assert ("k", 3, {}, "1970-01-01T00:00:00.000Z") == (
        body["message"]["orderingKey"],
        body["deliveryAttempt"],
        body["message"]["attributes"],
        body["message"]["publishTime"],
    )
    assert "data" not in body["message"]
    assert "" == json.loads(wrapped(Pushed(b"", {}, "1", 0), NAME, None))["message"]["data"]


BILLING = Recipient.of((), "billing", None)


def received(properties: dict[str, str]) -> Pushed:
    """Read a message of pulsar-client's that has these properties."""
    builder = _pulsar.MessageBuilder().content(b"x")
    for name, value in properties.items():
        builder.property(name, value)
    return Pushed.of(builder.build(), BILLING)


def test_what_letters_say():
    """A letter is told of as the message that was published; its own properties are not sent."""
    letter = received(
        {
            "RECONSUMETIMES": "2",
            "ORIGIN_MESSAGE_ID": "7:8:-1",
            "REDRIVE_COUNT": "1",
            "FAILURE_PUBLISH_TIME": "2021-02-26T19:13:55.749+00:00",
            "FAILURE_REASON": "timeout",
            "key": "value",
        }
    )
    assert Pushed(b"x", {"key": "value"}, "7:8:-1", 1_614_366_835_749, "", 1, 3) == letter


@pytest.mark.parametrize(
    ("properties", "sent"),
    [
        ({}, {}),
        ({"key": "value"}, {"key": "value"}),
        ({"FAILURE_RULE": "r", "key": "value"}, {"key": "value"}),
        ({"MY_FAILURE_RULE": "r"}, {"MY_FAILURE_RULE": "r"}),
        ({"a\nFAILURE_RULE": "r"}, {"a\nFAILURE_RULE": "r"}),
        ({"DELAY_TIME": "5", "key": "value"}, {"key": "value"}),
        ({"DELAY": "5 min", "DEDUPE_ID": "d"}, {"DELAY": "5 min", "DEDUPE_ID": "d"}),
        ({"DELAY": "3", "RECONSUMETIMES": "0"}, {"DELAY": "3"}),
        (SOURCE, SOURCE),
        ({"REAL_TOPIC": "t", "FAILURE_REASON": "r", **SOURCE}, SOURCE),
    ],
)
def test_attributes(properties, sent):
    """Those that a producer gave the message, and no other."""
    pushed = received(properties)
    assert (sent, 1, 0) == (pushed.attributes, pushed.attempt, pushed.redrives)


def test_what_the_own_letters_say_in_another_spelling():
    """It is not sent, for the first attempt has not had it."""
    letter = _pulsar.MessageBuilder().content(b"x").property("RECONSUMETIMES", "1")
    for name, value in SOURCE.items():
        letter.property(name, value)
    letter.property("DELAY", "3")
    hidden = names_of_letters(Naming.TDMQ_2_9_2, pubsub_attributes=True)
    assert {} == Pushed.of(letter.build(), BILLING, hidden).attributes


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"ordering_key": b"\xff\x01"}, "ff01"),
        ({"partition_key": b"\xff\x01"}, "ff01"),
        ({"ordering_key": b"text", "partition_key": b"\xff"}, "text"),
    ],
)
def test_a_key_that_is_not_text(keys, sent):
    """The message is sent: a Java client's ordering keys are bytes, such as those of a number."""
    builder = _pulsar.MessageBuilder().content(b"x")
    for name, key in keys.items():
        getattr(builder, name)(key)
    assert sent == Pushed.of(builder.build(), BILLING).ordering_key


texts = st.text(max_size=40)


@given(st.binary(max_size=200), st.dictionaries(texts, texts), texts, st.integers(0, 10**13))
def test_any_message_arrives_as_it_is(data, attributes, key, moment):
    """Payload, attributes and key, whatever is in them; the body is ASCII."""
    body = wrapped(Pushed(data, attributes, "1:2:-1", moment, key), NAME, None)
    assert body.isascii()
    message = json.loads(body)["message"]
    assert (data, attributes, key) == (
        base64.b64decode(message["data"]),
        message["attributes"],
        message.get("orderingKey", ""),
    )
    assert message["publishTime"] == message["publish_time"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", message["publishTime"])


@given(st.text(max_size=60) | st.sampled_from(["a\r\nX-Evil: 1", "a\nb", "\x00", " a", "é"]))
def test_no_header_is_injected(message_id):
    """Whatever the id of the first publication is, a strict parser reads the headers meant."""
    headers = [(b"Host", b"x"), *common_headers(Pushed(b"", {}, message_id, 0), 1)]
    raw = h11.Connection(h11.CLIENT).send(h11.Request(method="GET", target="/", headers=headers))
    assert raw is not None
    server = h11.Connection(h11.SERVER)
    server.receive_data(raw)
    read: Any = server.next_event()
    sent = [b"host", b"user-agent", b"idempotency-key", b"x-pulsar-retry-attempt"]
    assert sent == [name for name, _ in read.headers]
    assert len(raw.split(b"\r\n")) == len(sent) + 3


def test_a_key_to_tell_duplicates():
    """The same at each attempt; another one after a redrive."""
    again = Pushed(b"", {}, "1:2:-1", 0, redrives=2)
    keys = [dict(common_headers(each, 1))[b"Idempotency-Key"] for each in (MESSAGE, again)]
    assert [b'"2070443601311540"', b'"1:2:-1-2"'] == keys


@pytest.mark.parametrize(
    ("topic", "tenant"),
    [
        ("orders", "public"),
        ("persistent://shop/eu/orders", "shop"),
        ("shop/eu/orders", "shop"),
        (["persistent://a/b/c", "persistent://d/e/f"], "a"),
    ],
)
def test_the_subscriptions_name(topic, tenant):
    """The tenant is the project."""
    assert f"projects/{tenant}/subscriptions/billing" == subscription_name(topic, "billing")


# -- endpoints ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:8443/a/b?c=d",
        "http://localhost:8080/push",
        "http://127.0.0.1/",
        "http://[::1]:80/",
        "http://app.localhost/",
        "https://my_service.example.com./",
        "https://bücher.example/",
    ],
)
def test_endpoints(url):
    """Https anywhere, http to this machine."""
    assert url == PushEndpoint.of(url).url


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://localhost.example.com/",
        "http://10.0.0.1/",
        "ftp://example.com/",
        "https:///push",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://example.com/a b",
        "https://example.com/\r\nX: 1",
        "https://example.com:99999/",
        "https://example.com:0/",
        "https://[::1/",
        f"https://{'a' * 64}.example.com/",
        "https://a..example.com/",
        "https://example.com/\ud800",
        "https://example.com/?\ud800",
        "https://\ud800/",
        "https://a\\b/",
        'https://a"b/',
        "https://a<b>/",
        "https://a%2eb/",
        "https://./",
        "",
        None,
        7,
    ],
)
def test_what_is_no_endpoint(url):
    """It is refused, and no secret in it is shown."""
    with pytest.raises(ConfigError, match=r"^endpoint=") as refused:
        PushEndpoint.of(url)
    assert "secret" not in str(refused.value)


def test_http_beyond_this_machine():
    """If that is what is wanted."""
    endpoint = PushEndpoint.of("http://receiver.svc:8080/x", allow_http=True)
    assert ("http://receiver.svc:8080", b"/x") == (str(endpoint), endpoint.target)


# -- the addresses that it resolves to -------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "240.0.0.1",
        "127.0.0.1",
        "::1",
        "::ffff:169.254.169.254",
        "::ffff:127.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b::127.0.0.1",
        "no address",
    ],
)
def test_never_connected_to(address):
    """Link-local, loopback behind a name, and what is no host, also as IPv6 spells IPv4."""
    assert refusal("hooks.example.com", address)


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "2606:2800:220:1::1", "10.0.0.1", "fc00::1", "64:ff9b::93.184.216.34"],
)
def test_connected_to(address):
    """What is public or private, also through a NAT64 in a network without IPv4."""
    assert refusal("hooks.example.com", address) is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "x.localhost", "::1"])
def test_loopback_by_its_name(host):
    """The endpoint says so itself."""
    assert refusal(host, "127.0.0.1") is None
    assert refusal(host, "::1") is None


@pytest.mark.parametrize("host", ["localhost", "x.localhost", "X.LOCALHOST", "127.0.0.1", "::1"])
@pytest.mark.parametrize("address", ["10.1.2.3", "93.184.216.34", "2606:2800:220:1::1"])
def test_a_loopback_name_that_leads_elsewhere(host, address):
    """It may be posted to without TLS, so nobody beyond this machine may receive it."""
    assert "not a loopback address, although its name is a loopback name" == refusal(host, address)
