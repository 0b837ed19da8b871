"""Repositories of releases for the tests: real keys, real signatures, and the editor that the product has for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuf.api.metadata import Metadata, MetaFile, Snapshot, Timestamp

from tests.faults.bundles_for_tests import Signer
from upwell.tools.release.release_maker import ReleaseContents, made
from upwell.tools.release.repository_editor import RepositoryEditor, RoleKeys, in_days, signer_of


class Releases:
    """A folder of releases with the keys that sign it: root 2 of 3, one for targets, one online."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "keys").mkdir()
        self.root_keys = [Signer(folder / "keys", f"root-{index}") for index in range(3)]
        self.targets_key, self.online_key = Signer(folder / "keys", "targets"), Signer(folder / "keys", "online")
        self.editor = RepositoryEditor(folder / "releases")
        self.begin()
        self.root = folder / "root.json"
        self.publish()
        self.root.write_bytes((self.editor.metadata / "1.root.json").read_bytes())

    @property
    def place(self) -> Path:
        """Where devices look."""
        return self.editor.folder

    def begin(self, *, rotate: bool = False, signed_by: Sequence[Signer] | None = None) -> None:
        """Draft a root of the keys of now, signed by two of them or by `signed_by`."""
        keys = RoleKeys(
            [one.public for one in self.root_keys], 2, [self.targets_key.public], 1, [self.online_key.public]
        )
        self.editor.begin(keys, in_days(time.time(), 365), rotate=rotate)
        for signer in signed_by or self.root_keys[:2]:
            self.editor.sign(signer.key)

    def draft(
        self,
        bundles: Mapping[str, Path | str] | None = None,
        *,
        days: float = 365.0,
        like: int | None = None,
        **parts: Path,
    ) -> int:
        """Draft a release and sign it; its sequence."""
        targets = self.editor.targets()
        sequence = 1 + (0 if targets is None else sum(path.startswith("releases/") for path in targets.signed.targets))
        named = {name: str(path) for name, path in (bundles or {}).items()}
        with made(self.editor, ReleaseContents(named, like=like, name="fleet", **parts), sequence) as new:  # type: ignore[arg-type]
            self.editor.add(new.document, new.files, in_days(time.time(), days))
        self.editor.sign(self.targets_key.key)
        return sequence

    def publish(self, *, days: float = 7.0, online: Signer | None = None) -> None:
        """Put what is signed in place."""
        self.editor.publish((online or self.online_key).key, in_days(time.time(), days))

    def forge(self, folder: Path, targets_signer: Signer, online: Signer) -> None:
        """Put the releases of now on a server, one version later: by these keys, whoever they belong to."""
        targets, was = self.editor.targets(), self.editor.timestamp()
        assert targets is not None
        assert was is not None
        version = targets.signed.version + 1
        targets.signed.version = version
        snapshot = Snapshot(version=was.signed.snapshot_meta.version + 1, expires=in_days(time.time(), 7))
        timestamp = Timestamp(version=was.signed.version + 1, expires=in_days(time.time(), 7))
        targets.sign(signer_of(targets_signer.key))
        data = targets.to_bytes()
        snapshot.meta["targets.json"] = MetaFile(version, len(data))
        (folder / f"metadata/{version}.targets.json").write_bytes(data)
        for path, signed in ((f"{snapshot.version}.snapshot.json", snapshot), ("timestamp.json", timestamp)):
            timestamp.snapshot_meta = MetaFile(snapshot.version)
            metadata: Metadata[Any] = Metadata(signed)
            metadata.sign(signer_of(online.key))
            (folder / "metadata" / path).write_bytes(metadata.to_bytes())

    def release(self, bundles: Mapping[str, Path | str] | None = None, **about: Any) -> int:
        """Draft, sign and publish; the sequence."""
        sequence = self.draft(bundles, **about)
        self.publish()
        return sequence
