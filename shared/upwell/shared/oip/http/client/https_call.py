"""One HTTPS call on its own connection, for rare or manual requests.

Both the time of the whole call, however slowly bytes come, and the size of the answer are bounded. Redirects are not
followed, and the environment's proxy is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from upwell.shared.config.security import ClientSecurity, TlsFiles, check_endpoint
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.bearer_tokens import watch_token
from upwell.shared.oip.http.client.connection_pool import CONNECT_S, ProxyRoute
from upwell.shared.oip.http.client.exchange import Exchange, Received, converse, failed
from upwell.shared.oip.http.client.proxy import proxy_for
from upwell.shared.oip.http.tls_contexts import watch_client_context


class HttpsCaller:
    """Calls one server. `endpoint` is `https://HOST[:PORT]`. Changed PEM and token files take effect with the next
    call.

    Raises `ConfigError` for a wrong endpoint, and for files that are wrong now.
    """

    def __init__(self, endpoint: str, security: ClientSecurity) -> None:
        address = check_endpoint(endpoint, security)
        if address.scheme != "https":
            raise ConfigError.at(None, f"{endpoint!r} is not an address; expected https://HOST:PORT")
        self.endpoint = endpoint
        self._address = address
        self._context = watch_client_context(security.tls or TlsFiles())
        self._token = watch_token(security.token_file)
        self._route = ProxyRoute(address, proxy_for(address), None)

    def call(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"",
        timeout_s: float = 30.0, max_bytes: int = 4 << 20,
    ) -> Received:  # fmt: skip
        """The answer, whatever its status. Raises `RemoteError` if none came, or one larger than `max_bytes`."""
        until_s = time.monotonic() + timeout_s
        host = f"Host: {self._address.authority}"
        lines = [f"{method} {self._address.prefix}{path} HTTP/1.1", host, "Connection: close"]
        lines += ["Accept-Encoding: identity", "User-Agent: upwell", f"Content-Length: {len(body)}"]
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token.get()}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        exchange = Exchange(["\r\n".join([*lines, "", ""]).encode("ascii"), body], method, until_s)
        try:
            dial_until_s = min(until_s, time.monotonic() + CONNECT_S)
            with self._route.dial(self._context.get(), dial_until_s, exchange.hold) as wire:
                wire.until_s = until_s
                received, _ = converse(wire, exchange, max_bytes)
                return received
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 (`failed` says what it means)
            raise failed(error, until_s) from None
