"""The index of exports: which case went where, so that erased cases can be found there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_json, write_named

INDEX_NAME = "case-exports.json"
_MAX_BYTES = 256 << 20


def note_export(folder: Path, path: Path, format: str, ids: Sequence[str]) -> None:
    """Record that these cases went to `path`. Raises `ConfigError`."""
    exports = [one for one in _read(folder) if one["path"] != str(path)]
    _write(folder, [*exports, {"path": str(path), "format": format, "cases": sorted(ids)}])


def forget_in_exports(folder: Path, ids: Sequence[str]) -> list[str]:
    """Remove the cases from the index; return the existing exports that hold any of them. Raises `ConfigError`."""
    exports, doomed = _read(folder), set(ids)
    holding = [str(one["path"]) for one in exports if doomed & set(one["cases"]) and Path(one["path"]).exists()]
    if any(doomed & set(one["cases"]) for one in exports):
        _write(folder, [{**one, "cases": [id for id in one["cases"] if id not in doomed]} for one in exports])
    return holding


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / INDEX_NAME
    try:
        document = read_json(path, _MAX_BYTES)
        exports = [{"path": str(o["path"]), "format": str(o["format"]), "cases": list(o["cases"])} for o in document]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError.at(path, f"this is not an index of exports: {error}; remove it to start a new one") from None
    return exports


def _write(folder: Path, exports: Sequence[dict[str, Any]]) -> None:
    write_named(folder / INDEX_NAME, json.dumps(exports, indent=1).encode() + b"\n")
