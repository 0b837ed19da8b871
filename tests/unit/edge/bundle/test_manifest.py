"""Manifests: one text for one content, and nothing else is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.edge.bundle.bundles import make
from upwell.edge.bundle.bundle import MANIFEST_NAME, BundleRefused, FileEntry, Manifest, Refusal
from upwell.edge.bundle.manifest import MAX_MANIFEST_BYTES, manifest_bytes, new_manifest, read_manifest
from upwell.shared.errors import ConfigError

ENTRY = FileEntry("0" * 64, 3)
GOOD = Manifest("digits", 3, {"a.txt": ENTRY, "b/c": ENTRY})


def refused(folder: Path, data: bytes) -> str:
    (folder / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(BundleRefused) as caught:
        read_manifest(folder)
    assert caught.value.refusal is Refusal.MALFORMED
    assert caught.value.problems[0].path == folder / MANIFEST_NAME
    return str(caught.value)


def edited(**changes: Any) -> bytes:
    document = {**json.loads(manifest_bytes(GOOD)), **changes}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for one in (GOOD, Manifest("digits", 2**53 - 1, GOOD.files)):
        (tmp_path / MANIFEST_NAME).write_bytes(manifest_bytes(one))
        assert read_manifest(tmp_path) == one


def test_the_text_depends_on_the_content_alone() -> None:
    other = Manifest("digits", 3, dict(sorted(GOOD.files.items(), reverse=True)))
    assert manifest_bytes(other) == manifest_bytes(GOOD)


def test_every_file_is_listed_with_its_digest_and_size(tmp_path: Path) -> None:
    large = bytes(range(256)) * 5000  # more than is read at once
    make(tmp_path, {"large": large, "x.txt": b"abc", "y/z": b""})
    assert read_manifest(tmp_path).files == {
        "large": FileEntry(hashlib.sha256(large).hexdigest(), len(large)),
        "x.txt": FileEntry("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3),
        "y/z": FileEntry("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 0),
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "format"),
        ({"version": 0}, "version"),
        ({"version": "3"}, "version"),
        ({"version": 3.0}, "version"),
        ({"version": True}, "version"),
        ({"version": 2**53}, "version"),
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "digits\n"}, "name"),
        ({"extra": 1}, "extra"),
        ({"files": {}}, "files"),
        ({"files": {"x": {"sha256": "0" * 63, "size_bytes": 1}}}, "sha256"),
        ({"files": {"x": {"sha256": "A" * 64, "size_bytes": 1}}}, "sha256"),
        ({"files": {"x": {"sha256": "0" * 64, "size_bytes": -1}}}, "size_bytes"),
        ({"files": {"x": {"sha256": "0" * 64, "size_bytes": 1, "mode": 4}}}, "mode"),
        ({"files": {"../x": {"sha256": "0" * 64, "size_bytes": 1}}}, "points outside"),
        ({"files": {MANIFEST_NAME: {"sha256": "0" * 64, "size_bytes": 1}}}, "must not be listed"),
        ({"files": {"model.sig": {"sha256": "0" * 64, "size_bytes": 1}}}, "must not be listed"),
        ({"files": {one: {"sha256": "0" * 64, "size_bytes": 1} for one in ("a", "A")}}, "the same file on some"),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    assert says in refused(tmp_path, edited(**changes))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        manifest_bytes(GOOD)[:-1],
        manifest_bytes(GOOD).replace(b"\n", b"\r\n"),
        (json.dumps(dict(reversed(json.loads(manifest_bytes(GOOD)).items())), indent=2) + "\n").encode(),
        manifest_bytes(GOOD).replace(b'"version": 3', b'"version": 9,\n  "version": 3'),
    ],
)
def test_other_texts_are_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data)


def test_a_large_one_is_not_read(tmp_path: Path) -> None:
    assert f"larger than the limit of {MAX_MANIFEST_BYTES} bytes" in refused(tmp_path, b" " * (MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize(("name", "version", "key"), [("a/b", 1, "--name"), ("a", 0, "--version")])
def test_a_name_or_version_that_none_can_have_is_wrong_use(name: str, version: int, key: str) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        new_manifest(name, version, {"x": ENTRY})
    assert caught.value.problems[0].key == key
