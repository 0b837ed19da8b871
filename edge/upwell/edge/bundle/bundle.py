"""What a bundle is, its files, and why one is refused.

A bundle is a folder, or a tar file of one, with

- `model.onnx`, `model.tflite`: the model, for one runtime or several (`EdgeSide.runtime` chooses);
- `model.yaml` and what it names (labels);
- `golden.npz`: golden vectors, run at load (`upwell.edge.bundle.golden`);
- `calibrations.yaml`: thresholds calibrated for this model (`upwell.shared.routing.policy.calibrations`);
- `reference.json`: statistics of reference rows, for drift (`upwell.shared.routing.drift.drift_reference`);
- `manifest.json`: name, version, and SHA-256 and size of every other file but the signature;
- `model.sig`: an Ed25519 signature of all files, manifest included, in the OpenSSF model-signing format.

A folder without `manifest.json` is served too, unverified, and the agent says so. A path must mean the same file
on every system, inside the bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path

from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import open_plain
from upwell.shared.value_classes import value_class

MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "model.sig"
DESCRIPTION_NAME = "model.yaml"
GOLDEN_NAME = "golden.npz"
CALIBRATIONS_NAME = "calibrations.yaml"
REFERENCE_NAME = "reference.json"


class Refusal(str, Enum):
    """Why a bundle is refused."""

    MISSING = "missing"  # no bundle there
    MALFORMED = "malformed"  # not a bundle, or a manifest that cannot be read
    TRUNCATED = "truncated"  # a file is shorter than the manifest or the archive says
    TAMPERED = "tampered"  # a file differs from the manifest, is not listed there, or is missing
    UNSIGNED = "unsigned"  # a signature is required and there is none
    WRONG_SIGNATURE = "wrong_signature"  # not signed by a trusted key, or the signature does not match the files
    OLDER = "older"  # not newer than the installed version
    OTHER_MODEL = "other_model"  # its name differs from the installed one's
    DIGEST_MISMATCH = "digest_mismatch"  # the fetched bytes are not those requested
    UNCONFINED = "unconfined"  # a path points outside the archive, or is not a plain file
    TOO_LARGE = "too_large"  # more bytes or files than allowed
    FAILED_SELF_TEST = "failed_self_test"  # no runtime loads it, or it fails its golden vectors
    BLOCKLISTED = "condemned"  # this version was rolled back on this device before
    UNTRUSTED = "untrusted"  # the release repository's metadata has expired or lacks a required signature
    LOOSENED = "loosened"  # a release would allow what this device's own configuration forbids
    TOO_SLOW = "too_slow"  # it exceeds the policy's deadline, and the previous version does not


class BundleRefused(ConfigError):
    """The bundle is refused; nothing of it was installed."""

    def __init__(self, refusal: Refusal, path: Path | None, message: str) -> None:
        self.refusal = refusal
        super().__init__([Problem(path, None, None, "", message)])


@value_class
class FileEntry:
    """One file of a bundle: 64 hexadecimal digits, and its size."""

    sha256: str
    size_bytes: int


@value_class
class Manifest:
    """`manifest.json`. `version` grows from bundle to bundle of one name; `files` go by their POSIX paths."""

    name: str
    version: int
    files: Mapping[str, FileEntry]


@value_class
class Trust:
    """Trusted signers: PEM files of public keys; a signature by any one is enough, so keys can be rotated.

    The keys are Ed25519 keys, or keys on one of the curves P-256, P-384 and P-521. With `require` an unsigned bundle is
    refused; with `keys` a wrong signature is always refused.
    """

    keys: tuple[Path, ...] = ()
    require: bool = False


@value_class
class Bundle:
    """A bundle on disk, verified as far as its files allow.

    `manifest` is None for a plain folder. `signed_by` is the SHA-256 fingerprint of the trusted key, empty if unsigned.
    """

    folder: Path
    manifest: Manifest | None = None
    signed_by: str = ""

    @property
    def version(self) -> int:
        """The manifest's version; 0 without a manifest."""
        return self.manifest.version if self.manifest else 0


CHUNK_BYTES = 1 << 20
Advance = Callable[[int], None]
"""Called with the number of bytes processed since the last call."""


