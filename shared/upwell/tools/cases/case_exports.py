"""Writes cases for other tools, in their formats: a folder, complete or not there at all.

Each format is a function that fills an existing folder and returns the cases left out, with the reason. An index
says which case went where, so that erased cases can be found there.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
from PIL import Image

from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError, ExtraMissing, InvalidRequest
from upwell.shared.files import read_json, unfinished, write_named
from upwell.shared.signature.picture_codec import decode
from upwell.shared.signature.pixel_budget import DEFAULT_MAX_PIXELS
from upwell.tools.cases.case_labels import Label, LabelledBox, answer_label, form_of
from upwell.tools.cases.case_source import CaseLost

INDEX_NAME = "case-exports.json"
_MAX_BYTES = 256 << 20
Side: TypeAlias = Literal["cloud", "edge", "none"]
_SUFFIXES = ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG\r\n\x1a\n", ".png"), (b"RIFF", ".webp"))
_ORIENTATION = 0x0112

LeftOut: TypeAlias = Mapping[str, str]
"""The reason for each case left out of an export, by its id."""

_UNSAFE = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|%]')
_MOST_NAME_BYTES = 200
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]")
_BEYOND_16_BITS = re.compile("[\U00010000-\U0010ffff]")
COLUMNS = (
    "id", "model", "source", "created_unix_s", "why", "inclusion", "hardness", "route", "reason", "edge_digest",
    "cloud_digest", "tags", "edge", "cloud", "label", "labelled", "file", "text", "tensors",
)  # fmt: skip


def note_export(folder: Path, path: Path, format: str, ids: Sequence[str]) -> None:
    """Record that these cases go to `path`. Raises `ConfigError`."""
    exports = [one for one in _read(folder) if one["path"] != str(path)]
    _write(folder, [*exports, {"path": str(path), "format": format, "cases": sorted(ids)}])


def forget_in_exports(folder: Path, ids: Iterable[str], path: Path | None = None) -> list[str]:
    """Remove the cases from the index, or only from its entry for `path`; return the existing exports that hold any of
    them, unfinished ones included. Raises `ConfigError`.
    """
    exports, doomed = _read(folder), set(ids)
    holding = [one for one in exports if doomed & set(one["cases"]) and path in (None, Path(one["path"]))]
    for one in holding:
        one["cases"] = [id for id in one["cases"] if id not in doomed]
    if holding:
        _write(folder, exports)
    return [one["path"] for one in holding if any(unfinished(Path(one["path"]))) or Path(one["path"]).exists()]


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


@dataclass(frozen=True)
class Picture:
    """A picture as it is exported: upright, `name` within the export's folder, with its size in pixels."""

    name: str
    width: int
    height: int


@dataclass(frozen=True)
class Exported:
    """A case to export. `label` is a person's, or else that of the side used instead; None without either.

    `tensors` is the .npz file of its numeric inputs within the export's folder; empty without one.
    """

    facts: CaseFacts
    edge: Label | None
    cloud: Label | None
    label: Label | None
    is_labelled: bool
    picture: Picture | None
    text: str | None
    tensors: str


@dataclass(frozen=True)
class ExportTask:
    """What to export: the cases, people's labels, and the side whose answer replaces a missing label.

    `lost` collects the ids of cases that an agent has dropped meanwhile, or that the disk garbled.
    """

    facts: Sequence[CaseFacts]
    read: Callable[[str], CollectedCase]
    labels: Mapping[str, Label]
    side: Side
    lost: set[str] = field(default_factory=set)


def exported(
    task: ExportTask, folder: Path, pictures: str = "images", *, has_tensors: bool = False
) -> Iterator[Exported]:
    """The cases one by one, with the picture already in `folder`/`pictures`, and with `has_tensors` numeric inputs in
    `folder`/tensors; lost ones are noted and left out. Raises `OSError` and `UpwellError`.
    """
    for facts in task.facts:
        output = facts.signature.answer
        edge = cloud = None
        try:
            case = task.read(facts.id)
            if output is not None:
                edge, cloud = answer_label(output, case.edge_outputs()), answer_label(output, case.cloud_outputs())
            picture, text = _put_picture(case, folder, pictures), case.text()
            tensors = _put_tensors(case, folder) if has_tensors else ""
        except (CaseLost, InvalidRequest):
            task.lost.add(facts.id)
            continue
        stands_in = {"cloud": cloud, "edge": edge, "none": None}[task.side]
        human = task.labels.get(facts.id)
        label = stands_in if human is None else human
        yield Exported(facts, edge, cloud, label, human is not None, picture, text, tensors)


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


