"""The items of a folder, one request each, and their labels: classes or boxes, from CSV or COCO JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from upwell.edge.models.edge_model import ServedModel
from upwell.edge.request.request import as_arrays
from upwell.shared.errors import ConfigError, InvalidRequest, Problem
from upwell.shared.files import parse_json
from upwell.shared.oip.dataplane import ModelMetadata
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.tensors import Array
from upwell.shared.units import count_of
from upwell.tools.request_inputs import read_inputs

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".npy", ".npz"})
"""The suffixes of items; other files in the folder are ignored."""


@dataclass(frozen=True)
class Item:
    """One file: its name within the folder, with `/` between folders, and its path."""

    name: str
    path: Path


def find_items(folder: Path) -> list[Item]:
    """The items in the folder and those below it, by name. Raises `ConfigError` if there is none."""
    if not folder.is_dir():
        raise ConfigError.at(folder, "expected a folder of pictures, .npy or .npz files", "--data")
    with ConfigError.on_os_error(folder, "cannot be read", "--data"):
        found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not found:
        raise ConfigError.at(
            folder, f"it contains no items; expected files that end in {', '.join(sorted(SUFFIXES))}", "--data"
        )
    return sorted((Item(path.relative_to(folder).as_posix(), path) for path in found), key=lambda item: item.name)


def read_item(item: Item, model: ServedModel) -> dict[str, Array]:
    """The item as a request of one row. Raises `ConfigError` or `InvalidRequest`."""
    assert model.edge is not None  # noqa: S101  collecting asks both sides
    if any("\ud800" <= letter <= "\udfff" for letter in item.name):  # bytes of a name that are not UTF-8
        raise InvalidRequest("its name is not UTF-8, which a log cannot contain; rename the file")
    signature = model.edge.signature
    specs = tuple(one.spec for one in signature.inputs)
    metadata = ModelMetadata(model.name, (), "", specs, ())
    # An absolute path, so that a name with `=` in it is not taken for NAME=FILE.
    arrays = as_arrays(dict(read_inputs([str(item.path.absolute())], lambda: metadata)), model)
    by_name = {one.name: one for one in signature.inputs}
    arrays = {
        name: _with_row(array, by_name[name], signature) if name in by_name else array for name, array in arrays.items()
    }
    rows = signature.check_inputs(arrays)
    if rows != 1:
        raise InvalidRequest(f"it has {rows} rows; expected one item per file")
    return arrays


def _with_row(array: Array, one: LogicalInput, signature: Signature) -> Array:
    """The array with a row dimension, which a file of one item may leave out."""
    lacks_row = one.kind == "tensor" and signature.has_rows and array.ndim == len(one.spec.shape) - 1
    return array[None] if lacks_row else np.asarray(array)


MAX_LABELS_BYTES = 64 << 20
_SHOWN = 20
_CORNERS = ("x1", "y1", "x2", "y2")

Row = tuple[int, Mapping[str, str | None]]
T = TypeVar("T")


@dataclass(frozen=True)
class KnownLabels:
    """What labels may refer to: the items `names`, and classes by one of `texts` or by number.

    `classes` is the number of classes, 0 if unknown.
    """

    names: frozenset[str]
    texts: Sequence[str] = ()
    classes: int = 0

    def item(self, name: str) -> str:
        """The item of that name. Raises `ValueError`."""
        if name not in self.names:
            raise ValueError(f"the data folder has no item {name!r}")
        return name

    def number(self, text: str) -> int:
        """The class that a label denotes. Raises `ValueError`."""
        if text in self.texts:
            return self.texts.index(text)
        if not (text.isascii() and text.isdigit()) or len(text) > 9:
            expected = "a label of the model or the number of a class" if self.texts else "the number of a class"
            raise ValueError(f"expected {expected}, got {text!r}")
        if self.classes and int(text) >= self.classes:
            raise ValueError(f"there is no class {text}; the model has the classes 0 to {self.classes - 1}")
        return int(text)


def read_classes(path: Path, known: KnownLabels) -> dict[str, int]:
    """Item name -> class, from a CSV file with the columns `file` and `label`.

    Items without a line are left out. Raises `ConfigError` with every problem.
    """
    labels: dict[str, int] = {}

    def add(row: Mapping[str, str | None]) -> None:
        name, text = ((row[key] or "").strip() for key in ("file", "label"))
        if not name or not text:
            raise ValueError("expected a file and its label")
        number = known.number(text)
        if known.item(name) in labels:
            raise ValueError(f"{name!r} already has a label; expected one line per file")
        labels[name] = number

    _each(path, _read_rows(path, ("file", "label")), add)
    return labels


def read_boxes(path: Path, known: KnownLabels) -> dict[str, Array]:
    """Item name -> its objects, FP64 [n, 6] like detections: x1, y1, x2, y2 as fractions, score 1, class.

    From CSV with the columns file, label, x1, y1, x2, y2, one line per object, and a line with only the file for a
    picture without objects; or from COCO JSON (`.json`: images, annotations, categories), whose boxes are in pixels.
    Items that are in neither are left out. Raises `ConfigError` with every problem.
    """
    found: dict[str, list[list[float]]] = {}
    if path.suffix.lower() == ".json":
        _read_coco(path, known, found)
    else:
        _each(path, _read_rows(path, ("file", "label", *_CORNERS)), lambda row: _add_object(row, known, found))
    return {name: np.array(boxes, dtype=np.float64).reshape(-1, 6) for name, boxes in found.items()}


def _add_object(row: Mapping[str, str | None], known: KnownLabels, found: dict[str, list[list[float]]]) -> None:
    name, text, *corners = ((row[key] or "").strip() for key in ("file", "label", *_CORNERS))
    boxes = found.setdefault(known.item(name), [])
    if not text and not any(corners):
        return
    try:
        box = [float(corner) for corner in corners]
    except ValueError:
        raise ValueError(f"expected a label and the numbers {', '.join(_CORNERS)}, or the file alone") from None
    boxes.append([*_checked_box(box), 1.0, known.number(text)])


def _checked_box(box: list[float]) -> list[float]:
    x1, y1, x2, y2 = box
    if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
        shown = ", ".join(f"{number:g}" for number in box)
        raise ValueError(f"expected corners in fractions of the picture, 0 to 1, x1 < x2 and y1 < y2; got {shown}")
    return box


class _CocoImage(BaseModel):
    id: int
    file_name: str
    width: int = Field(gt=0)
    height: int = Field(gt=0)


class _CocoObject(BaseModel):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int | None = None


class _CocoCategory(BaseModel):
    id: int
    name: str


class _Coco(BaseModel):
    images: list[_CocoImage]
    annotations: list[_CocoObject]
    categories: list[_CocoCategory]


def _read_coco(path: Path, known: KnownLabels, found: dict[str, list[list[float]]]) -> None:
    """COCO's detection format (Lin et al. 2014, cocodataset.org): bbox is left, top, width, height in pixels.

    A category is the class of its name; if the model has no labels, classes are the categories in the order of ids.
    Pictures that are not among the items are left out, and so are those with a crowd, whose objects nobody counted.
    """
    try:
        coco = _Coco.model_validate(parse_json(_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError.at(
            path, f"this is not COCO's detection format: {place}: {first['msg']}", "--labels"
        ) from None
    except ValueError as error:
        raise ConfigError.at(path, f"cannot be read as JSON: {error}", "--labels") from None
    images = {image.id: image for image in coco.images}
    names = [category.name for category in sorted(coco.categories, key=lambda one: one.id)]
    categories = {category.id: category.name for category in coco.categories}

    crowded = {one.image_id for one in coco.annotations if one.iscrowd}
    there = [image for image in coco.images if image.file_name in known.names]
    found |= {image.file_name: [] for image in there if image.id not in crowded}

    def add_object(one: _CocoObject) -> None:
        if one.image_id not in images or one.category_id not in categories:
            raise ValueError(f"an annotation names image {one.image_id} and category {one.category_id}; one is missing")
        image, name = images[one.image_id], categories[one.category_id]
        if image.file_name not in found:
            return
        left, top, width, height = one.bbox
        box = [left / image.width, top / image.height, (left + width) / image.width, (top + height) / image.height]
        number = known.number(name if known.texts else str(names.index(name)))
        clipped = np.clip(box, 0.0, 1.0).tolist()  # annotations may extend a pixel over the edge
        try:
            found[image.file_name].append([*_checked_box(clipped), 1.0, number])
        except ValueError as error:
            raise ValueError(f"{image.file_name}: {error}") from None

    _each(path, ((None, one) for one in coco.annotations), add_object)
    if not there:
        found_instead = f"; the first of {len(coco.images)} is {coco.images[0].file_name!r}" if coco.images else ""
        raise ConfigError.at(path, f"none of its pictures is in the data folder{found_instead}", "--labels")


def _each(path: Path, rows: Iterable[tuple[int | None, T]], add: Callable[[T], None]) -> None:
    """Add each row; raise `ConfigError` with everything that was wrong."""
    problems: list[Problem] = []
    for line, row in rows:
        try:
            add(row)
        except ValueError as error:
            problems.append(Problem(path, line, None, "", str(error)))
    if (more := len(problems) - _SHOWN) > 0:
        problems[_SHOWN:] = [Problem(path, None, None, "", f"and {count_of(more, 'more problem')}")]
    if problems:
        raise ConfigError(problems)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise ConfigError.at(path, f"larger than the limit of {MAX_LABELS_BYTES >> 20} MiB for labels")
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror}", "--labels") from None
    except UnicodeDecodeError as error:
        raise ConfigError.at(path, f"cannot be read as CSV in UTF-8: {error}", "--labels") from None


def _read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    try:
        reader = csv.DictReader(io.StringIO(_text(path), newline=""))
        written = set(reader.fieldnames or ())
        rows: list[Row] = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ConfigError.at(path, f"cannot be read as CSV in UTF-8: {error}", "--labels") from None
    if not set(columns) <= written:
        raise ConfigError.at(path, f"expected a first line with the columns {','.join(columns)}", line=1)
    if not rows:
        raise ConfigError.at(path, "it contains no labels")
    return rows