def nobody(_count: int) -> None:
    """Ignore the count."""


def sizes_in(folder: Path) -> Mapping[str, int]:
    """Size in bytes of each file under `folder`, by its POSIX path, in order.

    Raises `BundleRefused`: `MISSING` if it is not a readable folder, `UNCONFINED` if it contains a link, a device or a
    name that a bundle may not have.
    """
    if not folder.is_dir():
        raise BundleRefused(Refusal.MISSING, folder, "no such folder")
    sizes: dict[str, int] = {}
    try:
        _collect(folder, "", sizes)
    except OSError as error:
        raise BundleRefused(Refusal.MISSING, folder, f"cannot be read: {error.strerror}") from None
    clash = first_clash(sizes)
    if clash:
        raise BundleRefused(Refusal.UNCONFINED, folder, f"{clash[0]} and {clash[1]} are the same file on some systems")
    return dict(sorted(sizes.items()))


def _collect(folder: Path, prefix: str, sizes: dict[str, int]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            reason = why_unfit(path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if not reason and not is_folder and not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                reason = "it is a link" if entry.is_symlink() else "it is not a plain file"
            if reason:
                raise BundleRefused(Refusal.UNCONFINED, Path(entry.path), f"does not belong in a bundle: {reason}")
            if is_folder:
                _collect(Path(entry.path), f"{path}/", sizes)
            else:
                sizes[path] = entry.stat(follow_symlinks=False).st_size


def entry_of(source: Path, advance: Advance = nobody) -> FileEntry:
    """Digest and size of a file, read once in chunks. Raises `BundleRefused` (`MISSING`) if it cannot be read."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with open_plain(source) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                advance(len(chunk))
    except OSError as error:
        raise BundleRefused(Refusal.MISSING, source, f"cannot be read: {error.strerror}") from None
    return FileEntry(digest.hexdigest(), size_bytes)


def read_small(path: Path, most_bytes: int, refusal: Refusal) -> bytes:
    """Read a small file. Raises `BundleRefused` with `refusal` if it is too large or cannot be read."""
    try:
        with open_plain(path) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise BundleRefused(refusal, path, f"cannot be read: {error.strerror}") from None
    if len(data) > most_bytes:
        raise BundleRefused(refusal, path, f"larger than the limit of {most_bytes} bytes")
    return data


MAX_PATH_CHARS = 100
"""The longest path that fits a plain tar header."""

_PART = r"[A-Za-z0-9_+@=](?:[A-Za-z0-9_+@=., -]*[A-Za-z0-9_+@=,-])?"
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))])


def why_unfit(path: str) -> str:
    """Why a bundle may not contain a file at `path`; empty if it may.

    Parts are joined by `/` and made of ASCII letters, digits, space and `_+@=.,-`, beginning with a letter, digit or
    one of `_+@=`, so none is `..`, hidden, a Windows drive or stream, or spelt in two ways in Unicode.
    """
    if path.startswith("/") or ".." in path.split("/"):
        return "it points outside the bundle"
    if len(path) > MAX_PATH_CHARS:
        return f"it is longer than {MAX_PATH_CHARS} characters"
    for part in path.split("/"):
        if part.startswith("."):
            return "hidden files do not belong in a bundle"
        if not re.fullmatch(_PART, part):
            return "expected names of letters, digits, spaces and _+@=.,- that begin with a letter or digit"
        if part.partition(".")[0].lower() in _DEVICES:
            return f"{part!r} is a device name on Windows"
    return ""


def first_clash(files: Iterable[str], folders: Iterable[str] = ()) -> tuple[str, str] | None:
    """Two paths that some file system treats as equal, or a file and a path below it."""
    seen: dict[str, tuple[str, bool]] = {}  # by lower case: the spelling, and whether it is a file
    for path, is_file in [*((path, False) for path in folders), *((path, True) for path in files)]:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            prefix, is_leaf = "/".join(parts[:count]), is_file and count == len(parts)
            before = seen.get(prefix.lower())
            if before is not None and (is_leaf or before != (prefix, False)):
                return before[0], path
            seen[prefix.lower()] = (prefix, is_leaf)
    return None
