"""Login at an OpenID Connect provider: a small one on this machine, which a test can make lie."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.testclient import TestClient

from pulsar_retry.console.assembling import ConsoleOptions, assembled
from pulsar_retry.console.login.access import COOKIE, Access
from pulsar_retry.console.login.oidc import OidcLogin, OidcSettings
from pulsar_retry.console.store.database import MEMORY, Database
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay import Cluster

SECRET = "the console's secret"  # noqa: S105 - of a provider that is made up
URL = "http://dlq.example"


class Provider:
    """A provider with one user, who is logged in already."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "1"}, auto_kid=False)
        self.claims: dict[str, Any] = {"email": "ada@example.com", "groups": ["sre"]}
        self.lies: dict[str, Any] = {}
        self.signs_with = self.key
        self.codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.get(self)

            def do_POST(self) -> None:
                provider.post(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def get(self, request: Any) -> None:
        path, _, query = request.path.partition("?")
        if path == "/.well-known/openid-configuration":
            self.answer(
                request,
                {
                    "issuer": self.lies.get("issuer", self.issuer),
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                    "jwks_uri": f"{self.issuer}/keys",
                },
            )
        elif path == "/keys":
            self.answer(request, {"keys": [self.key.as_dict(private=False)]})
        else:
            asked = dict(urllib.parse.parse_qsl(query))
            assert {"openid", "S256"} <= {*asked["scope"].split(), asked["code_challenge_method"]}
            code = f"code-{len(self.codes)}"
            self.codes[code] = asked
            back = {"code": code, "state": asked["state"]}
            request.send_response(302)
            request.send_header(
                "Location", f"{asked['redirect_uri']}?{urllib.parse.urlencode(back)}"
            )
            request.end_headers()

    def post(self, request: Any) -> None:
        length = int(request.headers["Content-Length"])
        form = dict(urllib.parse.parse_qsl(request.rfile.read(length).decode()))
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        basic = base64.b64encode(f"dlq:{urllib.parse.quote(SECRET)}".encode()).decode()
        plain = base64.b64encode(f"dlq:{SECRET}".encode()).decode()
        known = request.headers.get("Authorization") in {f"Basic {basic}", f"Basic {plain}"}
        if asked is None or challenge != asked["code_challenge"] or not known:
            self.answer(request, {"error": "invalid_grant"}, 400)
            return
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": "dlq",
            "sub": "42",
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.claims,
            **self.lies,
        }
        token = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.signs_with)
        self.answer(request, {"access_token": "a", "token_type": "Bearer", "id_token": token})

    @staticmethod
    def answer(request: Any, facts: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(facts).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Give a provider."""
    provider = Provider()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture
def client(provider) -> Iterator[TestClient]:
    """Give a browser that asks a console of that provider."""
    settings = OidcSettings(
        issuer=provider.issuer,
        client_id="dlq",
        client_secret=SECRET,
        operators=["sre"],
        viewers=["support"],
    )
    access = Access("10.0.0.1", by_oidc=True)
    options = ConsoleOptions(namespaces=["public/default"])
    cluster = Cluster("pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    with contextlib.closing(Database(MEMORY)) as database:
        console = assembled(cluster, access, options, database, login=OidcLogin(settings))
        client = TestClient(console.app(), base_url=URL, follow_redirects=False)
        client.app_state["records"] = console.records
        yield client


def came_back(client: TestClient) -> str:
    """Begin a login, visit the provider, and return where it sends the user."""
    began = client.get("/login/oidc")
    assert 303 == began.status_code, began.text
    visited = httpx2.get(began.headers["location"], trust_env=False)
    back: str = visited.headers["location"]
    assert back.startswith(f"{URL}/login/oidc/callback?")
    return back


def role(client: TestClient) -> str:
    """Return the role that pages show; empty if nobody is logged in."""
    found = re.search('<span class="who"[^>]*>([a-z]+)</span>', client.get("/jobs").text)
    return found[1] if found else ""


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(["sre", "x"], "operator"), (["support"], "viewer"), ("sre", "operator")],
)
def test_a_login_gives_the_role_of_a_group(client, provider, groups, expected) -> None:
    """The page of the login leads on to the console; the session is as that of a token."""
    provider.claims["groups"] = groups
    assert 'href="/login/oidc"' in client.get("/login").text
    answer = client.get(came_back(client))
    assert 200 == answer.status_code, answer.text
    assert 'content="0; url=/"' in answer.text
    cookie = next(each for each in answer.headers.get_list("set-cookie") if COOKIE + "=" in each)
    assert {"httponly", "samesite=strict"} <= set(cookie.lower().split("; "))
    assert expected == role(client)


@pytest.mark.parametrize(
    "lies",
    [
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"exp": 1_000_000_000},
        {"nonce": "another"},
        {"groups": ["sales"]},
        {"groups": None},
    ],
    ids=str,
)
def test_a_token_that_is_not_for_us_opens_nothing(client, provider, lies) -> None:
    """Of another issuer or console, old, replayed, or of somebody without a role."""
    provider.lies = lies
    answer = client.get(came_back(client))
    assert 403 == answer.status_code
    assert COOKIE + "=" not in answer.headers.get("set-cookie", "")
    assert "" == role(client)


def test_a_signature_of_somebody_else_opens_nothing(client, provider) -> None:
    """Only keys of the provider count."""
    provider.signs_with = RSAKey.generate_key(2048, {"kid": "1"}, auto_kid=False)
    assert 403 == client.get(came_back(client)).status_code
    assert "" == role(client)


def test_a_login_ends_where_it_began_and_once(client) -> None:
    """A link with another's code (login CSRF), or one that was used, opens nothing."""
    back = came_back(client)
    stranger = dict(client.cookies)
    client.cookies.clear()
    assert 403 == client.get(back).status_code
    client.cookies.update(stranger)
    assert 403 == client.get(back).status_code  # the login was used up
    client.cookies.clear()
    back = came_back(client)
    assert 200 == client.get(back).status_code
    assert 403 == client.get(back).status_code


def test_a_provider_that_lies_about_itself_is_not_asked(client, provider) -> None:
    """Its settings must be of the issuer that was configured."""
    provider.lies = {"issuer": "https://evil.example"}
    answer = client.get("/login/oidc")
    assert 502 == answer.status_code
    assert "says that it is" in answer.text


@pytest.mark.parametrize(
    "wrong", [{"issuer": "http://login.example"}, {"operators": ()}, {"issuer": ""}]
)
def test_settings_are_checked(wrong) -> None:
    """Plain HTTP would let anybody log in; without roles nobody could."""
    settings = {"issuer": "https://login.example", "client_id": "dlq", "operators": ["sre"]}
    with pytest.raises(ConfigError, match="oidc"):
        OidcSettings(**{**settings, **wrong})


def test_an_address_counts_only_if_it_is_verified() -> None:
    """Else somebody would register as another."""
    settings = OidcSettings(
        issuer="https://login.example",
        client_id="dlq",
        claim="email",
        operators=["ada@example.com"],
        viewers=["*"],
    )
    assert "operator" == settings.role({"email": "ada@example.com", "email_verified": True})
    for said in (False, "false", "False"):  # some providers write texts
        assert "viewer" == settings.role({"email": "ada@example.com", "email_verified": said})


def test_the_audit_has_no_address_that_is_not_verified(client, provider) -> None:
    """Else somebody would act in the name of another."""
    provider.claims |= {"email_verified": "false", "preferred_username": "eve"}
    assert 200 == client.get(came_back(client)).status_code
    assert 'title="eve"' in client.get("/jobs").text


def test_strangers_do_not_fill_the_list_of_what_was_done(client) -> None:
    """The list is bounded, so their failures would remove what users have done."""
    for number in range(50):
        client.get(f"/login/oidc/callback?state={number}&code=x")
    client.get(came_back(client))
    assert 1 < len(client.app_state["records"].actions(99)) <= 12


def test_logins_that_do_not_end_are_limited(client, provider) -> None:
    """Each asks the provider, and takes the place of an earlier one; those that end count not."""
    provider.claims["groups"] = ["sre"]
    for _ in range(12):
        assert 200 == client.get(came_back(client)).status_code
    answers = [client.get("/login/oidc") for _ in range(11)]
    assert [303] * 10 + [429] == [each.status_code for each in answers]
    assert "too many logins that did not end" in answers[-1].text
    assert 1 <= int(answers[-1].headers["retry-after"])
