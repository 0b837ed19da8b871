"""What a bundle's own description may name: files of the bundle, and no others of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from upwell.edge.bundle.base import DESCRIPTION_NAME, BundleRefused, Refusal
from upwell.shared.errors import ConfigError
from upwell.shared.yaml import read_text
from upwell.shared.yaml_tree import read_tree


def check_confined(folder: Path) -> None:
    """Refuse a bundle whose `model.yaml` takes labels or golden vectors from outside: callers would see any file.

    Raises `BundleRefused`: `UNCONFINED`, and `MALFORMED` where the file is no YAML.
    """
    path = folder / DESCRIPTION_NAME
    if not path.is_file():
        return
    try:
        document = read_tree(read_text(path), None).value
    except ConfigError as error:
        raise BundleRefused(Refusal.MALFORMED, path, str(error)) from None
    golden = document.get("golden") if isinstance(document, dict) else None
    vectors = golden.get("file") if isinstance(golden, dict) else None
    for name in [*_labels_files(document, is_step=False), *([vectors] if isinstance(vectors, str) else [])]:
        inside = os.path.normpath(name)
        if os.path.isabs(inside) or inside.startswith(("..", "~")) or "\\" in inside:
            raise BundleRefused(Refusal.UNCONFINED, path, f"names the file {name!r}, which is not in the bundle")


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
