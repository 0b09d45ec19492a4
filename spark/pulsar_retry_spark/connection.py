"""How to reach a cluster: a value that is sent to the workers, where it opens a client."""

from __future__ import annotations

import inspect
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import attrs
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.runtime.token import authentication
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.parsing import OptionReader

#: Arguments of `pulsar.Client` that have separate options here, or that no text can express.
_NOT_PASSED_ON = frozenset(
    {
        "self",
        "service_url",
        "authentication",
        "log_conf_file_path",
        "logger",
        "use_tls",
        "tls_trust_certs_file_path",
        "tls_allow_insecure_connection",
        "tls_validate_hostname",
    }
)

_LOG_LEVELS = {
    "debug": pulsar.LoggerLevel.Debug,
    "info": pulsar.LoggerLevel.Info,
    "warn": pulsar.LoggerLevel.Warn,
    "error": pulsar.LoggerLevel.Error,
}

#: The options of OAuth2 and what they are: the parameters of `pulsar.AuthenticationOauth2`.
_OAUTH2 = {
    "issuer_url": "the URL of the issuer",
    "private_key": "the file with the client's id and secret, as JSON, on driver and workers",
    "audience": "the audience",
    "scope": "the scope",
}

#: How a JSON web token starts, which errors must not show.
_TOKEN = re.compile(r"(?:token:)?eyJ[\w-]*\.")

_HOST = re.compile(r"[^:@\[\]]+(?::([0-9]{1,5}))?", re.ASCII)

_Argument = str | int | bool


@attrs.frozen
class ClusterConnection:
    """The cluster's address and our credentials. Hashable and picklable; `repr` shows no token.

    Attributes:
        service_url: The URL that `pulsar.Client` connects to.
        token_env: The environment variable *of the worker* that holds the token.
        token_file: A file on the worker that holds the token. It is read again at each
            reconnection, so a token that is renewed in place keeps working.
        token: The token itself, for tests only: Spark stores options in several places.
        oauth2: The parameters of `pulsar.AuthenticationOauth2`; the secret is in a file on the
            worker, which they name.
        certificate_file: The client's certificate on the worker, for mutual TLS.
        key_file: The private key of that certificate.
        tls_trust_certs_file: The certificates to trust; None for certifi's.
        tls_allow_insecure: True to accept any certificate.
        validate_hostname: True to require that the broker's certificate is for its host name.
        log_level: The lowest level that pulsar-client writes to the worker's standard output. With
            OAuth2, debug is info.
        arguments: More arguments of `pulsar.Client`.
        admin_url: The root of the REST API, which lists topics; "" if it is not known.
        private_key_file: The key on the worker that decrypts messages.
        public_key_file: The key on the worker that encrypts messages.
    """

    service_url: str
    token_env: str | None = None
    token_file: str | None = None
    token: str | None = attrs.field(default=None, repr=False)
    oauth2: tuple[tuple[str, str], ...] = ()
    certificate_file: str | None = None
    key_file: str | None = None
    tls_trust_certs_file: str | None = None
    tls_allow_insecure: bool = False
    validate_hostname: bool = False
    log_level: str = "warn"
    arguments: tuple[tuple[str, _Argument], ...] = ()
    admin_url: str = ""
    private_key_file: str | None = None
    public_key_file: str | None = None

    @classmethod
    def parse(cls, options: OptionReader) -> ClusterConnection:
        """Read the options of a connection.

        Raises:
            ConfigError: an option is invalid, ``service.url`` is missing, or there is more than one
                ``auth.*``.
        """
        service_url = options.text("service.url")
        if service_url is None:
            raise ConfigError.bad("service.url", None, "a URL such as pulsar://localhost:6650")
        if not _is_url(service_url):
            raise ConfigError(
                "service.url: expected a URL such as pulsar://localhost:6650, or with several "
                "hosts, such as pulsar://one:6650,two:6650"
            )
        ways = ("token_env", "token_file", "token")
        secrets = {way: options.text(f"auth.{way}") for way in ways}
        for way in ways[:2]:
            if _TOKEN.match(secrets[way] or ""):
                place = "an environment variable" if way == "token_env" else "a file"
                raise ConfigError(f"auth.{way}: expected the name of {place}, not the token itself")
        oauth2 = _oauth2(options)
        files = {name: options.text(f"tls.{name}") for name in ("certificate_file", "key_file")}
        given = [f"auth.{key}" for key, value in secrets.items() if value is not None]
        given += ["auth.oauth2.*"] * bool(oauth2)
        given += ["tls.certificate_file"] * (files["certificate_file"] is not None)
        if len(given) > 1:
            raise ConfigError(f"{given[1]}: expected at most one of {', '.join(given)}")
        for name, other in zip(files, reversed(files), strict=True):
            if files[name] is None and files[other] is not None:
                raise ConfigError.bad(f"tls.{name}", None, f"a file, because tls.{other} is set")
        return cls(
            service_url=service_url,
            **secrets,
            **files,
            oauth2=oauth2,
            tls_trust_certs_file=options.text("tls.trust_certs_file"),
            tls_allow_insecure=options.flag("tls.allow_insecure", False),
            validate_hostname=options.flag("tls.validate_hostname", False),
            log_level=options.choice("log.level", "warn", (*_LOG_LEVELS, "none")),
            arguments=_arguments(options),
            admin_url=options.text("admin.url") or "",
            private_key_file=options.text("crypto.private_key_file"),
            public_key_file=options.text("crypto.public_key_file"),
        )

    def key_reader(self) -> pulsar.CryptoKeyReader | None:
        """Return what reads the keys of encrypted messages; None without a key."""
        files = (self.public_key_file, self.private_key_file)
        return None if files == (None, None) else pulsar.CryptoKeyReader(*[f or "" for f in files])

    def read_token(self) -> str | None:
        """Return the token from the place that the options name; None if they name none.

        Raises:
            PulsarFailuresError: the token is missing or empty.
        """
        if self.token_env is not None:
            token = os.environ.get(self.token_env, "").strip()
            where = f"the environment variable {self.token_env} (auth.token_env)"
        elif self.token_file is not None:
            try:
                token = Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError):
                token = ""
            where = f"the file {self.token_file} (auth.token_file)"
        else:
            return self.token
        if not token:
            raise PulsarFailuresError("NO_TOKEN", f"{where} holds no token on this machine")
        return token

    def open(self) -> pulsar.Client:
        """Open a client. The caller has to close it; tasks share one (see `clients.lease`).

        Raises:
            PulsarFailuresError: the token is missing, or pulsar-client refuses the configuration.
        """
        token = authentication(self.read_token, renew=self.token_file is not None)
        try:
            return pulsar.Client(
                self.service_url,
                authentication=self._authentication() if token is None else token,
                tls_trust_certs_file_path=self.tls_trust_certs_file,
                tls_allow_insecure_connection=self.tls_allow_insecure,
                tls_validate_hostname=self.validate_hostname,
                logger=_logger(self._shown_level()),
                **cast("dict[str, Any]", dict(self.arguments)),
            )
        except (ValueError, TypeError, pulsar.PulsarException) as error:
            text = (
                "no client can be created from service.url and client.*: pulsar-client says "
                f"{error}"
            )
            raise PulsarFailuresError("INVALID_CONFIGURATION", text) from None

    def _shown_level(self) -> str:
        """Return the level to log with: at debug, pulsar-client logs OAuth2's secret and tokens."""
        return "info" if self.oauth2 and self.log_level == "debug" else self.log_level

    def _authentication(self) -> pulsar.Authentication | None:
        """Return the authentication without a token; None if there is none."""
        if self.oauth2:
            return pulsar.AuthenticationOauth2(json.dumps(dict(self.oauth2)))
        if self.certificate_file is not None and self.key_file is not None:
            return pulsar.AuthenticationTLS(self.certificate_file, self.key_file)
        return None


