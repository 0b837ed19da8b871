"""Loads a YAML file into a pydantic model and reports all problems of the file at once."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from ruamel.yaml import YAML

from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError
from upwell.shared.files import LeadsOut, Unconfined, confined, open_plain, plain_file

MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file, checked before reading (bytes)."""

M = TypeVar("M", bound=BaseModel)


class FilePart(BaseModel):
    """A part of a file: unknown keys are errors, and loaded values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def load_yaml(path: Path, model: type[M], within: Path | None = None) -> M:
    """Load the file at `path` as a `model`. Raises `ConfigError` with every problem found, each with line and column.

    Paths in `RelativePath` fields are relative to the file's folder. `within` is the folder of an untrusted file: the
    file must be a regular file in it, and so must the files that it names (see `ConfinedPath`).
    """
    return parse_yaml(read_text(path, within), model, path, within)


def parse_yaml(text: str, model: type[M], path: Path | None = None, within: Path | None = None) -> M:
    """Parse `text` as a `model`; `path` is the file it came from (None: the current folder). Raises `ConfigError`."""
    tree = read_tree(text, path)
    if not isinstance(tree.value, dict):
        shape = "a list" if isinstance(tree.value, list) else repr(tree.value)[:40]
        raise ConfigError.at(path, f"expected keys and values at the top, got {shape}", "", tree.line, tree.column)
    base_dir = path.parent if path is not None else Path()
    try:
        return model.model_validate(
            tree.value, context={"base_dir": base_dir, "tree": tree, "path": path, "within": within}
        )
    except ValidationError as error:
        from upwell.shared.config.yaml_problems import MAX_ERRORS, problems_of

        unlisted = max(0, error.error_count() - MAX_ERRORS)
        raise ConfigError(problems_of(error, tree, model, path), unlisted) from None


def as_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as the text of a file, one line for each text however long it is."""
    yaml, buffer = YAML(), io.StringIO()
    yaml.width = 1 << 20
    yaml.dump(dict(values), buffer)
    return buffer.getvalue().rstrip("\n")


def resolve(path: str | Path, base_dir: Path) -> Path:
    """`path` as an absolute path: `~` is the home folder, and a relative path starts at `base_dir`.

    Symbolic links are not resolved. Raises `ValueError` for an empty path and for a NUL character.
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError(f"expected a path, got {text!r}")
    try:
        expanded = Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text!r} names a home folder that does not exist") from None
    return Path(os.path.abspath(base_dir / expanded))


def _resolve_field(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, (str, Path)):
        raise ValueError(f"expected a path, got {value!r}")
    return resolve(value, (info.context or {}).get("base_dir", Path()))


RelativePath: TypeAlias = Annotated[Path, BeforeValidator(_resolve_field)]
"""A pydantic field for a path, relative to its file and absolute once loaded; it need not exist."""


def confined_path(value: object, info: ValidationInfo) -> Path:
    """Resolve a path from a file: it must be in the folder `within` which the file was loaded, else beside or below it.

    It need not exist. Raises `ValueError`.
    """
    context = info.context or {}
    within = context.get("within") or context.get("base_dir", Path())
    path = _resolve_field(value, info)
    try:
        return confined(within, path)
    except LeadsOut:
        raise ValueError(f"the file {path} is outside {within}; copy it beside the model") from None


ConfinedPath: TypeAlias = Annotated[Path, BeforeValidator(confined_path)]
"""A pydantic field for a file named by a model's description; see `confined_path`."""


def read_text(path: Path, within: Path | None = None) -> str:
    """The text of a small file; with `within` it must be a regular file in that folder.

    Raises `ConfigError` if it is missing, unreadable, too large, not UTF-8 or outside the folder.
    """
    try:
        with path.open("rb") if within is None else open_plain(plain_file(within, path)) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            # A pipe or device reports size 0, so the read is bounded as well.
            data = file.read(MAX_FILE_BYTES + 1) if size_bytes <= MAX_FILE_BYTES else None
    except Unconfined as error:
        raise ConfigError.at(path, f"cannot be read: {error}") from None
    except FileNotFoundError:
        raise ConfigError.at(path, "no such file") from None
    except IsADirectoryError:
        raise ConfigError.at(path, "this is a folder; expected a YAML file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError.at(path, f"cannot be read: {reason}") from None
    if data is None or len(data) > MAX_FILE_BYTES:
        raise ConfigError.at(path, f"larger than {MAX_FILE_BYTES} bytes; expected a YAML file written by a person")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError.at(path, "not UTF-8 text; save the file as UTF-8", line=line) from None
