"""Makes the `model.yaml` of head and tail from that of the whole model.

The head takes what callers give, prepares it as the whole model does, and gives the cut tensors unprocessed. The tail
takes the cut tensors, and inputs of the model after `pre`, and gives the outputs of the whole. A step of `post` goes to
the half that has all its inputs. If neither half has, both give the model's own tensors, and their caller applies the
whole model's `post`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.partition.model_graph import Tensor
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Steps, bind
from upwell.shared.tensors import TensorSpec

DESCRIPTION_FILE = "model.yaml"

_MOST_INLINE_LABELS = 8

Format = Literal["onnx", "tflite"]


@dataclass(frozen=True)
class Descriptions:
    """The files beside head and tail by name, and why `post` is missing from them, if it is.

    `outputs` are those of the whole that the head gives and the tail does not.
    """

    head: Mapping[str, bytes]
    tail: Mapping[str, bytes]
    outputs: tuple[str, ...]
    left_out: str = ""


def description_of(path: Path) -> Path | None:
    """The description beside a model file: under the file's own name, else `model.yaml`; None without one."""
    beside = (path.with_suffix(".yaml"), path.parent / DESCRIPTION_FILE)
    return next((one for one in beside if os.path.lexists(one)), None)


def made_by_head(halves: Halves, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """The model's own outputs that the head makes; one of them may also be a cut tensor."""
    there = {one.name for one in halves.head.outputs} - {one.name for one in halves.tail.outputs}
    return tuple(one.name for one in outputs if one.name in there)


def spec_of(tensor: Tensor) -> TensorSpec:
    """A tensor of a half, in the form of a runtime's specification."""
    shape = tuple(-1 if isinstance(size, str) else size for size in tensor.shape or ())
    return TensorSpec(tensor.name, tensor.datatype, shape)


def describe(
    description: ModelDescription,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    halves: Halves,
    runtime: Format,
) -> Descriptions:
    """The descriptions of both halves of the model with these inputs and outputs.

    Raises `ConfigError` if the description does not fit the model.
    """
    _, pre, post = bind(description, inputs, outputs, runtime)
    whole = _UnsplitDescription(description, post, runtime, sees_picture=pre.makes_pictures)
    head, tail = whole.half(halves.head, halves.cut, is_head=True), whole.half(halves.tail, (), is_head=False)
    lost = [name for name in description.signature.outputs if name not in {*head.outputs, *tail.outputs}]
    why = ""
    if lost:
        head, tail = _Post(), _Post()
        names = ", ".join(map(repr, lost))
        why = f"{names} need both halves, so the halves return the model's own tensors, without `post`"
    given, prepared = whole.facts["signature"]["inputs"], whole.steps("pre")
    taken = {
        one.name: {"kind": "tensor", "dtype": one.datatype, "shape": list(spec_of(one).shape)}
        for one in halves.tail.inputs
    }
    return Descriptions(
        _files(whole, given, prepared, head, halves.head, halves.cut),
        _files(whole, taken, (), tail, halves.tail, ()),
        made_by_head(halves, outputs) if lost else tuple(name for name in head.outputs if name not in tail.outputs),
        why,
    )


@dataclass
class _Post:
    """The outputs of the signature that a half makes, as written, and the steps to them."""

    outputs: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _UnsplitDescription:
    """The description of the whole model as plain values, and its bound `post`."""

    description: ModelDescription
    post: Steps
    runtime: Format
    sees_picture: bool

    @property
    def facts(self) -> dict[str, Any]:
        """The description as written, without defaults."""
        return self.description.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def steps(self, phase: str) -> list[dict[str, Any]]:
        """The steps for this runtime."""
        own = self.facts.get("runtimes", {}).get(self.runtime, {}).get(phase)
        return list(self.facts.get(phase, []) if own is None else own)

    @property
    def moves_pixels(self) -> bool:
        """Whether `pre` adds a border to the picture or cuts something off, so that segments need it to be placed."""
        resizes = (step["resize"] for step in self.steps("pre") if "resize" in step)
        fits = {resize.get("fit", "stretch") for resize in resizes}
        return bool(fits - {"stretch"}) or any("crop" in step for step in self.steps("pre"))

    def half(self, half: ModelHalf, cut: Collection[str], is_head: bool) -> _Post:
        """The part of `post` and of the signature's outputs that a half can do alone; nothing if that would hide
        `cut`."""
        there = {one.name for one in half.outputs}
        found = _Post()
        for step, written in zip(self.post.steps, self.steps("post"), strict=True):
            ((operation, keys),) = written.items()
            is_placed = operation == "boxes" or (operation == "segments" and self.moves_pixels)
            needs_picture = is_placed and self.sees_picture and not is_head
            if needs_picture or not there.issuperset(step.reads):
                there.difference_update(step.writes)
                continue
            if len(step.reads) == 1:
                keys = {"from": step.reads[0], **keys}
            found.steps.append({operation: keys})
            there.difference_update(step.reads if operation == "rename" else ())
            there.update(step.writes)
        for name, output in self.facts["signature"]["outputs"].items():
            value = self.post.bound[name]
            if value in there:
                found.outputs[name] = output
                found.steps += [{"rename": {"from": value, "to": name}}] if value != name else []
        written_names = {name for step in self.post.steps for name in step.writes}
        written_names |= {name for name in found.outputs if self.post.bound[name] != name}
        return _Post() if written_names.intersection(cut) else found


def _files(
    whole: _UnsplitDescription,
    takes: Mapping[str, Any],
    pre: Sequence[Any],
    post: _Post,
    half: ModelHalf,
    cut: Sequence[str],
) -> dict[str, bytes]:
    """A `model.yaml` that loads for the tensors of the half, and its label files."""
    outputs: dict[str, Any] = {name: {"kind": "tensor"} for name in cut}
    outputs.update(post.outputs or {one.name: {"kind": "tensor"} for one in half.outputs})
    document = {
        "version": 1,
        "signature": {"inputs": dict(takes), "outputs": outputs},
        "pre": list(pre),
        "post": post.steps if post.outputs else [],
    }
    with_rows = whole.description.signature.rows
    try:
        if with_rows:  # tensors between operators may not have the rows of a request
            _check(document, half, whole.runtime)
    except ConfigError:
        with_rows = False
    if not with_rows:
        document["signature"] = {"rows": False, "inputs": dict(takes), "outputs": outputs}
        _check(document, half, whole.runtime)
    files: dict[str, bytes] = {}
    return {DESCRIPTION_FILE: _yaml(_with_files(document, files)).encode(), **files}


def _check(document: Any, half: ModelHalf, runtime: Format) -> None:
    inputs, outputs = (tuple(map(spec_of, side)) for side in (half.inputs, half.outputs))
    bind(parse_yaml(_yaml(document), ModelDescription), inputs, outputs, runtime)


def _with_files(value: Any, files: dict[str, bytes]) -> Any:
    """The same with tokenizers and long label lists replaced by names of files, which are added to `files`."""
    if isinstance(value, list):
        return [_with_files(one, files) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: _with_files(one, files) for key, one in value.items()}
    if isinstance(value.get("tokenizer"), str):
        made["tokenizer"] = _added(files, "tokenizer", ".json", value["tokenizer"].encode())
    labels = value.get("labels")
    if isinstance(labels, list) and len(labels) > _MOST_INLINE_LABELS:
        data = "".join(f"{label}\n" for label in labels).encode()
        made["labels"] = _added(files, "labels", ".txt", data)
    return made


def _added(files: dict[str, bytes], stem: str, suffix: str, data: bytes) -> str:
    """The name of the file with this content, which is added unless it is there: `labels.txt`, `labels2.txt`, …"""
    there = [name for name in files if name.endswith(suffix)]
    name = next((name for name in there if files[name] == data), f"{stem}{len(there) + 1 if there else ''}{suffix}")
    files[name] = data
    return name


def _yaml(document: Any) -> str:
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = None
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel says it is None
    text = io.StringIO()
    writer.dump(document, text)
    return text.getvalue()
