"""Makes a bundle of a folder: the models are loaded, run and compared before anything is written."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from upwell.edge.bundle.bundle import (
    CALIBRATIONS_NAME,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    Advance,
    Bundle,
    BundleRefused,
    entry_of,
    nobody,
    sizes_in,
)
from upwell.edge.bundle.bundle_calibrations import calibrations_text, load_calibrations, load_reference
from upwell.edge.bundle.golden import Labels
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.bundle.open_bundle import check_confined
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import write_named
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.tensors import Array
from upwell.tools.bundle.runnable_variants import (
    MODEL_NAMES,
    Models,
    VariantCheck,
    are_own_answers,
    check_all,
    opened_models,
    record,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackRequest:
    """What to make: a bundle of this name and version, and its optional contents.

    Golden vectors are recorded from `requests`; with None the folder's own golden vectors are used, or else random
    requests. `reference` is the folder of another model that answers them in place of the model itself, and `labels`
    are their classes, to compare with the answers. `policy` is a policy whose calibrations are included, and
    `package` the one TFLite package to check on.
    """

    name: str
    version: int
    requests: Mapping[str, Array] | None = None
    policy: Path | None = None
    package: str | None = None
    reference: Path | None = None
    labels: Labels | None = None


@dataclass(frozen=True)
class Packed:
    """A bundle in a folder of its own, the answers of each runtime, and the origin of the golden vectors.

    `is_own_word`: they are just what the model itself answers, so they cannot reveal a wrong model. `made` are the
    paths of the files that the source folder lacked or had with other contents.
    """

    bundle: Bundle
    checks: Sequence[VariantCheck]
    golden: str
    is_own_word: bool
    made: Sequence[str]


@contextmanager
def packed(
    folder: Path, wanted: PackRequest, beside: Path, step: Callable[[str], None], advance: Advance = nobody
) -> Iterator[Packed]:
    """The unsigned bundle of `folder`, in a new folder beside `beside` that is deleted after the block.

    Raises `ConfigError`, `BundleRefused` (`UNCONFINED`) and `Disagreement`; `folder` stays unchanged.
    """
    new_manifest(wanted.name, wanted.version, {})  # checks the name before minutes of work
    sizes = sizes_in(folder)
    with ConfigError.on_os_error(beside, "cannot be written"):
        stage = Path(tempfile.mkdtemp(dir=beside.parent, prefix=f".{beside.name}."))
    try:
        try:
            with _named_as(folder, stage):
                for path in sizes:
                    if path not in (MANIFEST_NAME, SIGNATURE_NAME):
                        _bring(folder / path, stage / path)
                checks, golden, is_own_word, made = _checked(stage, wanted, step)
                step("taking digests")
                files = {path: entry_of(stage / path, advance) for path in sizes_in(stage)}
                manifest = new_manifest(wanted.name, wanted.version, files)
                (stage / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
        except OSError as error:
            if error.filename and Path(error.filename).is_relative_to(folder):
                raise ConfigError.at(Path(error.filename), f"cannot be read: {error.strerror}") from None
            raise ConfigError.at(beside, f"cannot be written: {error.strerror or error}") from None  # the disk is full
        yield Packed(Bundle(stage, manifest), checks, golden, is_own_word, (*made, MANIFEST_NAME))
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def put_in_place(made: Packed, folder: Path) -> None:
    """Put the files that packing made, and the signature if there is one, into the source folder of the bundle.

    An existing signature is removed first, so that it never lies beside files that it does not sign.
    """
    with ConfigError.on_os_error(folder / SIGNATURE_NAME, "cannot be replaced"):
        (folder / SIGNATURE_NAME).unlink(missing_ok=True)
    stage = made.bundle.folder
    for name in (*made.made, SIGNATURE_NAME):
        if (stage / name).exists():
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            write_named(folder / name, (stage / name).read_bytes())


def default_name(folder: Path) -> str:
    """A name for a bundle, derived from the name of its folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._")[:64] or "model"


def _checked(
    stage: Path, wanted: PackRequest, step: Callable[[str], None]
) -> tuple[Sequence[VariantCheck], str, bool, Sequence[str]]:
    made = []
    check_confined(stage, sizes_in(stage))
    _warn_of_unused(stage)
    with opened_models(stage, wanted.package, step) as models:
        if wanted.policy is not None:
            digests = {model_digest(stage / one.file) for one in models.variants}
            text = calibrations_text(wanted.policy, digests, wanted.name)
            (stage / CALIBRATIONS_NAME).unlink(missing_ok=True)  # may be a hard link to the user's file
            (stage / CALIBRATIONS_NAME).write_text(text, encoding="utf-8")
            made.append(CALIBRATIONS_NAME)
        load_calibrations(stage)
        load_reference(stage)
        golden = "as they were in the folder"
        if wanted.requests is not None or wanted.reference is not None or not models.golden.exists():
            step("recording golden vectors")
            golden = _recorded(models, wanted, step)
            made.append(models.golden.relative_to(stage).as_posix())
        return check_all(models, step), golden, wanted.labels is None and are_own_answers(models), made


def _warn_of_unused(stage: Path) -> None:
    """`upwell model quantize` writes beside the float model, under a name that no device loads."""
    for path in sorted(stage.iterdir()):
        if path.suffix in (".onnx", ".tflite") and path.name not in MODEL_NAMES:
            meant = f"model{path.suffix}"
            _log.warning("%s is included, but devices load %s; rename the file that they should run", path.name, meant)


def _recorded(models: Models, wanted: PackRequest, step: Callable[[str], None]) -> str:
    """Record golden vectors; return their origin in words."""
    whose = "random" if wanted.requests is None else "your"
    if wanted.reference is None:
        record(models, wanted.requests, labels=wanted.labels)
        text = f"answers of {models.variants[0].label} to {whose} requests"
    else:
        with opened_models(wanted.reference, None, step) as reference:
            record(models, wanted.requests, reference, wanted.labels)
            text = f"answers of {reference.variants[0].label} of {wanted.reference} to {whose} requests"
    if wanted.labels is not None:
        text += f", with labels of which {wanted.labels.right * 100:.3g} % must be right"
    return text


def _bring(source: Path, target: Path) -> None:
    """Hard-link the file, which nothing writes to; copy it if that is not possible."""
    with ConfigError.on_os_error(source, "cannot be read"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)


@contextmanager
def _named_as(folder: Path, stage: Path) -> Iterator[None]:
    """Make errors inside name the user's folder instead of the temporary one."""
    try:
        yield
    except BundleRefused as error:
        problem = _renamed(error.problems[0], folder, stage)
        raise BundleRefused(error.refusal, problem.path, problem.message) from None
    except ConfigError as error:
        raise ConfigError([_renamed(problem, folder, stage) for problem in error.problems]) from None


def _renamed(problem: Problem, folder: Path, stage: Path) -> Problem:
    path = problem.path
    if path is not None and path.is_relative_to(stage):
        path = folder / path.relative_to(stage)
    return replace(problem, path=path, message=problem.message.replace(str(stage), str(folder)))
