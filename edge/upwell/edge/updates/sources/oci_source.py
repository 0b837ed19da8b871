"""A bundle in an OCI registry: `oci://registry/repository:tag` or `oci://registry/repository@sha256:...`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import oras.auth
import oras.auth.utils
import oras.container
import requests
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.source_address import Reference
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.partial_archive import Partial, fetch_archive
from upwell.edge.updates.sources.web_source import Web, download, failure, host_of, is_safe, length_of

USER_VARIABLE, PASSWORD_VARIABLE = "ORAS_USER", "ORAS_PASS"
"""The environment variables of the credentials; they take precedence over Docker's configuration."""


class Access:
    """Requests to one registry, with the access that it requires: none, basic credentials or a token.

    Credentials come from the environment (`ORAS_USER`, `ORAS_PASS`) or from Docker's configuration
    (`$DOCKER_CONFIG/config.json` or `~/.docker/config.json`, with credential helpers).
    """

    def __init__(self, web: Web, reference: Reference, *, is_plain: bool) -> None:
        self._web = web
        self._reference = reference
        self._is_plain = is_plain
        self._authorization: dict[str, str] = {}

    def open(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        """The response to a GET, repeated with credentials if the registry requires them. Raises `FetchFailed`."""
        response = self._web.open("GET", url, {**headers, **self._authorization})
        if response.status_code != requests.codes.unauthorized:
            return response
        response.close()
        self._authorization = self._authorize(response)
        response = self._web.open("GET", url, {**headers, **self._authorization})
        if response.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
            response.close()
            raise self._denied("it rejects the credentials")
        return response

    def _authorize(self, response: requests.Response) -> dict[str, str]:
        challenge = response.headers.get("Www-Authenticate", "")
        if host_of(response.url) != self._reference.registry:
            raise FetchFailed(
                f"{host_of(response.url)}: asks for credentials, and {self._reference.registry} sent us there"
            )
        kind = "basic" if challenge.lower().startswith("basic") else "token"
        backend = self._backend(kind)
        if kind == "token":
            realm = oras.auth.utils.parse_auth_header(challenge).realm or ""
            if not is_safe(realm, after=response.url):
                raise self._denied("it names no safe token address; expected one that begins with https://")
        try:
            found, is_changed = backend.authenticate_request(response, {})
        except AttributeError:  # what `oras` raises for basic access without credentials
            raise self._denied("it requires a user and a password") from None
        except (requests.RequestException, ValueError, OSError):
            raise self._denied("its token address returned no token") from None
        if not is_changed or not found.get("Authorization"):
            raise self._denied("it returned no token")
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


ARTIFACT_TYPE = "application/vnd.upwell.bundle.v1"
LAYER_TYPE = "application/vnd.upwell.bundle.v1.tar"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"

_MAX_MANIFEST_BYTES = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Config(_Document):
    mediaType: str  # noqa: N815  the specification's names


class _Layer(_Document):
    mediaType: str  # noqa: N815  the specification's names
    digest: str
    size: int = Field(ge=0)


class _Manifest(_Document):
    """The part of an image manifest that says what it is and where its layer is."""

    artifactType: str = ""  # noqa: N815  the specification's names
    config: _Config
    layers: list[_Layer]


class RegistrySource:
    """A `Source`. The manifest's digest is the token; every byte is checked against the digest that named it.

    The package `oras` provides the credentials. Blobs are fetched here, since it cannot resume downloads, waits
    without a limit, and returns no bytes of a manifest to check.
    """

    def __init__(self, reference: Reference, *, sha256: str = "", ca: Path | None = None) -> None:
        """`sha256` is the digest of the archive (the layer) if it is known from elsewhere."""
        self._reference = reference
        self._sha256 = sha256
        self._web = Web(ca)
        is_plain = reference.is_loopback and ca is None
        self._access = Access(self._web, reference, is_plain=is_plain)
        self._base = f"{'http' if is_plain else 'https'}://{reference.registry}/v2/{reference.repository}"

    def newest(self) -> AvailableBundle | None:
        """The artifact that the reference names now."""
        url = f"{self._base}/manifests/{self._reference.digest or self._reference.tag}"
        with self._access.open(url, {"Accept": MANIFEST_TYPE}) as response:
            if response.status_code == requests.codes.not_found:
                return None
            if response.status_code != requests.codes.ok:
                raise failure(response)
            data = self._web.read(response, _MAX_MANIFEST_BYTES)
            said = self._reference.digest or response.headers.get("Docker-Content-Digest", "")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if said.startswith("sha256:") and said != digest:
            raise BundleRefused(
                Refusal.DIGEST_MISMATCH,
                None,
                f"{self._reference}: the manifest has the digest {digest}; expected {said}",
            )
        return self._offer(digest, data)

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """The layer, fetched or resumed."""
        return fetch_archive(offer, into, progress, partial(self._download, offer))

    def close(self) -> None:
        """End what is in progress."""
        self._web.close()

    def _offer(self, digest: str, data: bytes) -> AvailableBundle:
        layer = self._layer(data)
        sha256 = layer.digest.removeprefix("sha256:")
        if self._sha256 and sha256 != self._sha256:
            raise BundleRefused(
                Refusal.DIGEST_MISMATCH,
                None,
                f"{self._reference}: its archive has the SHA-256 {sha256}; expected {self._sha256}",
            )
        return AvailableBundle(digest, sha256, layer.size)

    def _layer(self, data: bytes) -> _Layer:
        try:
            manifest = _Manifest.model_validate_json(data)
        except ValidationError:
            raise self._malformed("no image manifest") from None
        kind = manifest.artifactType or manifest.config.mediaType
        if kind != ARTIFACT_TYPE:
            raise self._malformed(f"an artifact of type {kind[:100]!r}")
        layers = [layer for layer in manifest.layers if layer.mediaType == LAYER_TYPE]
        if len(layers) != 1 or len(manifest.layers) != 1:
            raise self._malformed(f"{len(manifest.layers)} layers, {len(layers)} of them of type {LAYER_TYPE}")
        if not _DIGEST.fullmatch(layers[0].digest):
            raise self._malformed("a layer that is not named by its SHA-256")
        return layers[0]

    def _malformed(self, found: str) -> BundleRefused:
        expected = f"an artifact of type {ARTIFACT_TYPE} with one layer of type {LAYER_TYPE}"
        return BundleRefused(Refusal.MALFORMED, None, f"{self._reference}: holds {found}; expected {expected}")

    def _download(self, offer: AvailableBundle, archive: Partial) -> None:
        url = f"{self._base}/blobs/sha256:{offer.sha256}"

        def check(response: requests.Response) -> None:
            missing_bytes = offer.size_bytes - archive.size_bytes
            expected = missing_bytes if response.status_code == requests.codes.partial_content else offer.size_bytes
            if length_of(response) not in (0, expected):
                raise FetchFailed(f"{host_of(url)}: sends {length_of(response)} bytes; expected {expected}")

        download(self._web, partial(self._access.open, url), archive, {}, check)
