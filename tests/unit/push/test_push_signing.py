"""Who posts: tokens, and what their verifier refuses."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from google.auth.transport import requests as google_requests
from google.oauth2 import id_token
from prometheus_client import CollectorRegistry

from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.serving import serve_registry
from pulsar_retry.push import (
    KeysUnavailableError,
    ServiceAccount,
    VerificationError,
    Verifier,
    tokens,
)
from pulsar_retry.push import verifier as verifying
from pulsar_retry.push.tokens import key_pages

AUDIENCE, EMAIL = "https://example.com/push", "push@example.com"
SECRET = b"0123456789abcdef"


def pem(key: Any) -> bytes:
    """Return a private key as PEM."""
    raw: bytes = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return raw


def rsa_key(bits: int = 2048) -> Any:
    """Return a new RSA key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


KEY, OTHER_KEY = rsa_key(), rsa_key()
PUBLIC_PEM = KEY.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def account() -> ServiceAccount:
    """Return an account that signs."""
    return ServiceAccount(EMAIL, pem(KEY), key_id="one", subject="113774264463038321964")


@pytest.fixture
def verifier(account: ServiceAccount) -> Verifier:
    """Return a verifier of its tokens."""
    return Verifier(account.jwks(), audience=AUDIENCE, email=EMAIL)


def claims(**changes: Any) -> dict[str, Any]:
    """Return good claims, with *changes*; None leaves one out."""
    now = int(time.time())
    good = {
        "aud": AUDIENCE,
        "azp": "1",
        "sub": "1",
        "email": EMAIL,
        "email_verified": True,
        "iat": now,
        "exp": now + 3600,
        "iss": "https://accounts.google.com",
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(key: Any = KEY, algorithm: str = "RS256", kid: str = "one", **changes: Any) -> str:
    """Return a token of our own making."""
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers={"kid": kid})


def test_the_seeds_claims(account):
    """Header and claims are those of Pub/Sub's page."""
    token = account.token(AUDIENCE)
    assert {"alg": "RS256", "kid": "one", "typ": "JWT"} == jwt.get_unverified_header(token)
    found = jwt.decode(token, PUBLIC_PEM, algorithms=["RS256"], audience=AUDIENCE)
    assert {"aud", "azp", "email", "sub", "email_verified", "exp", "iat", "iss"} == set(found)
    assert (3600, "https://accounts.google.com", "113774264463038321964", True) == (
        found["exp"] - found["iat"],
        found["iss"],
        found["azp"],
        found["email_verified"],
    )


@pytest.fixture
def wall(monkeypatch) -> list[float]:
    """Set the time by which tokens are signed: the first item of this."""
    wall = [1_000_000.0]
    monkeypatch.setattr(tokens, "time", SimpleNamespace(time=lambda: wall[0]))
    return wall


def test_a_token_is_used_again_until_close_to_its_end(account, wall):
    """For 55 of 60 minutes."""
    first = account.token(AUDIENCE)
    wall[0] += 3299
    assert first == account.token(AUDIENCE)
    wall[0] += 2
    assert first != account.token(AUDIENCE)


def test_the_clock_is_set_back(account, wall):
    """No token stays in use that receivers take for one of the future."""
    first = account.token(AUDIENCE)
    wall[0] -= 86_400
    assert first != account.token(AUDIENCE)


def test_each_audience_has_a_token_of_its_own(account, wall):
    """Dispatchers may share an account."""
    first, other = account.token(AUDIENCE), account.token("https://other")
    assert first != other
    wall[0] += 10
    assert (first, other) == (account.token(AUDIENCE), account.token("https://other"))


def test_verified(account, verifier):
    """What the dispatcher sends, as any server spells headers."""
    value = f"Bearer {account.token(AUDIENCE)}"
    for spelling in ("Authorization", "authorization"):
        assert EMAIL == verifier.verify({spelling: value})["email"]


