"""Which source a line of agent.yaml means."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from upwell.edge.fetch.base import Source
from upwell.edge.fetch.folder_source import SUFFIX, FolderSource
from upwell.edge.fetch.reference import SCHEME, Reference
from upwell.shared.errors import ConfigError
from upwell.shared.oip.security import Address

MAX_BYTES = 2 << 30
"""The largest archive that is fetched."""

_EXPECTED = f"expected a folder, https://HOST/NAME{SUFFIX} or oci://REGISTRY/REPOSITORY:TAG"
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def open_source(text: str, *, digest: str = "", ca: Path | None = None, max_bytes: int = MAX_BYTES) -> Source:
    """The source that `text` names: a folder, `file:///...`, `https://...` or `oci://...`.

    `digest` (`sha256:` and 64 digits, or empty) is that of the archive; nothing else is taken then. `ca` is a PEM file
    with the issuers of the server's certificate. Nothing is asked yet. Raises `ConfigError`.
    """
    check_source(text)
    sha256 = digest.removeprefix("sha256:")
    if ca is not None and not ca.is_file():
        raise ConfigError.at(ca, "no such file; expected the issuers of the server's certificate in PEM")
    if names_folder(text) or text.startswith("file:"):
        return FolderSource(_folder(text), sha256=sha256, max_bytes=max_bytes)
    try:
        if text.startswith(SCHEME):
            from upwell.edge.fetch.oci_source import RegistrySource

            return RegistrySource(Reference.parse(text), sha256=sha256, ca=ca, max_bytes=max_bytes)
        from upwell.edge.fetch.web_source import WebSource
    except ModuleNotFoundError as error:
        raise ConfigError.at(None, f"{text}: needs the package {error.name}: pip install 'upwell[bundle]'") from None
    return WebSource(text, sha256=sha256, ca=ca, max_bytes=max_bytes)


def check_source(text: str) -> None:
    """Raise `ConfigError` for what names no source, or one whose answers anybody on the way could change."""
    if text.startswith(SCHEME):
        Reference.parse(text)
        return
    if names_folder(text):
        return
    try:
        parts = urlsplit(text)
        host, user = parts.hostname or "", parts.username
        _ = parts.port
    except ValueError:
        raise ConfigError.at(None, f"{text!r} is no address; {_EXPECTED}") from None
    if user is not None:
        raise ConfigError.at(None, f"the address at {host} holds credentials; expected them in netrc")
    if parts.scheme == "file" and parts.path and host in ("", "localhost"):
        return
    if parts.scheme == "http" and not Address(host).is_loopback:
        raise ConfigError.at(None, f"{text!r} is not protected on its way; expected https://")
    if parts.scheme not in ("http", "https") or not host or parts.path in ("", "/"):
        raise ConfigError.at(None, f"{text!r} names no source of bundles; {_EXPECTED}")


def names_folder(text: str) -> bool:
    """Whether `text` is a path, which may be relative to the file that names it, and no address."""
    return _HAS_SCHEME.match(text) is None


def _folder(text: str) -> Path:
    return Path(unquote(urlsplit(text).path) if text.startswith("file:") else text)