def _oauth2(options: OptionReader) -> tuple[tuple[str, str], ...]:
    """Read the parameters of OAuth2; none of them is a secret."""
    given = {name: options.text(f"auth.oauth2.{name}") for name in _OAUTH2}
    if not any(given.values()):
        return ()
    for name in ("issuer_url", "private_key"):
        if given[name] is None:
            raise ConfigError.bad(f"auth.oauth2.{name}", None, f"{_OAUTH2[name]}, for OAuth2")
    if str(given["private_key"]).startswith(("data:", "{")):
        raise ConfigError("auth.oauth2.private_key: expected a file, because plans show options")
    return tuple((name, value) for name, value in given.items() if value is not None)


def _is_url(text: str) -> bool:
    """Return whether *text* is a URL of one or more hosts that pulsar-client can open.

    Hosts are separated by commas. pulsar-client does not support IPv6 addresses in URLs. A URL with
    a user and password is refused as well, because it would contain a secret.
    """
    found = re.fullmatch(r"(?:pulsar(?:\+ssl)?|https?)://([^/\s]+)(?:/\S*)?", text)
    return found is not None and all(map(_is_host, found[1].split(",")))


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found[1] is None or 0 < int(found[1]) < 1 << 16)


def _logger(level: str) -> Any:
    if level == "none":
        return pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.ConsoleLogger(_LOG_LEVELS[level])


@cache
def _kinds() -> dict[str, type]:
    """Return the arguments that the installed `pulsar.Client` accepts, and the type of each."""
    parameters = inspect.signature(pulsar.Client.__init__).parameters
    return {
        name: str if each.default is None else type(each.default)
        for name, each in parameters.items()
        if name not in _NOT_PASSED_ON
    }


def _arguments(options: OptionReader) -> tuple[tuple[str, _Argument], ...]:
    arguments: dict[str, _Argument | None] = {}
    for name, kind in _kinds().items():
        key = f"client.{name}"
        if kind is bool:
            arguments[name] = options.flag(key, None)
        elif kind is int:
            arguments[name] = options.integer(key, None, minimum=0)
        else:
            arguments[name] = options.text(key)
    return tuple((name, value) for name, value in arguments.items() if value is not None)
