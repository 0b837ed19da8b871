"""Sends events by HTTP, each in its own POST."""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
import time
from collections.abc import Sequence
from http.client import HTTPException
from urllib.parse import quote, urlsplit

from upwell.pipelines.sinks.base import Message, Poisonous, SinkUnavailable
from upwell.pipelines.sinks.sink_settings import WebhookSettings
from upwell.shared.config.addresses import Address
from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.client_token import watch_token
from upwell.shared.oip.auth.tls_credentials import watch_client_context
from upwell.shared.oip.http.client.connection import HttpConnection
from upwell.shared.oip.http.client.connection_pool import Pool
from upwell.shared.oip.http.client.environment_proxy import ProxyRoute, proxy_for
from upwell.shared.oip.retry_after import retry_after_s

_ANSWER_BYTES = 64 << 10
"""Maximum bytes of a reply to read so that the connection can be reused; after a longer one it is closed."""

_POISONOUS = frozenset({400, 409, 413, 415, 422})
"""Statuses that reject the event itself. Others may change once the receiver is fixed."""

_VISIBLE = re.compile(r"[!-~]+")
_PORTS = {"http": 80, "https": 443}


class Webhook:
    """POSTs each message's body as `application/json`, one after the other over one connection.

    Any 2xx means accepted; 400, 409, 413, 415 and 422 mean never accepted. After anything else, including a redirect,
    the message is retried, no sooner than `Retry-After` says. `Idempotency-Key` is the message's key,
    percent-encoded. `Upwell-Signature` is `t=<unix seconds>,v1=<hex>`, where v1 is HMAC-SHA256 of `<t>.<body>` with
    the secret (Stripe's scheme), so a receiver can refuse forged or old messages. A proxy is taken from HTTPS_PROXY
    and NO_PROXY. Raises `ConfigError`, which does not show the URL: it may be secret.
    """

    leaves_device = True

    def __init__(self, settings: WebhookSettings) -> None:
        self._address, self._target = _parse_url(settings.url)
        self._timeout_s = settings.timeout_s
        self._secret = watch_token(settings.secret_file)
        is_tls = self._address.scheme == "https"
        self._context = watch_client_context(TlsFiles(ca=settings.ca)) if is_tls else None
        self._route = ProxyRoute(self._address, proxy_for(self._address), None)
        self._pool = Pool()
        self._host = _host_header(self._address)
        digest = hashlib.sha256(settings.url.encode()).hexdigest()[:12]
        self.name = f"webhook:{self._host}:{digest}"

    def deliver(self, messages: Sequence[Message]) -> None:
        """POST these messages. Each takes at most `timeout_s`."""
        for index, message in enumerate(messages):
            try:
                status, pause_s = self._post(message)
            except (OSError, HTTPException, ConfigError) as error:
                raise SinkUnavailable(f"{self._host}: {_what_happened(error)}", taken=index) from None
            if 200 <= status < 300:
                continue
            if status in _POISONOUS:
                raise Poisonous(index, f"{self._host} answered {status}")
            raise SinkUnavailable(f"{self._host} answered {status}", taken=index, retry_after_s=pause_s)

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def _post(self, message: Message) -> tuple[int, float]:
        """The status of the reply, and the seconds to wait before a retry."""
        context = self._context.get() if self._context else None
        wire = self._pool.take(context)
        if wire is not None:
            try:
                return self._exchange(wire, message, context)
            except ConnectionError:  # closed by the peer just then; a second POST has the same key
                pass
        return self._exchange(self._route.dial(context, time.monotonic() + self._timeout_s, _hold), message, context)

    def _exchange(self, wire: HttpConnection, message: Message, context: ssl.SSLContext | None) -> tuple[int, float]:
        kept = False
        try:
            wire.until_s = time.monotonic() + self._timeout_s
            wire.send([self._head(message), message.body])
            answer = wire.response("POST")
            answer.read(_ANSWER_BYTES)
            if answer.isclosed() and not answer.will_close:
                kept = self._pool.put(wire, context)
            return answer.status, retry_after_s(answer.getheader("Retry-After", ""), time.time())
        finally:
            if not kept:
                wire.close()

    def _head(self, message: Message) -> bytes:
        headers = {
            "Host": self._host,
            "User-Agent": "upwell",
            "Accept": "*/*",
            "Content-Type": "application/json",
            "Content-Length": str(len(message.body)),
            "Idempotency-Key": quote(message.key),
        }
        if self._secret is not None:
            headers["Upwell-Signature"] = signature(self._secret.get().encode(), int(time.time()), message.body)
        lines = [f"POST {self._target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("ascii")


def signature(secret: bytes, unix_s: int, body: bytes) -> str:
    """The header's value: `t=<unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>" in hexadecimal>`."""
    digest = hmac.new(secret, b"%d." % unix_s + body, hashlib.sha256).hexdigest()
    return f"t={unix_s},v1={digest}"


def _parse_url(url: str) -> tuple[Address, str]:
    """The server, and the request target: path and query."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise _unusable() from None
    if not parts.hostname or not _VISIBLE.fullmatch(url) or parts.username is not None or parts.fragment:
        raise _unusable()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(parts.hostname, port, scheme=parts.scheme), target


def _unusable() -> ConfigError:
    return ConfigError.at(None, "expected https://HOST[:PORT][/PATH][?QUERY], without a user and in ASCII", "url")


def _host_header(address: Address) -> str:
    is_usual = address.port == _PORTS[address.scheme]
    return address.bracketed_host if is_usual else f"{address.bracketed_host}:{address.port}"


def _hold(_: socket.socket) -> None:
    """Do nothing: no other thread ends the wait."""


def _what_happened(error: Exception) -> str:
    """The failure as a sentence, without any part of the URL or the secret."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, HTTPException) and not isinstance(error, OSError):  # not closed without an answer
        return "the answer is not HTTP"
    return str(getattr(error, "strerror", None) or error)