def test_a_receiver_whose_clock_is_behind(account):
    """Two seconds, or nearly a minute: the token was issued by then."""
    token = account.token(AUDIENCE)
    for behind in (2, 55):
        assert jwt.decode_complete(token, options={"verify_signature": False})["payload"][
            "iat"
        ] <= (time.time() - behind)


def test_the_key_changes():
    """The new key and the old one are published together, while one of them signs."""
    old = ServiceAccount(EMAIL, pem(KEY), key_id="old")
    new = ServiceAccount(EMAIL, pem(OTHER_KEY), key_id="new")
    before = ServiceAccount(EMAIL, pem(KEY), key_id="old", others=[new])
    after = ServiceAccount(EMAIL, pem(OTHER_KEY), key_id="new", others=[old])
    for signer, key_id in ((before, "old"), (after, "new")):
        token = signer.token(AUDIENCE)
        assert key_id == jwt.get_unverified_header(token)["kid"]
        for published in (before, after):
            assert {"old", "new"} == {key["kid"] for key in published.jwks()["keys"]}
            keys = Verifier(published.jwks(), audience=AUDIENCE, email=EMAIL)
            assert EMAIL == keys.verify_token(token)["email"]
            info = published.token_info(token)
            assert info is not None
            assert key_id == info["kid"]
    assert None is new.token_info(old.token(AUDIENCE))


def none_token() -> str:
    """Return a token that says it needs no signature."""
    return jwt.encode(claims(), None, algorithm="none", headers={"kid": "one"})


