"""The document of a release, `releases/N.json` in its repository: the files that belong together, by digest.

The document and every file that it names are TUF targets, so the key that signs `targets` says what may run. A file
lies at `payload/SHA256` there, or in the OCI registry that the document names.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.bundle_signature import first_problem
from upwell.edge.bundle.manifest import MAX_VERSION
from upwell.edge.bundle.source_address import SCHEME, Reference
from upwell.shared.errors import ConfigError

MAX_DOCUMENT_BYTES = 1 << 20
MAX_BUNDLES = 100
BACK_WITHIN_S = 86400.0
"""Default time after its installation during which a release may be taken back."""

_DOCUMENT_PATH = re.compile(r"releases/([1-9][0-9]{0,15})\.json")
_SHA256 = r"^[0-9a-f]{64}$"
_DIGEST = r"^sha256:[0-9a-f]{64}$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Payload(_Part):
    """A file of a release. `source` is the artifact in an OCI registry that contains it; empty if the repository
    does."""

    sha256: Annotated[str, Field(pattern=_SHA256)]
    size_bytes: Annotated[int, Field(ge=0)]
    source: str = ""

    @property
    def path(self) -> str:
        """Its target path in the repository."""
        return f"payload/{self.sha256}"


class ReleasedBundle(Payload):
    """The archive of a bundle; `digests` are those of its model files, as in answers and calibrations."""

    version: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    digests: list[Annotated[str, Field(pattern=_DIGEST)]]


class ReleaseDocument(_Part):
    """A release: everything that a device runs together.

    The keys of `bundles` are names of models in agent.yaml, those of `cloud` are names of models in the cloud. A part
    that is None stays as agent.yaml says. For `back_within_s` after the installation, a device may be sent back to the
    previous release.
    """

    format: Literal[1] = 1
    name: Annotated[str, Field(pattern=_NAME)]
    sequence: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    bundles: Annotated[dict[str, ReleasedBundle], Field(max_length=MAX_BUNDLES)] = {}
    policy: Payload | None = None
    calibrations: Payload | None = None
    pipelines: Payload | None = None
    cloud: dict[str, Annotated[str, Field(pattern=_DIGEST)]] = {}
    back_within_s: Annotated[float, Field(ge=0)] = BACK_WITHIN_S

    @property
    def payloads(self) -> list[Payload]:
        """Every file, once."""
        files = [*self.bundles.values(), self.policy, self.calibrations, self.pipelines]
        return list({one.sha256: one for one in files if one is not None}.values())

    @property
    def text(self) -> bytes:
        """The text that is written and signed."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def document_path(sequence: int) -> str:
    """The target path of a release's document."""
    return f"releases/{sequence}.json"


def sequence_of(path: str) -> int | None:
    """The sequence of the release whose document has this target path; None for any other target."""
    found = _DOCUMENT_PATH.fullmatch(path)
    return int(found[1]) if found else None


def parse_document(data: bytes, sequence: int) -> ReleaseDocument:
    """Parse the document of release `sequence`. Raises `BundleRefused` (`MALFORMED`) if it is malformed or another
    release."""
    try:
        document = ReleaseDocument.model_validate_json(data)
    except ValidationError as error:
        raise BundleRefused(Refusal.MALFORMED, None, f"release {sequence}: {first_problem(error)}") from None
    if document.sequence != sequence:
        problem = f"{document_path(sequence)} contains release {document.sequence}"
        raise BundleRefused(Refusal.MALFORMED, None, problem)
    for payload in document.payloads:
        if payload.source:
            _check_artifact(payload.source, sequence)
    return document


def _check_artifact(source: str, sequence: int) -> None:
    try:
        is_pinned = source.startswith(SCHEME) and bool(Reference.parse(source).digest)
    except ConfigError:
        is_pinned = False
    if not is_pinned:
        expected = "expected oci://REGISTRY/REPOSITORY@sha256:DIGEST"
        raise BundleRefused(
            Refusal.MALFORMED, None, f"release {sequence} names the source {source[:200]!r}; {expected}"
        )
