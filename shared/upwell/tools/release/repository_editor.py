"""The folder in which releases are made: what is published, and drafts that wait for signatures.

metadata/   N.root.json, N.targets.json, N.snapshot.json, timestamp.json: signed, as in TUF's specification
targets/    releases/SHA256.N.json and payload/SHA256.SHA256
draft/      root.json, targets.json and targets/: what `publish` moves there once it is signed
"""

from __future__ import annotations

import datetime
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from upwell.edge.bundle.signing_keys import PrivateKey, load_public_key
from upwell.edge.updates.releases.release_document import (
    MAX_DOCUMENT_BYTES,
    ReleaseDocument,
    document_path,
    parse_document,
    sequence_of,
)
from upwell.edge.updates.releases.repository_transport import METADATA_NAME, TARGETS_NAME
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file, replacing, sync_folder, write_whole

DRAFT_NAME = "draft"
MAX_METADATA_BYTES = 5_000_000
_DAY_S = 86400.0


@dataclass(frozen=True)
class RoleKeys:
    """The keys of each role: PEM files of public keys, and how many signatures it needs.

    `online` signs snapshot and timestamp.
    """

    root: Sequence[Path]
    root_threshold: int
    targets: Sequence[Path]
    targets_threshold: int
    online: Sequence[Path]


@dataclass(frozen=True)
class SignatureState:
    """The signatures of metadata: ids of keys that have signed, of those that still may, and how many are needed."""

    signed: tuple[str, ...]
    missing: tuple[str, ...]
    threshold: int

    @property
    def is_complete(self) -> bool:
        """Whether it may be published."""
        return len(self.signed) >= self.threshold


def key_of(path: Path) -> SSlibKey:
    """The public key in a PEM file, in TUF's form. Raises `ConfigError`."""
    return SSlibKey.from_crypto(load_public_key(path).key)


def signer_of(key: PrivateKey) -> CryptoSigner:
    """The signer with this key."""
    return CryptoSigner(key.key)


