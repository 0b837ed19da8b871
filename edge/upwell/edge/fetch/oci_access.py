"""Credentials for an OCI registry: found and turned into tokens by the package `oras`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import oras.auth
import oras.auth.utils
import oras.container
import requests

from upwell.edge.fetch.base import FetchFailed
from upwell.edge.fetch.reference import Reference
from upwell.edge.fetch.web import Web, host_of, is_safe

USER_VARIABLE, PASSWORD_VARIABLE = "ORAS_USER", "ORAS_PASS"
"""Where credentials may be in the environment; they go before those of Docker's configuration."""


class Access:
    """Requests to one registry, with what it asks for: nothing, basic credentials or a token.

    Credentials come from the environment (`ORAS_USER`, `ORAS_PASS`) or from Docker's configuration
    (`$DOCKER_CONFIG/config.json` or `~/.docker/config.json`, with credential helpers).
    """

    def __init__(self, web: Web, reference: Reference, *, is_plain: bool) -> None:
        self._web = web
        self._reference = reference
        self._is_plain = is_plain
        self._authorization: dict[str, str] = {}

    def open(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        """The answer to a GET, asked again with credentials if the registry wants them. Raises `FetchFailed`."""
        response = self._web.open("GET", url, {**headers, **self._authorization})
        if response.status_code != requests.codes.unauthorized:
            return response
        response.close()
        self._authorization = self._authorize(response)
        response = self._web.open("GET", url, {**headers, **self._authorization})
        if response.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
            response.close()
            raise self._denied("it refuses the credentials that it was given")
        return response

    def _authorize(self, response: requests.Response) -> dict[str, str]:
        challenge = response.headers.get("Www-Authenticate", "")
        if host_of(response.url) != self._reference.registry:
            raise FetchFailed(f"{host_of(response.url)}: wants credentials, where {self._reference.registry} sent us")
        kind = "basic" if challenge.lower().startswith("basic") else "token"
        backend = self._backend(kind)
        if kind == "token":
            realm = oras.auth.utils.parse_auth_header(challenge).realm or ""
            if not is_safe(realm, after=response.url):
                raise self._denied("it names no safe address for tokens; expected one that begins with https://")
        try:
            found, is_changed = backend.authenticate_request(response, {})
        except AttributeError:  # what `oras` comes to for basic access without credentials
            raise self._denied("it wants a user and a password") from None
        except (requests.RequestException, ValueError, OSError):
            raise self._denied("its address for tokens gives none") from None
        if not is_changed or not found.get("Authorization"):
            raise self._denied("it gives no token")
        return {"Authorization": str(found["Authorization"])}

    def _backend(self, kind: str) -> Any:
        backend = oras.auth.get_auth_backend(
            kind, self._web.session, self._is_plain, tls_verify=self._web.session.verify
        )
        user, password = os.environ.get(USER_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE, "")
        if user and password:
            backend.set_basic_auth(user, password)
            return backend
        folder = os.environ.get("DOCKER_CONFIG", "")
        file = Path(folder) / "config.json"
        try:
            backend.load_configs(
                oras.container.Container(str(self._reference)), [str(file)] if folder and file.is_file() else None
            )
        except (ValueError, KeyError, AttributeError, TypeError, OSError):
            raise FetchFailed("Docker's configuration or its credential helper cannot be read") from None
        return backend

    def _denied(self, why: str) -> FetchFailed:
        return FetchFailed(
            f"{self._reference.registry}: no access to {self._reference.repository}: {why} "
            f"(`oras login`, or {USER_VARIABLE} and {PASSWORD_VARIABLE})"
        )
