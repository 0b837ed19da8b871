"""Writes cases for other tools: a folder, complete or not there at all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from PIL import Image

from upwell.edge.cases.case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import sync_folder, sync_tree
from upwell.shared.signature.model_yaml import DEFAULT_MAX_PIXELS
from upwell.shared.signature.picture_codec import decode
from upwell.tools.cases.case_labels import Label, answer_label

Side: TypeAlias = Literal["cloud", "edge", "none"]

_SUFFIXES = ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG\r\n\x1a\n", ".png"), (b"RIFF", ".webp"))
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Picture:
    """A picture as it is exported: upright, `name` within the export's folder, with its size in pixels."""

    name: str
    width: int
    height: int


@dataclass(frozen=True)
class Exported:
    """A case to export. `label` is a person's, or else that of the side used instead; None without either."""

    facts: CaseFacts
    edge: Label | None
    cloud: Label | None
    label: Label | None
    is_labelled: bool
    picture: Picture | None


@dataclass(frozen=True)
class ExportTask:
    """What to export: the cases, people's labels, and the side whose answer replaces a missing label."""

    facts: Sequence[CaseFacts]
    read: Callable[[str], CollectedCase]
    labels: Mapping[str, Label]
    side: Side


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` once the block has succeeded. Raises `ConfigError`.

    One that a killed process left behind (a name with a dot and `.new`) is removed.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError.at(path, "already exists; expected a new folder", "--out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{_escaped(path.name)}.*.new"):
            shutil.rmtree(left, ignore_errors=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        draft.mkdir()
    except OSError as error:
        raise ConfigError.at(path, f"cannot be written: {error.strerror or error}", "--out") from None
    try:
        yield draft
        sync_tree(draft)
        os.rename(draft, path)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError.at(path, f"cannot be written: {error.strerror or error}", "--out") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def exported(task: ExportTask, folder: Path, pictures: str = "images") -> Iterator[Exported]:
    """The cases one by one, with the picture already in `folder`/`pictures`. Raises `OSError` and `UpwellError`."""
    for facts in task.facts:
        case = task.read(facts.id)
        output = facts.signature.answer
        edge = cloud = None
        if output is not None:
            edge, cloud = answer_label(output, case.edge_outputs()), answer_label(output, case.cloud_outputs())
        stands_in = {"cloud": cloud, "edge": edge, "none": None}[task.side]
        human = task.labels.get(facts.id)
        label = stands_in if human is None else human
        yield Exported(facts, edge, cloud, label, human is not None, _put_picture(case, folder, pictures))


def _put_picture(case: CollectedCase, folder: Path, pictures: str) -> Picture | None:
    data = next(iter(case.pictures().values()), None)
    if data is None:
        return None
    try:
        data, size = upright(data)
    except InvalidRequest:
        return None  # an undecodable picture may be a case, but not training data
    suffix = next((suffix for start, suffix in _SUFFIXES if data.startswith(start)), ".bin")
    name = f"{pictures}/{case.facts.id}{suffix}"
    (folder / pictures).mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return Picture(name, *size)


def upright(data: bytes) -> tuple[bytes, tuple[int, int]]:
    """The picture, byte by byte as it came, with its width and height. One that EXIF turns becomes an upright PNG,
    since not all tools follow EXIF. Raises `InvalidRequest`.
    """
    pixels = decode(data, "rgb", DEFAULT_MAX_PIXELS)
    height, width = pixels.shape[:2]
    try:
        with Image.open(io.BytesIO(data)) as image:
            is_turned = (image.getexif().get(_ORIENTATION) or 1) != 1
    except Exception:  # noqa: BLE001 (a broken EXIF block says nothing, and raises anything)
        is_turned = False
    if is_turned:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        data = file.getvalue()
    return data, (width, height)


def class_names(items: Sequence[Exported]) -> list[str]:
    """The classes that the models name, in their order, then any others, sorted."""
    names: dict[str, None] = {}
    for item in items:
        output = item.facts.signature.answer
        names.update(dict.fromkeys(output.labels if output is not None else ()))
    given = {box.label for item in items if item.label and item.label.boxes for box in item.label.boxes}
    given |= {item.label.label for item in items if item.label and item.label.label is not None}
    names.update(dict.fromkeys(sorted(given - names.keys(), key=_natural)))
    return list(names)


def _natural(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdecimal() else (1 << 60, name)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file; characters that UTF-8 cannot hold are escaped. Raises `OSError`."""
    path.write_text(json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1) + "\n", encoding="utf-8")
