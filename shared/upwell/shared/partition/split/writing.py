"""Writing the folder of `folder.py`: heads, tails that can be served at once, and what there is in `split.json`.

The folder is there whole or not at all: it is made beside its place and then renamed. An earlier one is replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from upwell.shared.errors import ConfigError
from upwell.shared.files import Unconfined, plain_file, read_file, sync_folder, sync_tree
from upwell.shared.partition.graph import Graph, Tensor
from upwell.shared.partition.split.choosing import Chosen
from upwell.shared.partition.split.describing import (
    DESCRIPTION_FILE,
    Descriptions,
    Format,
    describe,
    made_by_head,
    spec_of,
)
from upwell.shared.partition.split.folder import FILE_NAME, CutFacts, CutTensor, SplitFacts
from upwell.shared.partition.split.halves import Halves, ModelHalf, tail_name
from upwell.shared.signature.description import ModelDescription, load_description
from upwell.shared.tensors import TensorSpec

HEADS, TAILS = "heads", "tails"

_VERSION = "1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_NAME = 72
"""A served model's name has 100 characters at most; the cut and the digest are behind this one."""

_MOST_FACTS_BYTES = 16 << 20

Divide = Callable[[frozenset[int]], Halves]


@dataclass(frozen=True)
class WholeModel:
    """The model that is split. `inputs` and `outputs` are as a runtime names them; `divide` cuts it."""

    path: Path
    name: str
    digest: str
    graph: Graph
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    description: ModelDescription | None
    divide: Divide

    @classmethod
    def open(cls, path: Path, graph: Graph, name: str) -> WholeModel:
        """The model at `path`, of which `graph` is the contracted graph. Raises `ConfigError`."""
        if not _NAME.fullmatch(name) or len(name) > _MOST_NAME:
            raise ConfigError.at(
                None, f"{name!r}: a name is letters, digits, '.', '_' and '-', at most {_MOST_NAME}", "--name"
            )
        beside = (path.with_suffix(".yaml"), path.parent / DESCRIPTION_FILE)  # of a bare file, of a bundle
        written = next((one for one in beside if os.path.lexists(one)), None)
        description = None if written is None else load_description(written)
        try:
            digest, inputs, outputs, divide = _opened(path, graph)
        except ModuleNotFoundError as error:
            package = (error.name or "a package").partition(".")[0]
            raise ConfigError.at(path, f"{package} is not installed: pip install 'upwell[partition]'") from None
        return cls(path, name, digest, graph, inputs, outputs, description, divide)

    @property
    def format(self) -> Format:
        """Of its file and those of its halves."""
        return cast(Format, self.graph.format)


@dataclass(frozen=True)
class Made:
    """A cut with its halves, as they are to be written."""

    chosen: Chosen
    halves: Halves


@dataclass(frozen=True)
class FileSizes:
    """Bytes of a cut's head and tail."""

    head: int
    tail: int


@dataclass(frozen=True)
class Written:
    """What was written: `sizes` by the name of a cut, and remarks that a person should read."""

    facts: SplitFacts
    sizes: Mapping[str, FileSizes]
    remarks: tuple[str, ...]


def check_free(out: Path) -> None:
    """Raise `ConfigError` where halves cannot or must not be written to `out`; before any work is done."""
    if not out.parent.is_dir():
        raise ConfigError.at(out, f"there is no folder {out.parent}", "--out")
    if not os.access(out.parent, os.W_OK):
        raise ConfigError.at(out, f"the folder {out.parent} cannot be written", "--out")
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise ConfigError.at(out, "this is a file; --out names a folder", "--out")
    there = {one.name for one in out.iterdir()}
    if there and not (there <= {FILE_NAME, HEADS, TAILS} and _is_split(out / FILE_NAME)):
        raise ConfigError.at(out, "the folder holds other files; --out names a new one, or one to replace", "--out")


def write_split(out: Path, whole: WholeModel, cuts: Iterable[Made]) -> Written:
    """Write the halves of all cuts to `out`. Raises `ConfigError` where that cannot be done; nothing is left then."""
    check_free(out)
    facts: list[CutFacts] = []
    sizes: dict[str, FileSizes] = {}
    remarks: dict[str, None] = {}
    with _replacing(out) as draft:
        for made in cuts:
            name, halves = made.chosen.name, made.halves
            described = _described(whole, halves)
            tail = tail_name(whole.name, name, halves.digest)
            _put(draft / HEADS / name, {**halves.head.files, **described.head})
            _put(draft / TAILS / tail / _VERSION, {**halves.tail.files, **described.tail})
            facts.append(_facts(made, tail, described))
            sizes[name] = FileSizes(halves.head.size_bytes, halves.tail.size_bytes)
            remarks.update(dict.fromkeys([described.left_out] if described.left_out else []))
        split = SplitFacts(model=whole.name, format=whole.format, whole=whole.digest, cuts=tuple(facts))
        _put(draft, {FILE_NAME: f"{split.model_dump_json(indent=1)}\n".encode()})
    return Written(split, sizes, tuple(remarks))


