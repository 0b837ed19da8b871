"""A device's client of a release repository: TUF's client workflow, by python-tuf, over a `RepositoryTransport`.

Needs the extra `release`; import it only when a repository is used.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuf.api.exceptions import DownloadError, DownloadHTTPError, RepositoryError
from tuf.api.metadata import Metadata, TargetFile, Targets
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.updates.releases.release_document import (
    MAX_DOCUMENT_BYTES,
    ReleaseDocument,
    document_path,
    parse_document,
    sequence_of,
)
from upwell.edge.updates.releases.repository_transport import (
    METADATA_NAME,
    TARGETS_NAME,
    NotThere,
    RepositoryTransport,
    check_small,
)
from upwell.edge.updates.sources.base import FetchFailed
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

_LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_log = logging.getLogger(__name__)
logging.getLogger("tuf").setLevel(logging.WARNING)  # at each look it logs which keys of the root have not signed


class _TransportFetcher(FetcherInterface):
    """Gives python-tuf the files that a transport reads."""

    def __init__(self, transport: RepositoryTransport) -> None:
        self._transport = transport

    def _fetch(self, url: str) -> Iterator[bytes]:
        try:
            yield from self._transport.read(url)
        except NotThere as error:
            raise DownloadHTTPError(str(error), 404) from None


class ReleaseRepository:
    """A repository's content, verified from `root` on, the bytes of the trusted root metadata.

    `folder` stores the last verified metadata, against rollback attacks. Used by one thread at a time.
    """

    def __init__(self, transport: RepositoryTransport, root: bytes, folder: Path) -> None:
        self._transport = transport
        self._root = root
        self._folder = folder
        self._targets: Mapping[str, TargetFile] = {}

    def refresh(self, *, has_clock: bool) -> Mapping[int, TargetFile]:
        """The documents of all signed releases, by sequence. With `has_clock` expired metadata is refused.

        Raises `FetchFailed`, and `BundleRefused` (`UNTRUSTED`) for what TUF's specification refuses: missing or wrong
        signatures, metadata that is expired or older than seen before, and files that do not belong together.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            updater = Updater(
                str(self._folder),
                f"{METADATA_NAME}/",
                fetcher=_TransportFetcher(self._transport),
                config=UpdaterConfig(app_user_agent="upwell"),
                bootstrap=self._root,
            )
            if not has_clock:
                _ignore_expiry(updater)
            updater.refresh()
            self._targets = Metadata[Targets].from_file(str(self._folder / "targets.json")).signed.targets
        except DownloadHTTPError as error:
            raise FetchFailed(f"there is no release repository, or a part of it is missing: {error}") from None
        except DownloadError as error:
            raise BundleRefused(
                Refusal.UNTRUSTED, None, f"the metadata is too large or cannot be read: {error}"
            ) from None
        except (RepositoryError, ValueError) as error:
            raise BundleRefused(Refusal.UNTRUSTED, None, f"the metadata is refused: {error}") from None
        except OSError as error:
            raise FetchFailed(f"{self._folder}: cannot be written: {error.strerror or error}") from None
        found = {sequence_of(path): target for path, target in self._targets.items()}
        return {sequence: target for sequence, target in found.items() if sequence is not None}

    def document(self, sequence: int) -> tuple[ReleaseDocument, bytes]:
        """The document of a release found by `refresh`, and its bytes; its files are checked to be signed as well.

        Raises `FetchFailed` and `BundleRefused`.
        """
        target = self._targets[document_path(sequence)]
        what = f"the document of release {sequence}"
        data = check_small(self._transport.read(self.path(target)), min(target.length, MAX_DOCUMENT_BYTES), what)
        try:
            target.verify_length_and_hashes(data)
        except RepositoryError as error:
            raise BundleRefused(
                Refusal.DIGEST_MISMATCH, None, f"{what} does not match its signature: {error}"
            ) from None
        document = parse_document(data, sequence)
        for payload in document.payloads:
            signed = self._targets.get(payload.path)
            if signed is None or (signed.hashes.get("sha256"), signed.length) != (payload.sha256, payload.size_bytes):
                problem = f"release {sequence} names the file {payload.sha256}, which is not signed"
                raise BundleRefused(Refusal.UNTRUSTED, None, problem)
        return document, data

    def path(self, target: TargetFile) -> str:
        """The path of a target in the repository."""
        return f"{TARGETS_NAME}/{target.get_prefixed_paths()[0]}"

    def payload_path(self, path: str) -> str:
        """The location of the target with that path, which `document` has checked."""
        return self.path(self._targets[path])


def _ignore_expiry(updater: Updater) -> None:
    """Judge expiry by a time before any expiry date: python-tuf has no public way to work without a clock."""
    trusted: Any = getattr(updater, "_trusted_set", None)
    if not isinstance(getattr(trusted, "reference_time", None), datetime.datetime):
        _log.error(
            "this version of python-tuf cannot work without a clock; expiry is judged by the unsynchronised clock"
        )
        return
    trusted.reference_time = _LONG_AGO


def read_root(path: Path) -> bytes:
    """Read the root metadata from a file. Raises `ConfigError` if it is malformed."""
    data = read_file(path, "the root metadata")
    try:
        is_root = Metadata.from_bytes(data).signed.type == "root"
    except (RepositoryError, ValueError):
        is_root = False
    if not is_root:
        raise ConfigError.at(path, "not root metadata; expected N.root.json of the repository", "root")
    return data
