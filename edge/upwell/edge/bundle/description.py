"""What a bundle's own descriptions may name: files of the bundle, and no others of this machine.

They are refused here before the bundle is installed; whoever loads one is held to the same (`load_description`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from upwell.edge.bundle.base import DESCRIPTION_NAME, BundleRefused, Refusal
from upwell.shared.config.yaml import read_text
from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError
from upwell.shared.files import Unconfined, confined

_MODEL_SUFFIXES = (".onnx", ".tflite")


def check_confined(folder: Path, files: Collection[str]) -> None:
    """Refuse a bundle of which a description takes labels or golden vectors from outside: callers would see any file.

    `files` are those of the bundle. Raises `BundleRefused`: `UNCONFINED`, and `MALFORMED` where one is no YAML.
    """
    for file in sorted(files):
        path = PurePosixPath(file)
        models = {str(path.with_suffix(suffix)) for suffix in _MODEL_SUFFIXES}
        if path.name == DESCRIPTION_NAME or (path.suffix == ".yaml" and models.intersection(files)):
            _check(folder, folder / path)


def _check(folder: Path, path: Path) -> None:
    try:
        document = read_tree(read_text(path, folder), None).value
    except ConfigError as error:
        raise BundleRefused(Refusal.MALFORMED, path, str(error)) from None
    golden = document.get("golden") if isinstance(document, dict) else None
    vectors = golden.get("file") if isinstance(golden, dict) else None
    for name in [*_labels_files(document, is_step=False), *([vectors] if isinstance(vectors, str) else [])]:
        if not _is_inside(folder, path.parent, name):
            raise BundleRefused(Refusal.UNCONFINED, path, f"names the file {name!r}, which is not in the bundle")


def _is_inside(folder: Path, base: Path, name: str) -> bool:
    """Whether `name`, written in a file in `base`, means a file of the bundle, wherever the bundle lies."""
    if os.path.isabs(name) or name.startswith("~") or "\\" in name:
        return False
    try:
        confined(folder, os.path.normpath(base / name))
    except Unconfined:
        return False
    return True


def _labels_files(value: Any, is_step: bool) -> Iterator[str]:
    """Every text under a key `labels`, except in a step of a pipeline, `{labels: scores}`, where it is a value."""
    if isinstance(value, list):
        for item in value:
            yield from _labels_files(item, is_step=True)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "labels" and isinstance(item, str) and not is_step:
                yield item
            yield from _labels_files(item, is_step=False)
