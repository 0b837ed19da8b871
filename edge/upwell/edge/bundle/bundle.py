"""What a bundle is, and why one is refused.

A bundle is a folder, or a tar file of one, with

- `model.onnx`, `model.tflite`: the model, for one runtime or several (`EdgeSide.runtime` chooses);
- `model.yaml` and what it names (labels);
- `golden.npz`: golden vectors, run at load (`upwell.edge.bundle.golden`);
- `calibrations.yaml`: thresholds calibrated for this model (`upwell.shared.routing.policy.calibrations`);
- `reference.json`: statistics of reference rows, for drift (`upwell.shared.routing.drift.drift_reference`);
- `manifest.json`: name, version, and SHA-256 and size of every other file but the signature;
- `model.sig`: an Ed25519 signature of all files, manifest included, in the OpenSSF model-signing format.

A folder without `manifest.json` is served too, unverified, and the agent says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from upwell.shared.errors import ConfigError, Problem

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


@dataclass(frozen=True)
class FileEntry:
    """One file of a bundle: 64 hexadecimal digits, and its size."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`. `version` grows from bundle to bundle of one name; `files` go by their POSIX paths."""

    name: str
    version: int
    files: Mapping[str, FileEntry]


@dataclass(frozen=True)
class Trust:
    """Trusted signers: PEM files of public keys; a signature by any one is enough, so keys can be rotated.

    The keys are Ed25519 keys, or keys on one of the curves P-256, P-384 and P-521. With `require` an unsigned bundle is
    refused; with `keys` a wrong signature is always refused.
    """

    keys: tuple[Path, ...] = ()
    require: bool = False


@dataclass(frozen=True)
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
