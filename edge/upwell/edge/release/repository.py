"""A repository of releases as a device sees it: TUF's client workflow, by python-tuf, over a `RepositoryPlace`.

Needs the extra `release`; import it where a repository is asked and not before.
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

from upwell.edge.bundle.base import BundleRefused, Refusal
from upwell.edge.release.document import MAX_DOCUMENT_BYTES, ReleaseDocument, document_path, parse_document, sequence_of
from upwell.edge.release.places import METADATA_NAME, TARGETS_NAME, NotThere, RepositoryPlace, check_small
from upwell.edge.updates.sources.base import FetchFailed
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

_LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_log = logging.getLogger(__name__)


class _PlaceFetcher(FetcherInterface):
    """Gives python-tuf the files of a place."""

    def __init__(self, place: RepositoryPlace) -> None:
        self._place = place

    def _fetch(self, url: str) -> Iterator[bytes]:
        try:
            yield from self._place.read(url)
        except NotThere as error:
            raise DownloadHTTPError(str(error), 404) from None


class ReleaseRepository:
    """What a repository offers, verified from `root` on: the root metadata that the device trusts, as bytes.

    `folder` keeps the metadata that was verified last, against going back. Used by one thread at a time.
    """

    def __init__(self, place: RepositoryPlace, root: bytes, folder: Path) -> None:
        self._place = place
        self._root = root
        self._folder = folder
        self._targets: Mapping[str, TargetFile] = {}

    def refresh(self, *, has_clock: bool) -> Mapping[int, TargetFile]:
        """The documents of all releases that are signed, by sequence. With `has_clock` nothing may have expired.

        Raises `FetchFailed`, and `BundleRefused` (`UNTRUSTED`) for what TUF's specification says to refuse: signatures
        that are missing or wrong, metadata that has expired or is older than what was seen before, files that do not
        belong together.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            updater = Updater(
                str(self._folder),
                f"{METADATA_NAME}/",
                fetcher=_PlaceFetcher(self._place),
                config=UpdaterConfig(app_user_agent="upwell"),
                bootstrap=self._root,
            )
            if not has_clock:
                _ignore_expiry(updater)
            updater.refresh()
            self._targets = Metadata[Targets].from_file(str(self._folder / "targets.json")).signed.targets
        except DownloadHTTPError as error:
            raise FetchFailed(f"there is no repository of releases, or a part of it is missing: {error}") from None
        except DownloadError as error:
            cause = error.__cause__
            if isinstance(cause, FetchFailed):
                raise cause from None
            raise BundleRefused(
                Refusal.UNTRUSTED, None, f"its metadata is too long or cannot be read: {error}"
            ) from None
        except (RepositoryError, ValueError) as error:
            raise BundleRefused(Refusal.UNTRUSTED, None, f"its metadata is refused: {error}") from None
        except OSError as error:
            raise FetchFailed(f"{self._folder}: cannot be written: {error.strerror or error}") from None
        found = {sequence_of(path): target for path, target in self._targets.items()}
        return {sequence: target for sequence, target in found.items() if sequence is not None}

    def document(self, sequence: int) -> tuple[ReleaseDocument, bytes]:
        """The document of a release that `refresh` found, and its bytes; its files are signed as well.

        Raises `FetchFailed` and `BundleRefused`.
        """
        target = self._targets[document_path(sequence)]
        what = f"the document of release {sequence}"
        data = check_small(self._place.read(self.path(target)), min(target.length, MAX_DOCUMENT_BYTES), what)
        try:
            target.verify_length_and_hashes(data)
        except RepositoryError as error:
            raise BundleRefused(Refusal.DIGEST_MISMATCH, None, f"{what} is not what was signed: {error}") from None
        document = parse_document(data, sequence)
        for payload in document.payloads:
            signed = self._targets.get(payload.path)
            if signed is None or (signed.hashes.get("sha256"), signed.length) != (payload.sha256, payload.size_bytes):
                problem = f"release {sequence} names the file {payload.sha256}, which is not signed"
                raise BundleRefused(Refusal.UNTRUSTED, None, problem)
        return document, data

    def path(self, target: TargetFile) -> str:
        """Where a target lies in the repository."""
        return f"{TARGETS_NAME}/{target.get_prefixed_paths()[0]}"

    def payload_path(self, path: str) -> str:
        """Where the target of that path lies; it is one of those that `document` has checked."""
        return self.path(self._targets[path])


def _ignore_expiry(updater: Updater) -> None:
    """Judge what expires by a time before any of it: python-tuf has no public way to say that there is no clock."""
    trusted: Any = getattr(updater, "_trusted_set", None)
    if not isinstance(getattr(trusted, "reference_time", None), datetime.datetime):
        _log.error("this version of python-tuf cannot work without a clock; what expires is judged by this one")
        return
    trusted.reference_time = _LONG_AGO


def read_root(path: Path) -> bytes:
    """The root metadata in a file. Raises `ConfigError` where it is none."""
    data = read_file(path, "the root metadata")
    try:
        is_root = Metadata.from_bytes(data).signed.type == "root"
    except (RepositoryError, ValueError):
        is_root = False
    if not is_root:
        raise ConfigError.at(path, "it is no root metadata; expected N.root.json of the repository", "root")
    return data