def read_split(folder: Path) -> SplitFacts:
    """What a folder of halves says of itself. Raises `ConfigError`."""
    path = folder / FILE_NAME
    try:
        return SplitFacts.model_validate_json(read_file(path, "the list of halves", _MOST_FACTS_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError.at(path, f"not a list of halves: {first['msg']}", where) from None


def half_paths(folder: Path, facts: SplitFacts, cut: CutFacts) -> tuple[Path, Path]:
    """The files of head and tail of a cut. Raises `ConfigError` where one is missing or outside the folder."""
    head, tail = folder / cut.head, folder / TAILS / cut.tail / _VERSION / f"model.{facts.format}"
    for path in (head, tail):
        try:
            plain_file(folder, path)
        except Unconfined:
            raise ConfigError.at(folder / FILE_NAME, f"there is no file {path} for cut {cut.name!r}") from None
    return head, tail


def _opened(path: Path, graph: Graph) -> tuple[str, tuple[TensorSpec, ...], tuple[TensorSpec, ...], Divide]:
    """Digest, inputs and outputs of a model file, and what cuts it."""
    if graph.format == "onnx":
        from upwell.shared.partition.split import onnx
        from upwell.shared.partition.split.onnx_whole import OnnxWhole

        model = OnnxWhole.read(path)
        inputs, outputs = (
            tuple(spec_of(graph.tensors[name]) for name in side) for side in (graph.inputs, graph.outputs)
        )
        return model.digest, inputs, outputs, partial(onnx.split_whole, model, graph)
    from upwell.shared.partition.split import tflite
    from upwell.shared.partition.split.tflite_whole import TfliteWhole

    flat = TfliteWhole.read(path)
    inputs, outputs = (tuple(map(spec_of, flat.described(side, graph))) for side in (flat.inputs, flat.outputs))
    return flat.digest, inputs, outputs, partial(tflite.split_whole, flat, graph)


def _described(whole: WholeModel, halves: Halves) -> Descriptions:
    if whole.description is None:
        return Descriptions({}, {}, made_by_head(halves, whole.outputs))
    return describe(whole.description, whole.inputs, whole.outputs, halves, whole.format)


def _facts(made: Made, tail: str, described: Descriptions) -> CutFacts:
    head, cut = made.halves.head, made.halves.cut
    crossing = {one.name: one for one in head.outputs}
    return CutFacts(
        name=made.chosen.name,
        head=f"{HEADS}/{made.chosen.name}/{_model_file(head)}",
        tail=tail,
        tensors=tuple(_cut_tensor(crossing[name]) for name in cut),
        raw_inputs=tuple(one.name for one in made.halves.tail.inputs if one.name not in cut),
        outputs=described.outputs,
        needs_post=bool(described.left_out),
        edge_s=made.chosen.edge_s,
        cloud_s=made.chosen.cloud_s,
    )


def _cut_tensor(tensor: Tensor) -> CutTensor:
    return CutTensor(name=tensor.name, datatype=tensor.datatype, shape=spec_of(tensor).shape, bytes=tensor.size_bytes())


def _model_file(half: ModelHalf) -> str:
    return next(iter(half.files))


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _is_split(path: Path) -> bool:
    try:
        read_split(path.parent)
    except ConfigError:
        return False
    return True


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` once the block is done, and is gone where that fails."""
    out = Path(os.path.realpath(out))
    draft, old = (out.with_name(f".{out.name}.{secrets.token_hex(4)}.{kind}") for kind in ("new", "old"))
    try:
        draft.mkdir()
        yield draft
        sync_tree(draft)
        if out.exists():
            out.rename(old)
        try:
            draft.rename(out)
        except OSError:
            if old.exists():
                old.rename(out)
            raise
        sync_folder(out.parent)
    except OSError as error:
        raise ConfigError.at(out, f"cannot be written: {error.strerror or error}", "--out") from None
    finally:
        for left in (draft, old):
            shutil.rmtree(left, ignore_errors=True)
