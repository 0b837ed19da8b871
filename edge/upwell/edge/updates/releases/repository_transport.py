"""Locations of a repository of releases: a folder (a USB stick, a share) or a web server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote, urlsplit

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.source_address import check_repository, names_folder
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.partial_archive import Partial, fetch_archive
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.files import Unconfined, open_plain, plain_file

if TYPE_CHECKING:
    import requests

METADATA_NAME = "metadata"
TARGETS_NAME = "targets"
"""The two folders of a repository."""

SLOW_AFTER_S = 60.0
"""Time limit for metadata, and the period over which a file must reach `SLOWEST_BYTES_PER_S`."""
SLOWEST_BYTES_PER_S = 200.0

_CHUNK_BYTES = 1 << 20
_NOT_THERE = frozenset({403, 404, 410})


class NotThere(FetchFailed):
    """The repository has no file at that path."""


class RepositoryTransport(Protocol):
    """Reads files of a repository by their paths. Used by one thread at a time, except `close`."""

    def read(self, path: str) -> Iterator[bytes]:
        """Read a small file in pieces. Raises `NotThere` and `FetchFailed`; the caller limits the size."""
        ...

    def fetch(self, path: str, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """Fetch a file of known size and digest into the folder `into`, resuming an interrupted one.

        Raises `FetchFailed`, and `BundleRefused` if it differs from the offer.
        """
        ...

    def close(self) -> None:
        """Stop transfers, from any thread. Calling it twice is harmless."""
        ...


def open_transport(text: str, ca: Path | None = None) -> RepositoryTransport:
    """Open the repository that `text` names: a folder, `file:///…` or `https://…`. Raises `ConfigError`."""
    check_repository(text)
    if names_folder(text) or text.startswith("file:"):
        return FolderTransport(Path(unquote(urlsplit(text).path) if text.startswith("file:") else text))
    if ca is not None and not ca.is_file():
        raise ConfigError.at(ca, "no such file; expected the issuers of the server's certificate in PEM")
    return WebTransport(text, ca)


class FolderTransport:
    """A `RepositoryTransport` in a folder, which may be a USB stick that is unplugged at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_closed = False

    def read(self, path: str) -> Iterator[bytes]:
        """Read a plain file of the folder."""
        try:
            if not self._folder.is_dir():
                raise FetchFailed(f"{self._folder}: no such folder; expected a repository of releases")
            with open_plain(plain_file(self._folder, path)) as file:
                while data := file.read(_CHUNK_BYTES):
                    self._check_open()
                    yield data
        except Unconfined:
            raise NotThere(f"{self._folder / path}: no such file") from None
        except OSError as error:
            raise FetchFailed(f"{self._folder / path}: cannot be read: {error.strerror or error}") from None

    def fetch(self, path: str, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """Copy the file."""
        return fetch_archive(offer, into, progress, partial(self._copy, path))

    def close(self) -> None:
        """Stop a copy in progress."""
        self._is_closed = True

    def _copy(self, path: str, archive: Partial) -> None:
        skip_bytes = archive.size_bytes
        for data in self.read(path):
            archive.append(data[skip_bytes:])
            skip_bytes = max(0, skip_bytes - len(data))

    def _check_open(self) -> None:
        if self._is_closed:
            raise FetchFailed("fetching was stopped")


class WebTransport:
    """A `RepositoryTransport` on any web server. Resumes if the server supports ranges; needs `upwell[bundle]`."""

    def __init__(self, url: str, ca: Path | None = None) -> None:
        with ExtraMissing.on_import("release", f"{url}: needs the package PACKAGE"):
            from upwell.edge.updates.sources.web_source import Web
        self._url = url.partition("?")[0].rstrip("/")
        self._web = Web(ca)

    def read(self, path: str) -> Iterator[bytes]:
        """Stream the file, for at most `SLOW_AFTER_S`."""
        end_s = time.monotonic() + SLOW_AFTER_S
        with self._open(path, {}) as response:
            self._check(response)
            for data in self._web.chunks(response):
                if time.monotonic() > end_s:
                    raise FetchFailed(f"{self._url}/{path}: takes longer than {SLOW_AFTER_S:.0f} s")
                yield data

    def fetch(self, path: str, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """Fetch or resume the file; only its digest shows whether the pieces fit together."""
        from upwell.edge.updates.sources.web_source import download

        watch = unless_slow(progress)
        return fetch_archive(
            offer,
            into,
            watch,
            lambda archive: download(self._web, partial(self._open, path), archive, {}, self._check),
        )

    def close(self) -> None:
        """Stop transfers."""
        self._web.close()

    def _open(self, path: str, headers: object) -> requests.Response:
        return self._web.open("GET", f"{self._url}/{quote(path)}", dict(headers))  # type: ignore[call-overload]  # of text

    def _check(self, response: requests.Response) -> None:
        from upwell.edge.updates.sources.web_source import failure

        if response.status_code in _NOT_THERE:
            raise NotThere(str(failure(response)))
        if response.status_code not in (200, 206):
            raise failure(response)


def unless_slow(progress: Progress) -> Progress:
    """Wrap `progress` to raise `FetchFailed` below `SLOWEST_BYTES_PER_S` for `SLOW_AFTER_S`."""
    began_s, began_bytes = time.monotonic(), -1

    def watch(there_bytes: int, whole_bytes: int) -> None:
        nonlocal began_s, began_bytes
        progress(there_bytes, whole_bytes)
        now_s = time.monotonic()
        if began_bytes < 0:
            began_bytes = there_bytes
        if now_s - began_s < SLOW_AFTER_S:
            return
        if there_bytes - began_bytes < SLOWEST_BYTES_PER_S * (now_s - began_s):
            raise FetchFailed(f"the transfer is slower than {SLOWEST_BYTES_PER_S:.0f} bytes/s; it resumes later")
        began_s, began_bytes = now_s, there_bytes

    return watch


def check_small(pieces: Iterator[bytes], most_bytes: int, what: str) -> bytes:
    """Join the pieces. Raises `BundleRefused` (`TOO_LARGE`) beyond `most_bytes`."""
    found = bytearray()
    for data in pieces:
        found += data
        if len(found) > most_bytes:
            raise BundleRefused(Refusal.TOO_LARGE, None, f"{what} has more than {most_bytes} bytes")
    return bytes(found)