def _put_tensors(case: CollectedCase, folder: Path) -> str:
    arrays = {name: array for name, array in case.inputs().items() if array.dtype.kind in "fiub"}
    if not arrays:
        return ""
    name = f"tensors/{case.facts.id}.npz"
    (folder / "tensors").mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:  # numpy.savez does not take every name
        for tensor, array in arrays.items():
            with archive.open(f"{tensor}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return name


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


def label_studio(task: ExportTask, folder: Path, url: str) -> LeftOut:
    """Label Studio's tasks (`tasks.json`), of pictures or texts: both sides as predictions, people's labels as
    annotations.

    `url` is the prefix of each picture's name. `label-config.xml` is the labelling interface to import them into.
    """
    items = list(exported(task, folder))
    usable = [item for item in items if item.picture is not None or item.text is not None]
    shown = {_studio_shows(item) for item in usable}
    if len(shown) > 1:
        raise ConfigError.at(None, "the cases are of models of several kinds; choose with --model")
    if ("", "image") in shown or ("", "text") in shown:
        raise ConfigError.at(
            None, "only classes, boxes and numbers can be labelled; choose with --model, or another format"
        )
    write_json(folder / "tasks.json", [_studio_task(item, url) for item in usable])
    config = _studio_config(*next(iter(shown), ("choices", "image")), class_names(usable))
    (folder / "label-config.xml").write_text(config, encoding="utf-8")
    return _missing(items, usable)


def _studio_shows(item: Exported) -> tuple[str, str]:
    """Label Studio's names of what is labelled: the kind of region, and the object, `image` or `text`."""
    output = item.facts.signature.answer
    kinds = {"boxes": "rectanglelabels", "label": "choices", "value": "number"}
    kind = "" if output is None else kinds.get(form_of(output), "")
    return kind, "text" if item.picture is None else "image"


def _studio_task(item: Exported, url: str) -> dict[str, Any]:
    facts, picture = item.facts, item.picture
    data = {"text": item.text} if picture is None else {"image": url + quote(picture.name)}
    about = {"case": facts.id, "model": facts.model, "why": ", ".join(facts.why), "tags": dict(facts.tags)}
    task: dict[str, Any] = {"data": {**data, **about}, "predictions": []}
    for side, label, digest in (("edge", item.edge, facts.edge_digest), ("cloud", item.cloud, facts.cloud_digest)):
        if label is not None:
            task["predictions"].append(
                {"model_version": f"{side} {digest}".strip(), "result": _studio_result(label, picture)}
            )
    if item.is_labelled and item.label is not None:
        task["annotations"] = [{"result": _studio_result(item.label, picture)}]
    return task


def _studio_result(label: Label, picture: Picture | None) -> list[dict[str, Any]]:
    """Regions in percent of the picture."""
    names = {"to_name": "text" if picture is None else "image", "from_name": "label"}
    if label.boxes is not None and picture is not None:
        about = {"original_width": picture.width, "original_height": picture.height, "image_rotation": 0}
        return [
            {**names, **about, "id": f"box{number}", "type": "rectanglelabels",
             "value": {**_percent(box), "rotation": 0, "rectanglelabels": [box.label]}}
            for number, box in enumerate(label.boxes)
        ]  # fmt: skip
    if label.label is not None:
        return [{**names, "type": "choices", "value": {"choices": [label.label]}}]
    return [{**names, "type": "number", "value": {"number": label.value}}] if label.value is not None else []


def _percent(box: LabelledBox) -> dict[str, float]:
    x1, y1, x2, y2 = box.box
    return {"x": x1 * 100, "y": y1 * 100, "width": (x2 - x1) * 100, "height": (y2 - y1) * 100}


def _studio_config(kind: str, shown: str, names: Sequence[str]) -> str:
    outer, inner = {
        "rectanglelabels": ("RectangleLabels", "Label"), "choices": ("Choices", "Choice"), "number": ("Number", ""),
    }[kind]  # fmt: skip
    choices = "".join(f"<{inner} value={quoteattr(name)}/>" for name in names) if inner else ""
    return (
        f'<View><{shown.capitalize()} name="{shown}" value="${shown}"/>'
        f'<{outer} name="label" toName="{shown}">{choices}</{outer}></View>\n'
    )


def coco(task: ExportTask, folder: Path, _: str) -> LeftOut:
    """COCO's object detection (`annotations.json`): boxes as x, y, width, height in pixels."""
    items = list(exported(task, folder))
    usable = [item for item in items if item.picture and item.label and item.label.boxes is not None]
    names = class_names(usable)
    numbers = {name: number for number, name in enumerate(names, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, item in enumerate(usable, 1):
        picture, label = item.picture, item.label
        assert picture is not None and label is not None  # noqa: S101, PT018  chosen so
        file = picture.name.partition("/")[2]
        images.append(
            {"id": number, "file_name": file, "width": picture.width, "height": picture.height, "case": item.facts.id,
             "labelled": item.is_labelled}
        )  # fmt: skip
        for box in label.boxes or ():
            x1, y1, x2, y2 = box.box
            x, y, width, height = (
                x1 * picture.width,
                y1 * picture.height,
                (x2 - x1) * picture.width,
                (y2 - y1) * picture.height,
            )
            corners = [x, y, x + width, y, x + width, y + height, x, y + height]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": numbers[box.label], "iscrowd": 0,
                 "bbox": [x, y, width, height], "area": width * height, "segmentation": [corners]}
            )  # fmt: skip
    categories = [{"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()]
    document = {
        "info": {"description": "cases of Upwell"},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": categories,
    }
    write_json(folder / "annotations.json", document)
    _drop_pictures(folder, usable)
    return _missing(items, usable)


def yolo(task: ExportTask, folder: Path, _: str) -> LeftOut:
    """YOLO: a line `class cx cy width height` (fractions) per box in `labels`, and `data.yaml`."""
    items = list(exported(task, folder))
    usable = [item for item in items if item.picture and item.label and item.label.boxes is not None]
    names = class_names(usable)
    numbers = {name: number for number, name in enumerate(names)}
    (folder / "labels").mkdir()
    (folder / "images").mkdir(exist_ok=True)
    for item in usable:
        lines = []
        for box in (item.label.boxes if item.label else None) or ():
            x1, y1, x2, y2 = box.box
            lines.append(
                f"{numbers[box.label]} {(x1 + x2) / 2:.17g} {(y1 + y2) / 2:.17g} {x2 - x1:.17g} {y2 - y1:.17g}\n"
            )
        (folder / "labels" / f"{item.facts.id}.txt").write_text("".join(lines), encoding="utf-8")
    # JSON quotes any name and is valid YAML except for characters beyond 16 bits, which JSON writes as two escapes,
    # and for those that end a line only in YAML.
    listed = _BEYOND_16_BITS.sub(lambda one: f"\\U{ord(one[0]):08X}", json.dumps(names, ensure_ascii=False))
    listed = _LINE_ENDS.sub(lambda one: f"\\u{ord(one[0]):04X}", listed)
    text = f"path: .\ntrain: images\nval: images\nnc: {len(names)}\nnames: {listed}\n"
    (folder / "data.yaml").write_text(text, encoding="utf-8")
    _drop_pictures(folder, usable)
    return _missing(items, usable)


def imagefolder(task: ExportTask, folder: Path, _: str) -> LeftOut:
    """A folder of pictures per class, as torchvision reads it; `classes.json` has the class names."""
    items = list(exported(task, folder, ".pictures"))
    usable = [item for item in items if item.picture and item.label and item.label.label is not None]
    used: dict[str, str] = {}
    for item in usable:
        picture, label = item.picture, item.label
        assert picture is not None and label is not None and label.label is not None  # noqa: S101, PT018  chosen so
        name = folder_name(label.label)
        used[name] = label.label
        (folder / name).mkdir(exist_ok=True)
        (folder / picture.name).rename(folder / name / picture.name.rpartition("/")[2])
    shutil.rmtree(folder / ".pictures", ignore_errors=True)
    write_json(folder / "classes.json", used)
    return _missing(items, usable)


def folder_name(label: str) -> str:
    """A class name as a folder name: characters that a file system may reject are written as %XX, as are dots at its
    ends.
    """
    name = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", label)
    if name.startswith("."):
        name = "%2E" + name[1:]
    if name.endswith((".", " ")):
        name = f"{name[:-1]}%{ord(name[-1]):02X}"
    name = name.encode("utf-8", "backslashreplace").decode().replace("\\", "%5C")
    return name if len(name.encode()) <= _MOST_NAME_BYTES else f"{quote(label[:20], safe='')}%{_hash_of(label)}"


def _hash_of(text: str) -> str:
    """Sixteen hexadecimal digits that distinguish texts."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def table_csv(task: ExportTask, folder: Path, _: str) -> LeftOut:
    """`cases.csv` with a line per case, and the pictures."""
    with (folder / "cases.csv").open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in exported(task, folder, has_tensors=True):
            writer.writerow(_cells(item).values())
    return {}


def table_parquet(task: ExportTask, folder: Path, _: str) -> LeftOut:
    """`cases.parquet` with a row per case, and the pictures. Raises `ConfigError` without pyarrow."""
    with ExtraMissing.on_import("cases", "parquet needs the package PACKAGE", "--format"):
        import pyarrow
        import pyarrow.parquet
    rows = [
        {**_cells(item), "tags": json.dumps(dict(item.facts.tags))} for item in exported(task, folder, has_tensors=True)
    ]
    texts = [name for name in COLUMNS if name not in ("created_unix_s", "inclusion", "hardness", "labelled")]
    numbers = ("created_unix_s", "inclusion", "hardness")
    schema = pyarrow.schema(
        [
            (n, pyarrow.string() if n in texts else pyarrow.float64() if n in numbers else pyarrow.bool_())
            for n in COLUMNS
        ]
    )
    columns = {name: [_plain(row[name]) if name in texts else row[name] for row in rows] for name in COLUMNS}
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), folder / "cases.parquet")
    return {}


def _plain(text: object) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode()


def _cells(item: Exported) -> dict[str, Any]:
    facts = item.facts
    return {
        "id": facts.id, "model": facts.model, "source": facts.source, "created_unix_s": facts.created_unix_s,
        "why": " ".join(facts.why), "inclusion": facts.inclusion, "hardness": facts.hardness, "route": facts.route,
        "reason": facts.reason, "edge_digest": facts.edge_digest, "cloud_digest": facts.cloud_digest,
        "tags": json.dumps(dict(facts.tags), ensure_ascii=False), "edge": _written(item.edge),
        "cloud": _written(item.cloud),
        "label": _written(item.label), "labelled": item.is_labelled, "file": item.picture.name if item.picture else "",
        "text": item.text or "", "tensors": item.tensors,
    }  # fmt: skip


def _written(label: Label | None) -> str:
    """A class unchanged, a number as text, boxes as JSON."""
    if label is None:
        return ""
    if label.label is not None:
        return label.label
    if label.boxes is not None:
        return json.dumps([box.model_dump() for box in label.boxes], ensure_ascii=False)
    return f"{label.value:.17g}"


def _missing(items: Sequence[Exported], usable: Sequence[Exported]) -> LeftOut:
    kept = {item.facts.id for item in usable}
    left = [item for item in items if item.facts.id not in kept]
    return {item.facts.id: "no picture" if item.picture is None else "no label in this format" for item in left}


def _drop_pictures(folder: Path, usable: Sequence[Exported]) -> None:
    kept = {item.picture.name for item in usable if item.picture}
    for path in (folder / "images").glob("*"):
        if f"images/{path.name}" not in kept:
            path.unlink()


FORMATS: Mapping[str, Callable[[ExportTask, Path, str], LeftOut]] = {
    "label-studio": label_studio, "coco": coco, "yolo": yolo, "imagefolder": imagefolder, "csv": table_csv,
    "parquet": table_parquet,
}  # fmt: skip