def in_days(now_s: float, days: float) -> datetime.datetime:
    """The time so many days after `now_s`, in UTC and whole seconds, as TUF writes expiry. Raises `ConfigError`."""
    try:
        return datetime.datetime.fromtimestamp(int(now_s + days * _DAY_S), datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise ConfigError.at(None, f"expected a number of days that ends before the year 10000, got {days:g}") from None


class RepositoryEditor:
    """A folder of releases. Every change of what is published is atomic; one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = folder / METADATA_NAME
        self.targets_folder = folder / TARGETS_NAME
        self.draft = folder / DRAFT_NAME

    # What there is

    def root(self, *, with_draft: bool = False) -> Metadata[Root]:
        """The published root, or the draft of the next. Raises `ConfigError` if there is none."""
        draft = self._read(self.draft / "root.json", Root) if with_draft else None
        found = draft or self._newest("root", Root)
        if found is None and (self.draft / "root.json").exists():
            problem = "its root is not published yet; sign it (`upwell release sign`), then `upwell release publish`"
            raise ConfigError.at(self.folder, problem)
        if found is None:
            raise ConfigError.at(self.folder, "this is not a release repository; create one with `upwell release init`")
        return found

    def targets(self, *, with_draft: bool = False) -> Metadata[Targets] | None:
        """The published releases, or the draft of the next."""
        draft = self._read(self.draft / "targets.json", Targets) if with_draft else None
        return draft or self._newest("targets", Targets)

    def timestamp(self) -> Metadata[Timestamp] | None:
        """The published timestamp."""
        return self._read(self.metadata / "timestamp.json", Timestamp)

    def snapshot(self) -> Metadata[Snapshot] | None:
        """The snapshot: the versions of metadata that belong together."""
        return self._newest("snapshot", Snapshot)

    def drafts(self) -> Mapping[str, Metadata[Any]]:
        """The drafts that wait for signatures or for `publish`, by role."""
        kinds: Mapping[str, type[Any]] = {"root": Root, "targets": Targets}
        found = {role: self._read(self.draft / f"{role}.json", kind) for role, kind in kinds.items()}
        return {role: one for role, one in found.items() if one is not None}

    def document(self, sequence: int, targets: Targets) -> ReleaseDocument:
        """A release that these targets name. Raises `ConfigError`."""
        target = targets.targets.get(document_path(sequence))
        if target is None:
            known = ", ".join(map(str, sorted(sequences(targets)))) or "none"
            raise ConfigError.at(self.folder, f"there is no release {sequence}; there are: {known}")
        return parse_document(read_file(self.file(target), "the release", MAX_DOCUMENT_BYTES), sequence)

    def file(self, target: TargetFile) -> Path:
        """The path of a target, published or drafted."""
        path = target.get_prefixed_paths()[0]
        drafted = self.draft / TARGETS_NAME / path
        return drafted if drafted.is_file() else self.targets_folder / path

    def signatures(self, role: str, metadata: Metadata[Any]) -> SignatureState:
        """The signatures of a role's draft; a root is also signed by the keys of the previous root."""
        payload, signatures = metadata.signed_bytes, metadata.signatures
        if role == "root":
            found = metadata.signed.get_root_verification_result(self._root_before(metadata), payload, signatures)
            parts = [found.first, found.second]
        else:
            parts = [self.root(with_draft=True).signed.get_verification_result(role, payload, signatures)]
        lacking = next((one for one in parts if not one), parts[-1])
        return SignatureState(tuple(sorted(lacking.signed)), tuple(sorted(lacking.unsigned)), lacking.threshold)

    # What changes it

    def begin(self, keys: RoleKeys, expires: datetime.datetime, *, rotate: bool) -> Metadata[Root]:
        """Draft a root with these keys: the first, or with `rotate` the next. Raises `ConfigError`."""
        before = self._newest("root", Root)
        if (before is not None or (self.draft / "root.json").exists()) and not rotate:
            problem = "there is already a root; draft the next one, with other keys, with `--rotate`"
            raise ConfigError.at(self.folder, problem)
        if before is None and rotate:
            raise ConfigError.at(self.folder, "there is no root yet to replace", "--rotate")
        root = Root(version=1 if before is None else before.signed.version + 1, expires=expires)
        thresholds = {"root": keys.root_threshold, "targets": keys.targets_threshold}
        by_role = {"root": keys.root, "targets": keys.targets, "snapshot": keys.online, "timestamp": keys.online}
        for role, paths in by_role.items():
            for path in paths:
                root.add_key(key_of(path), role)
            count, threshold = len(root.roles[role].keyids), thresholds.get(role, 1)
            if not 1 <= threshold <= count:
                problem = f"expected 1 to {count}, as many as there are different keys, got {threshold}"
                raise ConfigError.at(None, problem, f"--{role}-threshold" if role in thresholds else f"--{role}")
            root.roles[role].threshold = threshold
        online, offline = (
            set(root.roles["timestamp"].keyids),
            {*root.roles["root"].keyids, *root.roles["targets"].keyids},
        )
        if online & offline:
            problem = "this is also an offline key: on the publishing machine, an intruder could sign releases with it"
            raise ConfigError.at(None, problem, "--online")
        drafted = Metadata(root)
        self._write_draft("root", drafted)
        targets = self.targets(with_draft=True)
        if targets is not None and not self.signatures("targets", targets).is_complete:
            self.renew(None)
        return drafted

    def renew(self, expires: datetime.datetime | None) -> None:
        """Draft the releases unchanged to sign them again: until `expires`, or for as long as before."""
        draft = self.targets(with_draft=True)
        if draft is None:
            raise ConfigError.at(self.folder, "there is no release yet; draft one with `upwell release add`")
        if "targets" not in self.drafts():
            draft.signed.version += 1
        draft.signed.expires = expires or draft.signed.expires
        self._write_draft("targets", Metadata(draft.signed))

    def add(self, document: ReleaseDocument, files: Mapping[str, Path], expires: datetime.datetime) -> None:
        """Draft a release: the next targets with its document and files, which are at `files` by SHA-256."""
        published = self.targets()
        draft = Targets(version=1, expires=expires) if published is None else published.signed
        draft.version = 1 if published is None else draft.version + 1
        draft.expires = expires
        folder = self.draft / TARGETS_NAME
        try:
            shutil.rmtree(folder, ignore_errors=True)
            for payload in document.payloads:
                target = TargetFile(payload.size_bytes, {"sha256": payload.sha256}, payload.path)
                source = files.get(payload.sha256)
                if source is not None and not (self.targets_folder / target.get_prefixed_paths()[0]).is_file():
                    _copy(source, folder / target.get_prefixed_paths()[0], payload.sha256)
                draft.targets[payload.path] = target
            target = TargetFile.from_data(document_path(document.sequence), document.text)
            path = folder / target.get_prefixed_paths()[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, document.text)
            draft.targets[target.path] = target
            self._write_draft("targets", Metadata(draft))
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def sign(self, key: PrivateKey) -> Sequence[str]:
        """Sign every draft of a role that has this key; return the roles. Raises `ConfigError` if there is none."""
        signer, signed = signer_of(key), []
        drafts = self.drafts()
        for role, metadata in drafts.items():
            if signer.public_key.keyid in self._keys_that_sign(role):
                metadata.sign(signer, append=True)
                self._write_draft(role, metadata)
                signed.append(role)
        if not signed:
            what = f"the key {signer.public_key.keyid[:16]} does not sign {' and '.join(drafts)}"
            raise ConfigError.at(self.folder, what if drafts else "there is no draft to sign", "--key")
        return signed

    def _keys_that_sign(self, role: str) -> set[str]:
        root = self.root(with_draft=True).signed
        keys = set(root.roles[role].keyids)
        before = self._root_before(self.root(with_draft=True)) if role == "root" else None
        return keys if before is None else keys | set(before.roles[role].keyids)

    def _root_before(self, root: Metadata[Root]) -> Root | None:
        before = self._read(self.metadata / f"{root.signed.version - 1}.root.json", Root)
        return None if before is None else before.signed

    def publish(self, online: PrivateKey, expires: datetime.datetime) -> Sequence[str]:
        """Publish the drafts, and a timestamp that is valid until `expires`; return what is new, by role.

        Files come first and `timestamp.json` last: until then everyone sees the former state. Raises `ConfigError` if
        a draft lacks signatures, and then changes nothing.
        """
        drafts = self.drafts()
        targets = self.targets()
        for role, metadata in {**({"targets": targets} if targets else {}), **drafts}.items():
            state = self.signatures(role, metadata)
            if not state.is_complete:
                problem = f"{role} has {len(state.signed)} of {state.threshold} signatures"
                missing = ", ".join(one[:16] for one in state.missing)
                raise ConfigError.at(self.draft, f"{problem}; expected more, by keys of: {missing}")
        root = self.root(with_draft=True)
        signer = signer_of(online)
        for role in ("snapshot", "timestamp"):
            if signer.public_key.keyid not in root.signed.roles[role].keyids:
                known = ", ".join(one[:16] for one in root.signed.roles[role].keyids)
                problem = f"the key {signer.public_key.keyid[:16]} does not sign {role}; expected one of {known}"
                raise ConfigError.at(self.folder, problem, "--key")
        try:
            return self._publish(drafts, signer, expires)
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def _publish(
        self, drafts: Mapping[str, Metadata[Any]], signer: CryptoSigner, expires: datetime.datetime
    ) -> Sequence[str]:
        self.metadata.mkdir(parents=True, exist_ok=True)
        _copy_missing(self.draft / TARGETS_NAME, self.targets_folder)
        # Signatures of a key that a new root removes would no longer be valid; new signatures always are.
        targets = drafts.get("targets") or self.targets()
        for role, metadata in drafts.items():
            if role != "root":
                write_whole(self.metadata / f"{metadata.signed.version}.{role}.json", metadata.to_bytes())
        before = self.snapshot()
        if targets is not None:
            snapshot = Snapshot(version=1 if before is None else before.signed.version + 1, expires=expires)
            snapshot.meta["targets.json"] = _meta(targets.signed.version, self.metadata / _name(targets))
            signed: Metadata[Snapshot] = Metadata(snapshot)
            signed.sign(signer)
            write_whole(self.metadata / f"{snapshot.version}.snapshot.json", signed.to_bytes())
            was = self.timestamp()
            timestamp = Timestamp(version=1 if was is None else was.signed.version + 1, expires=expires)
            timestamp.snapshot_meta = _meta(snapshot.version, self.metadata / f"{snapshot.version}.snapshot.json")
            last: Metadata[Timestamp] = Metadata(timestamp)
            last.sign(signer)
        if "root" in drafts:
            write_whole(self.metadata / _name(drafts["root"]), drafts["root"].to_bytes())
        if targets is not None:
            write_whole(self.metadata / "timestamp.json", last.to_bytes())
        shutil.rmtree(self.draft, ignore_errors=True)
        return [*drafts, *(("snapshot", "timestamp") if targets is not None else ())]

    def _newest(self, role: str, kind: type[Any]) -> Metadata[Any] | None:
        versions = [
            int(number)
            for path in (self.metadata.glob(f"*.{role}.json") if self.metadata.is_dir() else ())
            if (number := path.name.partition(".")[0]).isdecimal()
        ]
        if role != "root" and versions:
            versions = [version for version in versions if version <= self._published(role)] or versions
        return self._read(self.metadata / f"{max(versions)}.{role}.json", kind) if versions else None

    def _published(self, role: str) -> int:
        """The version that the timestamp refers to: a killed `publish` may have left a newer file behind."""
        timestamp = self.timestamp()
        if timestamp is None:
            return 0
        version = timestamp.signed.snapshot_meta.version
        if role == "snapshot":
            return version
        snapshot = self._read(self.metadata / f"{version}.snapshot.json", Snapshot)
        return 0 if snapshot is None else snapshot.signed.meta["targets.json"].version

    def _read(self, path: Path, kind: type[Any]) -> Metadata[Any] | None:
        if not os.path.lexists(path):
            return None
        data = read_file(path, "the metadata", MAX_METADATA_BYTES)
        try:
            found = Metadata.from_bytes(data)
        except (RepositoryError, ValueError) as error:
            raise ConfigError.at(path, f"this is not TUF metadata: {error}") from None
        if not isinstance(found.signed, kind):
            raise ConfigError.at(path, f"contains metadata of {found.signed.type}")
        return found

    def _write_draft(self, role: str, metadata: Metadata[Any]) -> None:
        try:
            self.draft.mkdir(parents=True, exist_ok=True)
            write_whole(self.draft / f"{role}.json", metadata.to_bytes())
        except OSError as error:
            raise _unwritable(self.folder, error) from None


def sequences(targets: Targets) -> list[int]:
    """The releases in the targets, the newest last."""
    return sorted(found for path in targets.targets if (found := sequence_of(path)) is not None)


def mirror(editor: RepositoryEditor, to: Path) -> None:
    """Update `to` (a stick, the folder of a web server) to the published state: files first, the timestamp last.

    Raises `ConfigError`.
    """
    try:
        _copy_missing(editor.targets_folder, to / TARGETS_NAME)
        names = sorted(path.name for path in editor.metadata.iterdir() if path.name != "timestamp.json")
        (to / METADATA_NAME).mkdir(parents=True, exist_ok=True)
        for name in [*names, *(["timestamp.json"] if (editor.metadata / "timestamp.json").exists() else [])]:
            data = read_file(editor.metadata / name, "the metadata", MAX_METADATA_BYTES)
            there = to / METADATA_NAME / name
            if not there.is_file() or there.read_bytes() != data:
                write_whole(there, data, 0o644)
    except OSError as error:
        raise _unwritable(to, error) from None


def _name(metadata: Metadata[Any]) -> str:
    return f"{metadata.signed.version}.{metadata.signed.type}.json"


def _meta(version: int, path: Path) -> MetaFile:
    data = path.read_bytes()
    return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})


def _copy_missing(source: Path, to: Path) -> None:
    """Copy files that `to` lacks, each atomically; their names hold their digests."""
    for path in sorted(source.rglob("*")) if source.is_dir() else ():
        target = to / path.relative_to(source)
        if path.is_file() and not target.is_file():
            _copy(path, target, "")


def _copy(source: Path, target: Path, sha256: str) -> None:
    """Raises `ConfigError` if the source does not, or no longer, have this digest."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with replacing(target, 0o644) as out, source.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
            out.write(data)
        if sha256 and digest.hexdigest() != sha256:
            raise ConfigError.at(source, "changed while it was being read")
    sync_folder(target.parent)


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError.at(folder, f"cannot be written: {error.strerror or error}")
