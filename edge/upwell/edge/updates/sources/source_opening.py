"""Opens the source for an address in agent.yaml."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from upwell.edge.bundle.source_address import SCHEME, Reference, check_source, names_folder
from upwell.edge.updates.sources.base import Source
from upwell.edge.updates.sources.folder_source import FolderSource
from upwell.shared.errors import ConfigError, ExtraMissing


def open_source(text: str, *, digest: str = "", ca: Path | None = None) -> Source:
    """The source that `text` names: a folder, `file:///...`, `https://...` or `oci://...`.

    `digest` (`sha256:` and 64 digits, or empty) is that of the archive; nothing else is accepted then. `ca` is a PEM
    file with the issuers of the server's certificate. Contacts nobody yet. Raises `ConfigError`.
    """
    check_source(text)
    sha256 = digest.removeprefix("sha256:")
    if ca is not None and not ca.is_file():
        raise ConfigError.at(ca, "no such file; expected the issuers of the server's certificate in PEM")
    if names_folder(text) or text.startswith("file:"):
        return FolderSource(_folder(text), sha256=sha256)
    with ExtraMissing.on_import("bundle", f"{text}: needs the package PACKAGE"):
        if text.startswith(SCHEME):
            from upwell.edge.updates.sources.oci_source import RegistrySource

            return RegistrySource(Reference.parse(text), sha256=sha256, ca=ca)
        from upwell.edge.updates.sources.web_source import WebSource
    return WebSource(text, sha256=sha256, ca=ca)


def _folder(text: str) -> Path:
    return Path(unquote(urlsplit(text).path) if text.startswith("file:") else text)