def confused() -> str:
    """Return a token signed by HMAC with the public key, which everybody has, for the secret."""
    part = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=")
        for each in ({"alg": "HS256", "typ": "JWT", "kid": "one"}, claims())
    ]

    mac = hmac.digest(PUBLIC_PEM, b".".join(part), "sha256")
    return b".".join([*part, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()


def tampered() -> str:
    """Return a token whose claims were changed."""
    head, body, tail = signed().split(".")
    other = json.loads(base64.urlsafe_b64decode(body + "==")) | {"sub": "evil"}
    return (
        f"{head}.{base64.urlsafe_b64encode(json.dumps(other).encode()).decode().strip('=')}.{tail}"
    )


def key_in_the_header() -> str:
    """Return a token that brings its own key."""
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_KEY.public_key(), as_dict=True)
    headers = {"kid": "one", "jwk": jwk, "jku": "https://evil.example.com", "x5u": "x"}
    return jwt.encode(claims(), OTHER_KEY, algorithm="RS256", headers=headers)


now = int(time.time())
EC_KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(none_token(), id="alg none"),
        pytest.param(none_token().replace(".", ".", 1) + "x", id="alg none with a signature"),
        pytest.param(confused(), id="HMAC by the public key"),
        pytest.param(signed(SECRET * 2, "HS256"), id="HMAC"),
        pytest.param(signed(EC_KEY, "ES256"), id="another algorithm"),
        pytest.param(signed(KEY, "PS256"), id="another algorithm of RSA"),
        pytest.param(signed(OTHER_KEY), id="another key"),
        pytest.param(signed(kid="two"), id="an unknown key"),
        pytest.param(key_in_the_header(), id="a key of its own"),
        pytest.param(tampered(), id="changed"),
        pytest.param(signed(aud="https://example.com/other"), id="another audience"),
        pytest.param(signed(aud=[AUDIENCE, "https://x"]), id="several audiences"),
        pytest.param(signed(aud=None), id="no audience"),
        pytest.param(signed(exp=now - 31), id="expired"),
        pytest.param(signed(exp=None), id="no end"),
        pytest.param(signed(iat=now + 36_000), id="from the future"),
        pytest.param(signed(nbf=now + 36_000), id="not yet"),
        pytest.param(signed(iss="https://evil.example.com"), id="another issuer"),
        pytest.param(signed(iss=None), id="no issuer"),
        pytest.param(signed(email="evil@example.com"), id="another email"),
        pytest.param(signed(email=None), id="no email"),
        pytest.param(signed(email_verified=False), id="not verified"),
        pytest.param(signed(email_verified="false"), id="not verified, as text"),
        pytest.param(signed(email_verified=None), id="nothing about it"),
        pytest.param("", id="empty"),
        pytest.param("a.b.c", id="nonsense"),
        pytest.param("x" * 20_000, id="huge"),
    ],
)
def test_attacks_are_refused(verifier, token):
    """Each for its reason; the sender is told none."""
    with pytest.raises(VerificationError):
        verifier.verify({"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("value", [None, "", "Bearer", "Basic abc", signed()])
def test_no_bearer_token(verifier, value):
    """Nothing, or something else."""
    with pytest.raises(VerificationError, match="no bearer token"):
        verifier.verify({} if value is None else {"Authorization": value})


@pytest.mark.parametrize(
    "value", ["Bearer \udcff", "Bearer a.b.\ud800", "\udcff", "Bearer \x00.é.c"]
)
def test_headers_of_nonsense_are_no_token(verifier, value):
    """The error is the verification's."""
    with pytest.raises(VerificationError):
        verifier.verify({"Authorization": value})


def test_the_audience_in_capitals(account):
    """Pub/Sub's page: "A single, case-insensitive string"."""
    verifier = Verifier(account.jwks(), audience=AUDIENCE.upper(), email=EMAIL)
    assert AUDIENCE == verifier.verify_token(account.token(AUDIENCE))["aud"]


# -- Google's own receiver ------------------------------------------------------------------------


@pytest.fixture
def served(account: ServiceAccount, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the URL of a server that has the account's keys."""
    monkeypatch.setenv("no_proxy", "*")
    pages = key_pages(account)
    with serve_registry(CollectorRegistry(), 0, "127.0.0.1", pages=pages) as server:
        yield server.url


def fetched(url: str) -> bytes:
    """Return what is at *url*."""
    with urlopen(url, timeout=30) as response:
        content: bytes = response.read()
        return content


def test_googles_receiver(account, served, monkeypatch):
    """It verifies our tokens, and needs nothing but another URL of the keys."""
    monkeypatch.setattr(id_token, "_GOOGLE_OAUTH2_CERTS_URL", served + "/.well-known/jwks.json")
    token, transport = account.token(AUDIENCE), google_requests.Request()
    found = id_token.verify_oauth2_token(token, transport, audience=AUDIENCE)
    assert (EMAIL, True) == (found["email"], found["email_verified"])
    with pytest.raises(jwt.PyJWTError, match=r"[Aa]udience"):
        id_token.verify_oauth2_token(token, transport, audience="https://example.com/other")
    for bad in (tampered(), signed(OTHER_KEY), signed(exp=int(time.time()) - 60)):
        with pytest.raises(jwt.PyJWTError):
            id_token.verify_oauth2_token(bad, transport, audience=AUDIENCE)


def test_tokeninfo(account, served):
    """The answer of Pub/Sub's page, texts throughout; what is not good is refused."""
    token = account.token(AUDIENCE)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert {
        "alg": "RS256",
        "aud": AUDIENCE,
        "azp": "113774264463038321964",
        "email": EMAIL,
        "email_verified": "true",
        "exp": str(claims["exp"]),
        "iat": str(claims["iat"]),
        "iss": "https://accounts.google.com",
        "kid": "one",
        "sub": "113774264463038321964",
        "typ": "JWT",
    } == json.loads(fetched(f"{served}/tokeninfo?id_token={token}"))
    expired = signed(exp=int(time.time()) - 60)
    for bad in (tampered(), signed(OTHER_KEY), none_token(), expired, "x" * 20_000, ""):
        with pytest.raises(HTTPError, match="400") as refused:
            fetched(f"{served}/tokeninfo?id_token={bad}")
        refused.value.close()


def test_tokens_that_are_asked_about_are_in_no_log(account, served, caplog):
    """Neither at DEBUG."""
    token = account.token(AUDIENCE)
    with caplog.at_level("DEBUG"):
        fetched(f"{served}/tokeninfo?id_token={token}")
    assert token.rpartition(".")[2] not in caplog.text


def test_clock_skew(verifier, account):
    """Half a minute is forgiven, unless nothing is to be."""
    late = {"Authorization": f"Bearer {signed(exp=int(time.time()) - 1)}"}
    assert verifier.verify(late)
    strict = Verifier(account.jwks(), audience=AUDIENCE, email=EMAIL, leeway=0)
    with pytest.raises(VerificationError, match="expired"):
        strict.verify(late)


@pytest.mark.parametrize(
    "arguments",
    [
        {"email": " "},
        {"private_key": "secret nonsense"},
        {"private_key": pem(EC_KEY)},
        {"private_key": pem(rsa_key(1024))},
        {"private_key": None},
        {"issuer": ""},
        {"others": "secret"},
        {"others": [ServiceAccount(EMAIL, pem(KEY))]},
    ],
)
def test_an_account_of_nonsense(arguments):
    """It is refused, and the key is not shown."""
    with pytest.raises(ConfigError) as refused:
        ServiceAccount(**({"email": EMAIL, "private_key": pem(KEY)} | arguments))
    assert "secret" not in str(refused.value)
    assert "BEGIN" not in str(refused.value)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"client_email": "a", "private_key": "secret"}']
)
def test_a_key_file_of_nonsense(tmp_path, content):
    """Likewise."""
    path = tmp_path / "key.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        ServiceAccount.from_file(path)
    assert '"secret"' not in str(refused.value)


def test_nothing_is_shown(account):
    """Of the key, by repr."""
    assert "<ServiceAccount push@example.com, key one>" == repr(account)
    assert {"n", "e", "kty", "alg", "use", "kid", "key_ops"} >= set(account.jwks()["keys"][0])


# -- key sets -------------------------------------------------------------------------------------


def test_what_is_no_key_is_skipped(account):
    """The keys beside it are used."""
    keys = {"keys": ["x", None, {"kid": "two"}, *account.jwks()["keys"]]}
    verifier = Verifier(keys, audience=AUDIENCE, email=EMAIL)
    assert verifier.verify_token(account.token(AUDIENCE))


OK = b"HTTP/1.1 200 OK\r\n\r\n"


def key_answer(account: ServiceAccount) -> bytes:
    """Return the answer of who serves the account's keys."""
    return OK + json.dumps(account.jwks()).encode()


@contextlib.contextmanager
def key_server(left: list[bytes], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Give the URL of a server that gives one answer of *left* after the other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(left.pop(0))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://localhost:{server.server_port}/jwks"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_keys_from_a_url(account):
    """As Google serves its own."""
    with key_server([key_answer(account)]) as url:
        verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
        assert verifier.verify_token(account.token(AUDIENCE))


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Set the time of the verifier, and of the library that fetches its keys: the `now` of this."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    for each in (verifying, jwt.jwks_client, jwt.jwk_set_cache, jwt.api_jwk):
        monkeypatch.setattr(each, "time", clock)
    return clock


def test_keys_are_fetched_once_an_hour(account, clock):
    """However many requests there are."""
    left = [key_answer(account), key_answer(account)]
    with key_server(left) as url:
        verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
        for seconds, unused in ((0, 1), (1, 1), (3599, 1), (3601, 0)):
            clock.now = 1000.0 + seconds
            assert verifier.verify_token(account.token(AUDIENCE))
            assert unused == len(left)


def test_a_new_key_is_fetched(account, clock):
    """A dispatcher may change its key at any time; strangers cannot make us fetch all the time."""
    other = ServiceAccount(EMAIL, pem(OTHER_KEY), key_id="two")
    left = [key_answer(account), key_answer(other), key_answer(other)]
    with key_server(left) as url:
        verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
        assert verifier.verify_token(account.token(AUDIENCE))
        clock.now += 31
        assert verifier.verify_token(other.token(AUDIENCE))
        for _ in range(100):
            with pytest.raises(VerificationError, match="not known"):
                verifier.verify_token(signed(kid="three"))
        assert verifier.verify_token(other.token(AUDIENCE))
        assert 1 == len(left)


def test_without_its_server_nothing_is_verified(account, clock):
    """It is asked every 30 s, however many requests there are, and all is well when it is back."""
    down = b"HTTP/1.1 503 Down\r\n\r\n"
    left = [down, down, key_answer(account), down, down, key_answer(account)]
    token = account.token(AUDIENCE)
    with key_server(left) as url:
        verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
        for began in (0, 4000):
            for seconds, unused in ((0, 2), (1, 2), (29, 2), (31, 1), (32, 1)):
                clock.now = 1000.0 + began + seconds
                with pytest.raises(KeysUnavailableError):
                    verifier.verify_token(token)
                assert unused == len(left) - (0 if began else 3)
            clock.now += 31
            assert verifier.verify_token(token)
        assert [] == left


@pytest.fixture
def tls(tmp_path, monkeypatch) -> ssl.SSLContext:
    """Return the context of a server that this process trusts."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return context


def test_keys_by_tls(account, tls):
    """From a server that this process trusts."""
    with key_server([key_answer(account)], tls) as url:
        verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
        assert verifier.verify_token(account.token(AUDIENCE))


@pytest.mark.parametrize(("asked_by_tls", "answered_by_tls"), [(1, 1), (0, 0), (1, 0)])
def test_no_redirect_leads_to_keys(account, tls, asked_by_tls, answered_by_tls):
    """Where it leaves https, anyone could give keys."""
    with key_server([key_answer(account)], tls if answered_by_tls else None) as elsewhere:
        redirect = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}\r\n\r\n".encode()
        with key_server([redirect], tls if asked_by_tls else None) as url:
            verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
            with pytest.raises(KeysUnavailableError):
                verifier.verify_token(account.token(AUDIENCE))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"SSH-2.0-x\r\n\r\n", id="no HTTP"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", id="broken off"
        ),
        pytest.param(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n", id="to nowhere"),
        pytest.param(OK + b"\xff\xfe", id="no text"),
        pytest.param(OK + b"[" * 100_000, id="deep"),
        pytest.param(OK + b"x" * 300_000, id="long"),
        pytest.param(OK + b"[1]", id="a list"),
        pytest.param(OK + b"{}", id="no keys"),
        pytest.param(OK + b'{"keys": 7}', id="keys that are a number"),
        pytest.param(OK + b'{"keys": {"a": 1}}', id="keys by their names"),
        pytest.param(OK + b'{"keys": ["x", null]}', id="keys that are none"),
    ],
)
def test_keys_outlive_a_bad_answer(account, clock, bad):
    """Whatever it is, it gives no keys, and old ones are used on."""
    with key_server([key_answer(account), bad]) as url:
        verifier = Verifier(url, audience=AUDIENCE, email=EMAIL)
        assert verifier.verify_token(account.token(AUDIENCE))
        clock.now += 31
        with pytest.raises(KeysUnavailableError):
            verifier.verify_token(signed(kid="two"))
        assert verifier.verify_token(account.token(AUDIENCE))


@pytest.mark.parametrize(
    "keys",
    [
        "http://example.com/keys",
        "http://keys.localhost/keys",
        "nonsense",
        {},
        {"keys": []},
        {"keys": 7},
        {"keys": {"a": 1}},
        {"keys": ["x", None]},
        None,
    ],
)
def test_keys_of_nonsense(keys):
    """Fetched by https alone, or on this machine."""
    with pytest.raises(ConfigError):
        Verifier(keys, audience=AUDIENCE, email=EMAIL)
