"""What is told of a push that was not acknowledged: in the log, and in letters."""

from __future__ import annotations

import asyncio
import copy
import string
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.errors import MOST, PushNacked, excerpt, secrets_of
from pulsar_retry.push.http import Answer, Poster
from pulsar_retry.wire.envelope import Envelope
from pulsar_retry.wire.stack import fingerprint_of
from support.push.receiving import Receiver, Request, Say

ENDPOINT = PushEndpoint.of("https://example.com/hooks/T012345678?token=s3cr3t-value")
NOW = datetime(2026, 1, 2, tzinfo=UTC)

#: One of each kind of failure.
ANSWERS = (
    *(Answer(status) for status in (301, 400, 401, 404, 410, 500, 503)),
    Answer(None, "timeout", "no answer within 10 s"),
    Answer(None, "refused", "example.com is refused"),
    Answer(None, "tls", "SSLCertVerificationError: x", error="SSLCertVerificationError"),
    Answer(None, "connection", "ConnectionRefusedError: x", error="ConnectionRefusedError"),
    Answer(None, "connection", "ConnectionResetError: x", error="ConnectionResetError"),
)


def raised(answer: Answer, token: str = "") -> PushNacked:
    """Return the error for *answer* as it is raised."""
    try:
        raise PushNacked.of(ENDPOINT, answer, token)
    except PushNacked as error:
        return error


def letter(error: PushNacked) -> dict[str, str]:
    """Return the failure properties of a dead letter."""
    envelope = Envelope.of(
        error, attempt=1, when=NOW, published=NOW, reason="retries-exhausted", topic="t"
    )
    return envelope.to_properties()


def test_each_kind_of_failure_has_a_fingerprint():
    """So `dlq show` has a row for each; it is the same for each failure of a kind."""
    prints = [fingerprint_of(raised(each)) for each in ANSWERS]
    assert len(ANSWERS) == len(set(prints))
    assert prints == [fingerprint_of(raised(each, "x")) for each in ANSWERS]


def test_what_is_repeated_of_the_request_is_left_out():
    """Error pages show paths, queries, and in debug mode headers."""
    body = (
        b"Cannot POST /hooks/T012345678?token=s3cr3t-value; no hook T012345678, "
        b"token=s3cr3t-value &amp; Authorization: Bearer aaa.bbb.ccc"
    )
    error = raised(Answer(404, body=body), "aaa.bbb.ccc")
    told = letter(error)["FAILURE_MESSAGE"]
    for hidden in ("T012345678", "s3cr3t", "aaa.bbb"):
        assert hidden not in told
    assert "Cannot POST …; no hook …" in told


def test_a_redirect_says_where_it_leads():
    """Without its query, and without the endpoint's own path."""
    leads_to = "https://www.example.com/hooks/T012345678?session=s3cr3t-value"
    assert "https://example.com: answered 301 (Location https://www.example.com…)" == str(
        raised(Answer(301, location=leads_to))
    )
    assert "answered 302 (Location /login)" in str(raised(Answer(302, location="/login\r\n?x=1")))
    assert "https://example.com: answered 301" == str(raised(Answer(301)))


def test_an_endpoint_that_echoes_the_request():
    """What is no HTTP is quoted in the error, but for the path, the query and the token."""
    token = "aaa.bbb.ccc"

    def echoed(request: Request) -> Say:
        head = "".join(f"{name} {value}\r\n" for name, value in request.headers.items())
        line = "HTTP/1.1 200 OK" if request.body == b"headers" else request.line
        return Say(f"{line}\r\n{head}\r\n".encode(), "close")

    async def use(endpoint: PushEndpoint, body: bytes) -> Answer:
        poster = Poster(endpoint, deadline=30.0)
        try:
            return await poster.post(body, [(b"Authorization", f"Bearer {token}".encode())])
        finally:
            poster.close()

    with Receiver(echoed) as receiver:
        path = "hooks/T012345678?token=s3cr3t-value"
        endpoint = PushEndpoint.of(f"http://localhost:{receiver.port}/{path}")
        for body in (b"line", b"headers"):
            answer = asyncio.run(use(endpoint, body))
            error = PushNacked.of(endpoint, answer, token)
            assert "connection" == answer.failure
            assert "illegal" in str(error)
            for shown in (str(error), repr(error), repr(answer)):
                assert not [each for each in (token, "T012345678", "s3cr3t") if each in shown]


def test_what_an_endpoint_says_instead_of_http_is_told_in_short():
    """Its log line stays one."""
    answer = Answer(None, "connection", "BrokenError: " + "x\n" * 50_000, error="BrokenError")
    text = str(raised(answer))
    assert len(text) <= MOST + len("https://example.com: ")
    assert text.isprintable()


def test_copies_and_what_they_say():
    """An error that crosses a process says the same."""
    error = raised(Answer(500, body=b"oops"))
    again = copy.copy(error)
    assert (str(error), 500, "500", "oops") == (str(again), again.status, again.kind, again.detail)
    assert "timeout" == PushNacked("no answer", None, "timeout").kind


@given(st.binary(max_size=3000), st.lists(st.text(min_size=8), max_size=3))
def test_an_excerpt_is_a_short_line_of_text(body, hidden):
    """Whatever was answered."""
    text = excerpt(body, hidden)
    assert len(text) <= MOST
    assert text.isprintable()
    assert text.encode().decode() == text


@given(st.text(string.ascii_letters + string.digits, min_size=8, max_size=40), st.data())
def test_no_excerpt_has_a_secret(secret, data):
    """Wherever it stands in the answer, whole or at the end of what is kept."""
    places = st.sampled_from(["", "x ", "%s", "/p/%s", "?a=1&key=%s "])
    around = data.draw(st.lists(places, max_size=200))
    body = "".join(each.replace("%s", secret) for each in around)
    hidden = secrets_of(PushEndpoint.of(f"https://h/p/{secret}?key={secret}").target)
    assert secret not in excerpt(body.encode(), hidden)
