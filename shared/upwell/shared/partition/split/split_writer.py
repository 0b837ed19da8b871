"""Writes the halves of a model, cut where chosen, to the folder described in `split_file.py`, and reads its list.

The folder is written atomically: it is made beside its place and then renamed. An earlier one is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from upwell.shared.config.located_errors import invalid_as
from upwell.shared.errors import ConfigError
from upwell.shared.files import Unconfined, new_folder, plain_file, read_file
from upwell.shared.formats.torch_program import FILE_NAME as PROGRAM_FILE
from upwell.shared.partition.model_graph import Tensor, known_bytes
from upwell.shared.partition.split.cut_choice import ChosenCut
from upwell.shared.partition.split.halves_model_yaml import Descriptions, describe, made_by_head, spec_of
from upwell.shared.partition.split.model_halves import Halves, ModelHalf, tail_name
from upwell.shared.partition.split.split_file import FILE_NAME, WHOLE, CutFacts, CutTensor, SplitFacts
from upwell.shared.partition.split.split_model import UnsplitModel

HEADS, TAILS = "heads", "tails"

_VERSION = "1"
_WHOLES = (f"{WHOLE}.onnx", f"{WHOLE}.tflite")
_MOST_FACTS_BYTES = 16 << 20


@dataclass(frozen=True)
class FileSizes:
    """Bytes of a cut's head and tail."""

    head: int
    tail: int


@dataclass(frozen=True)
class Written:
    """What was written: `sizes` by the name of a cut, and remarks for the user."""

    facts: SplitFacts
    sizes: Mapping[str, FileSizes]
    remarks: tuple[str, ...]


def check_free(out: Path) -> None:
    """Raise `ConfigError`, before any work, if halves cannot or must not be written to `out`."""
    if not out.parent.is_dir():
        raise ConfigError.at(out, f"there is no folder {out.parent}", "--out")
    if not os.access(out.parent, os.W_OK):
        raise ConfigError.at(out, f"the folder {out.parent} cannot be written", "--out")
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise ConfigError.at(out, "this is a file; --out must name a folder", "--out")
    there = {one.name for one in out.iterdir()}
    if there and not (there <= {FILE_NAME, HEADS, TAILS, *_WHOLES} and _is_split(out)):
        raise ConfigError.at(
            out,
            "the folder contains other files; --out must name a new folder, or an earlier split to replace",
            "--out",
        )


def write_split(
    out: Path,
    whole: UnsplitModel,
    cuts: Iterable[tuple[ChosenCut, Halves]],
    device: ModelHalf | None = None,
    open_sizes: Mapping[str, int] = MappingProxyType({}),
) -> Written:
    """Write the halves of all cuts to `out`. Raises `ConfigError` on failure, and then leaves nothing behind.

    `device` is the whole model in the form that the device runs, if its own file is not. `open_sizes` are those of a
    plan for the open dimensions, which otherwise count as 1 in the bytes of a cut.
    """
    check_free(out)
    facts: list[CutFacts] = []
    sizes: dict[str, FileSizes] = {}
    remarks: dict[str, None] = {}
    with new_folder(out, "--out", replaces=True) as draft:
        for chosen, halves in cuts:
            name, described = chosen.name, _described(whole, halves)
            tail = tail_name(whole.name, name, halves.digest)
            _put(draft / HEADS / name, {**halves.head.files, **described.head})
            _put(draft / TAILS / tail / _VERSION, {**halves.tail.files, **described.tail})
            facts.append(_facts(chosen, halves, tail, described, open_sizes))
            sizes[name] = FileSizes(halves.head.size_bytes, halves.tail.size_bytes)
            unsized = _unsized(name, _crossing(halves), open_sizes)
            remarks.update(dict.fromkeys(filter(None, [described.left_out, unsized])))
        own, program = whole.file.digest, ""
        if device is not None:
            ((name, data),) = device.files.items()
            _put(draft, {f"{WHOLE}{Path(name).suffix}": data})
            own, program = hashlib.sha256(data).hexdigest(), own
        split = SplitFacts(model=whole.name, format=whole.format, whole=own, program=program, cuts=tuple(facts))
        _put(draft, {FILE_NAME: f"{split.model_dump_json(indent=1)}\n".encode()})
    return Written(split, sizes, tuple(remarks))


def read_split(folder: Path) -> SplitFacts:
    """Read `split.json` of a folder. Raises `ConfigError`."""
    path = folder / FILE_NAME
    with invalid_as(path, "not a list of halves"):
        return SplitFacts.model_validate_json(read_file(path, "the list of halves", _MOST_FACTS_BYTES))


def half_paths(folder: Path, facts: SplitFacts, cut: CutFacts) -> tuple[Path, Path]:
    """The files of head and tail of a cut. Raises `ConfigError` if one is missing or outside the folder."""
    file = PROGRAM_FILE if facts.program else f"model.{facts.format}"
    head, tail = folder / cut.head, folder / TAILS / cut.tail / _VERSION / file
    for path in (head, tail):
        try:
            plain_file(folder, path)
        except Unconfined:
            raise ConfigError.at(folder / FILE_NAME, f"there is no file {path} for cut {cut.name!r}") from None
    return head, tail


def _described(whole: UnsplitModel, halves: Halves) -> Descriptions:
    inputs, outputs = (tuple(map(spec_of, side)) for side in whole.file.ends(whole.graph))
    if whole.description is None:
        return Descriptions({}, {}, made_by_head(halves, outputs))
    return describe(whole.description, inputs, outputs, halves, whole.format)


def _crossing(halves: Halves) -> list[Tensor]:
    outputs = {one.name: one for one in halves.head.outputs}
    return [outputs[name] for name in halves.cut]


def _facts(
    chosen: ChosenCut, halves: Halves, tail: str, described: Descriptions, open_sizes: Mapping[str, int]
) -> CutFacts:
    return CutFacts(
        name=chosen.name,
        head=f"{HEADS}/{chosen.name}/{next(iter(halves.head.files))}",
        tail=tail,
        tensors=tuple(_cut_tensor(one, open_sizes) for one in _crossing(halves)),
        raw_inputs=tuple(one.name for one in halves.tail.inputs if one.name not in halves.cut),
        outputs=described.outputs,
        needs_post=bool(described.left_out),
        edge_s=chosen.edge_s,
        cloud_s=chosen.cloud_s,
    )


def _unsized(cut: str, tensors: Iterable[Tensor], open_sizes: Mapping[str, int]) -> str:
    """A remark on tensors whose size depends on more than the rows and `open_sizes`; "" if there are none."""
    names = [
        repr(one.name) for one in tensors if known_bytes(replace(one, shape=(one.shape or ())[1:]), open_sizes) is None
    ]
    if not names:
        return ""
    return (
        f"cut {cut}: open dimensions of {', '.join(names)} count as 1 in the bytes sent, so the device expects this "
        "cut to send less than it will; a plan from profiles, or fixed sizes in the model, makes them right"
    )


def _cut_tensor(tensor: Tensor, open_sizes: Mapping[str, int]) -> CutTensor:
    shape, size_bytes = spec_of(tensor).shape, tensor.size_bytes(open_sizes)
    return CutTensor(name=tensor.name, datatype=tensor.datatype, shape=shape, bytes=size_bytes)


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _is_split(folder: Path) -> bool:
    with contextlib.suppress(ConfigError):
        read_split(folder)
        return True
    return False
