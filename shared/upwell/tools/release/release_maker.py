"""From what the user names to the document of a release and its files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from upwell.edge.bundle.archive import write_archive
from upwell.edge.bundle.bundle import Trust, entry_of
from upwell.edge.bundle.open_bundle import open_archive, open_bundle
from upwell.edge.bundle.source_address import SCHEME, Reference
from upwell.edge.updates.releases.release_document import BACK_WITHIN_S, Payload, ReleasedBundle, ReleaseDocument
from upwell.edge.updates.releases.stored_release import StoredRelease, open_release, store_release
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.sources.source_opening import open_source
from upwell.shared.errors import ConfigError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.tools.release.repository_editor import RepositoryEditor

_MODEL_SUFFIXES = frozenset({".onnx", ".tflite"})


@dataclass(frozen=True)
class ReleaseContents:
    """What to release. `bundles` are archives, folders or `oci://…@sha256:…` by the names of models.

    Anything not given stays as in the release `like`, None for none.
    """

    bundles: Mapping[str, str] = field(default_factory=dict)
    policy: Path | None = None
    calibrations: Path | None = None
    pipelines: Path | None = None
    cloud: Mapping[str, str] = field(default_factory=dict)
    like: int | None = None
    name: str = ""
    back_within_s: float | None = None


@dataclass(frozen=True)
class Made:
    """A release that was made and opened as a device would open it; `files` by their SHA-256."""

    document: ReleaseDocument
    files: Mapping[str, Path]
    stored: StoredRelease

    @property
    def digests(self) -> Mapping[str, Sequence[str]]:
        """The digests of the model files in each bundle."""
        return {name: bundle.digests for name, bundle in self.document.bundles.items()}


@contextmanager
def made(editor: RepositoryEditor, wanted: ReleaseContents, sequence: int) -> Iterator[Made]:
    """The release, in a folder that is deleted after the block. Raises `ConfigError`, `BundleRefused`,
    `FetchFailed`.
    """
    targets = editor.targets()
    base = None
    if wanted.like is not None:
        if targets is None:
            raise ConfigError.at(editor.folder, "there is no release yet", "--like")
        base = editor.document(wanted.like, targets.signed)
    with tempfile.TemporaryDirectory() as temporary:
        scratch, files = Path(temporary), dict[str, Path]()
        bundles = dict(base.bundles) if base else {}
        for number, (name, source) in enumerate(wanted.bundles.items()):
            bundles[name] = _bundle(source, scratch / f"bundle{number}", files)
        document = _document(
            name=wanted.name or (base.name if base else editor.folder.resolve().name),
            sequence=sequence,
            bundles=bundles,
            policy=_payload(wanted.policy, files) or (base.policy if base else None),
            calibrations=_payload(wanted.calibrations, files) or (base.calibrations if base else None),
            pipelines=_payload(wanted.pipelines, files) or (base.pipelines if base else None),
            cloud={**(base.cloud if base else {}), **wanted.cloud},
            back_within_s=BACK_WITHIN_S if wanted.back_within_s is None else wanted.back_within_s,
        )
        if not document.payloads:
            raise ConfigError.at(None, "the release is empty; expected --bundle, --policy, --pipelines or --like")
        yield Made(document, files, opened(editor, document, files, scratch / "unit"))


def _document(**parts: Any) -> ReleaseDocument:
    """Raises `ConfigError` for an invalid name or digest."""
    try:
        return ReleaseDocument(**parts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = {"cloud": "--cloud", "name": "--name", "back_within_s": "--back-within"}.get(str(first["loc"][0]), "")
        expected = {
            "--cloud": "expected MODEL=sha256: and 64 hexadecimal digits",
            "--name": "expected up to 64 letters, digits, `.`, `_` and `-`, starting with a letter or digit",
        }.get(option, first["msg"])
        raise ConfigError.at(None, f"{expected}, got {first['input']!r}", option) from None


def opened(editor: RepositoryEditor, document: ReleaseDocument, files: Mapping[str, Path], into: Path) -> StoredRelease:
    """The release as a device would open it, in the new folder `into`."""

    def payload(one: Payload) -> Path:
        known = files.get(one.sha256)
        if known is not None:
            return known
        here = editor.targets_folder / f"payload/{one.sha256}.{one.sha256}"
        return here if here.is_file() or not one.source else _fetched(one.source, into.parent / one.sha256)

    store_release(document.text, document, into, payload)
    return open_release(into, Trust())


def _payload(path: Path | None, files: dict[str, Path]) -> Payload | None:
    if path is None:
        return None
    entry = entry_of(path)
    files[entry.sha256] = path
    return Payload(sha256=entry.sha256, size_bytes=entry.size_bytes)


def _bundle(source: str, scratch: Path, files: dict[str, Path]) -> ReleasedBundle:
    scratch.mkdir()
    origin = ""
    if source.startswith(SCHEME):
        if not Reference.parse(source).digest:
            problem = f"{source} may refer to another artifact later; expected oci://REGISTRY/REPOSITORY@sha256:DIGEST"
            raise ConfigError.at(None, problem, "--bundle")
        archive, origin = _fetched(source, scratch / "fetched"), source
    elif Path(source).is_dir():
        archive = scratch / "bundle.tar"
        write_archive(archive, Path(source))
    else:
        archive = Path(source)
    bundle = open_archive(archive, scratch / "unpacked")
    if bundle.manifest is None:
        raise ConfigError.at(Path(source), "it has no manifest; make a bundle with `upwell model pack`", "--bundle")
    try:
        models = sorted(path for path in bundle.folder.iterdir() if path.suffix in _MODEL_SUFFIXES)
        digests = [model_digest(path) for path in models]
    except (BadOnnxFile, OSError) as error:
        raise ConfigError.at(Path(source), f"its model cannot be read: {error}", "--bundle") from None
    entry = entry_of(archive)
    if not origin:
        files[entry.sha256] = archive
    return ReleasedBundle(
        sha256=entry.sha256,
        size_bytes=entry.size_bytes,
        source=origin,
        version=bundle.version,
        digests=digests,
    )


def _fetched(source: str, into: Path) -> Path:
    """The archive in an OCI registry. Raises `FetchFailed`."""
    opened_source = open_source(source)
    try:
        offer = opened_source.newest()
        if offer is None:
            raise FetchFailed(f"{source}: there is no such artifact")
        return opened_source.fetch(offer, into, lambda *_: None)
    finally:
        opened_source.close()


def name_of(source: str) -> str:
    """The name in the manifest of a bundle, which is also that of its model by default."""
    if source.startswith(SCHEME):
        raise ConfigError.at(None, f"expected NAME={source}, NAME as in agent.yaml", "--bundle")
    path = Path(source)
    with tempfile.TemporaryDirectory() as temporary:
        bundle = open_bundle(path) if path.is_dir() else open_archive(path, Path(temporary) / "bundle")
    if bundle.manifest is None:
        raise ConfigError.at(path, "it has no manifest; make a bundle with `upwell model pack`", "--bundle")
    return bundle.manifest.name
