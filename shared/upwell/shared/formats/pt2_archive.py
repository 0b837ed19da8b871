"""Reads the archives (`.pt2`) of `torch.export.save` without torch.

`torch.export.load` unpickles the sample inputs and evaluates sizes with sympy: both run code from the file. Here the
graph is read as JSON and weights as raw numbers, and nothing is unpickled: sample inputs are ignored, and a file with
pickled weights or other objects is refused.

In-place operators are replaced by their functional forms, and later readers of the tensor read the result. If the
memory may have another name (a view), the file is refused. Sizes that torch computes from the rows are expressed by
those.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from upwell.shared.files import open_plain, parse_json
from upwell.shared.formats.torch_program import (
    CHECKS,
    SAFETENSORS,
    VIEWS,
    Argument,
    BadProgram,
    DatatypeRef,
    Program,
    ProgramNode,
    ProgramTensor,
    SizeRef,
    TensorRef,
    TensorRefs,
)

_SCHEMA = 8
_MOST_TEXT_BYTES = 64 << 20
_LONGEST_REASON = 200
_GRAPH = "models/model.json"
_AGAIN = "save it again: torch.export.save(torch.export.export(module.eval(), ...), path), with torch 2.9 or later"
_DATATYPES: Mapping[int, str] = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
}  # fmt: skip
_ELEMENT_BYTES: Mapping[str, int] = {"UINT8": 1, "INT8": 1, "BOOL": 1, "INT16": 2, "FP16": 2, "BF16": 2, "INT32": 4,
                                     "FP32": 4, "INT64": 8, "FP64": 8}  # fmt: skip
_RIGID = frozenset({"aten.view.default", "aten._unsafe_view.default"})
_WEIGHTS: Mapping[str, tuple[str, str]] = {
    "parameter": ("parameter_name", "weights"),
    "buffer": ("buffer_name", "weights"),
    "tensor_constant": ("tensor_constant_name", "constants"),
}
"""A kind of input: the key of its name, and the folder of its data."""
_SYMBOL = r"(?:Symbol\('(\w+)'[^()]*\)|Integer\((\d+)\))"
_PRODUCT = re.compile(rf"Mul\(({_SYMBOL}(?:, {_SYMBOL})*)\)|({_SYMBOL})")


@dataclass(frozen=True)
class StoredWeight:
    """The place of a weight's numbers: a member of the archive; `strides` and `offset` in elements."""

    member: str
    datatype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class ProgramFile:
    """A `.pt2` file. `tensors` are all results of operators and inputs; `stored` are the weights, by name."""

    path: Path
    program: Program
    tensors: Mapping[str, ProgramTensor]
    stored: Mapping[str, StoredWeight]

    @classmethod
    def read(cls, path: Path) -> ProgramFile:
        """Read a file. Raises `BadProgram` and `OSError`."""
        with open_plain(path) as opened, _archive(opened) as archive:
            prefix = _prefix(archive)
            document = _json(archive, f"{prefix}{_GRAPH}")
            configs = {
                kind: _json(archive, f"{prefix}data/{kind}/model_{kind}_config.json")
                for kind in ("weights", "constants")
            }
            try:
                return _Reading(document, configs, prefix, archive).file(path)
            except BadProgram:
                raise
            except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, StopIteration) as error:
                why = " ".join(f"{type(error).__name__} {error}".split())[:_LONGEST_REASON]
                raise BadProgram(f"its graph is not as torch writes it: {why}") from None

    def numbers(self, names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """Datatype, shape and numbers in C order of these weights. Raises `BadProgram` and `OSError`."""
        found = {}
        with open_plain(self.path) as opened, _archive(opened) as archive:
            for name in names:
                one = self.stored[name]
                try:
                    data = archive.read(one.member)
                except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
                    raise BadProgram(f"{one.member} cannot be read: {error}") from None
                found[name] = (one.datatype, one.shape, _contiguous(data, one))
        return found


def _archive(opened: Any) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(opened)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BadProgram(f"not an archive of torch.export.save: {error}") from None
    # torch compresses nothing, so a size that is not the stored one is made up.
    if any(one.compress_type or one.file_size != one.compress_size for one in archive.infolist()):
        raise BadProgram(f"it is compressed, which torch never does; {_AGAIN}")
    return archive


def _prefix(archive: zipfile.ZipFile) -> str:
    """The prefix of all members' names: the original name of the file."""
    found = [name for name in archive.namelist() if name.endswith(f"/{_GRAPH}") and name.count("/") == 2]
    if len(found) != 1:
        raise BadProgram(f"it has no program named 'model', as torch 2.9 and later write; {_AGAIN}")
    return found[0].removesuffix(_GRAPH)


def _json(archive: zipfile.ZipFile, member: str) -> Any:
    try:
        info = archive.getinfo(member)
        if info.file_size > _MOST_TEXT_BYTES:
            raise BadProgram(f"{member} has {info.file_size} bytes; at most {_MOST_TEXT_BYTES} are allowed")
        return parse_json(archive.read(info))
    except KeyError:
        raise BadProgram(f"{member} is missing; {_AGAIN}") from None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, BadProgram):
            raise
        raise BadProgram(f"{member} cannot be read: {error}") from None


def _contiguous(data: bytes, one: StoredWeight) -> bytes:
    size = _ELEMENT_BYTES[one.datatype]
    needed = size * (one.offset + 1 + sum((dim - 1) * step for dim, step in zip(one.shape, one.strides, strict=True)))
    if 0 in one.shape:
        return b""
    if needed > len(data):
        raise BadProgram(f"{one.member} has {len(data)} bytes; its weight needs {needed}")
    whole = np.frombuffer(data, f"u{size}", needed // size - one.offset, one.offset * size)  # more may follow
    steps = tuple(step * size if dim > 1 else 0 for dim, step in zip(one.shape, one.strides, strict=True))
    return np.lib.stride_tricks.as_strided(whole, one.shape, steps).tobytes()


@dataclass
class _Reading:
    """One pass over the operators. `now` maps a name to the tensor it stands for after in-place operators."""

    document: Any
    configs: Mapping[str, Any]
    prefix: str
    archive: zipfile.ZipFile
    now: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    """Tensors that may share another's memory."""

    def file(self, path: Path) -> ProgramFile:
        version = self.document["schema_version"]["major"]
        if version != _SCHEMA:
            raise BadProgram(f"it has version {version} of torch's format; expected {_SCHEMA}; {_AGAIN}")
        graph = self.document["graph_module"]["graph"]
        stored, inputs = self._inputs(graph)
        sizes = {name: _size(value) for name, value in graph["sym_int_values"].items()}
        nodes = [node for one in graph["nodes"] if (node := self._node(one, sizes, stored, inputs)) is not None]
        made = {name for node in nodes for name in node.outputs if name} | set(inputs)
        tensors = {name: _tensor(name, graph["tensor_values"][name]) for name in made}
        try:
            program = Program(
                inputs=tuple(tensors[name] for name in inputs),
                outputs=tuple(tensors[name] for name in self._outputs(made)),
                nodes=tuple(nodes),
                weights=tuple(stored),
            )
        except ValidationError as error:
            raise BadProgram(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
        return ProgramFile(path, program, tensors, stored)

    def _inputs(self, graph: Any) -> tuple[dict[str, StoredWeight], list[str]]:
        stored: dict[str, StoredWeight] = {}
        inputs: list[str] = []
        for spec in self.document["graph_module"]["signature"]["input_specs"]:
            ((kind, facts),) = spec.items()
            if kind == "user_input":
                if "as_tensor" not in facts["arg"]:
                    raise BadProgram("it takes something other than tensors; export it with only tensors")
                inputs.append(facts["arg"]["as_tensor"]["name"])
            elif kind in _WEIGHTS:
                key, _ = _WEIGHTS[kind]
                stored[facts["arg"]["name"]] = self._stored(facts[key])
            else:
                raise BadProgram(f"it contains a {kind}, which only torch itself can read")
        for name in inputs:
            if any(isinstance(dim, str) for dim in _tensor(name, graph["tensor_values"][name]).shape[1:]):
                raise BadProgram(f"only the rows, the first size of every input, may vary; {name!r} varies in another")
        return stored, inputs

    def _stored(self, name: str) -> StoredWeight:
        for kind, config in self.configs.items():
            facts = config["config"].get(name)
            if facts is None:
                continue
            if facts["use_pickle"]:
                raise BadProgram(f"weight {name!r} is pickled, which is never loaded; export it as a plain tensor")
            meta = _tensor(name, facts["tensor_meta"])
            member = f"{self.prefix}data/{kind}/{facts['path_name']}"
            strides = tuple(int(one["as_int"]) for one in facts["tensor_meta"]["strides"])
            offset = int(facts["tensor_meta"]["storage_offset"]["as_int"])
            shape = tuple(int(dim) for dim in meta.shape)
            if min((0, offset, *shape, *strides)) < 0 or len(shape) != len(strides):
                raise BadProgram(f"weight {name!r} has a negative size or step")
            if member not in self.archive.NameToInfo:
                raise BadProgram(f"{member} is missing: the file is incomplete")
            if math.prod(shape) * _ELEMENT_BYTES[meta.datatype] > self.archive.getinfo(member).file_size:
                raise BadProgram(f"weight {name!r} is larger than its stored data")
            return StoredWeight(member, meta.datatype, shape, strides, offset)
        raise BadProgram(f"weight {name!r} is missing")

    def _outputs(self, made: set[str]) -> Iterator[str]:
        seen: set[str] = set()
        for spec in self.document["graph_module"]["signature"]["output_specs"]:
            ((kind, facts),) = spec.items()
            if kind != "user_output":
                raise BadProgram(f"it changes its own state ({kind}); export the module after .eval()")
            name = self.now.get(_name(facts["arg"]), _name(facts["arg"]))
            if name not in made:
                raise BadProgram(f"its output {name!r} is a weight, or is not a tensor")
            if name not in seen:
                seen.add(name)
                yield name

    def _node(
        self, node: Any, sizes: Mapping[str, int | str], stored: Mapping[str, Any], inputs: Sequence[str]
    ) -> ProgramNode | None:
        """Convert an operator; None for one that computes no tensor, such as sizes and their checks."""
        outputs = [name for one in node["outputs"] for name in _made(one)]
        operator = str(node["target"]).removeprefix("torch.ops.")
        is_size = bool(node["outputs"]) and all(one.keys() <= {"as_sym_int", "as_sym_bool"} for one in node["outputs"])
        if is_size or operator in CHECKS or not operator.startswith("aten."):
            if not is_size and operator not in CHECKS:
                raise BadProgram(f"operator {operator!r} is not supported in a program")
            return None
        arguments: dict[str, Argument] = {}
        for one in node["inputs"]:
            value = _argument(one["arg"], sizes)
            if value is not _LEFT_OUT:
                arguments[one["name"]] = self._current(value)
        _, name, overload = operator.split(".")
        if name.endswith("_") and not name.startswith("_"):
            operator = f"aten.{name.removesuffix('_')}.{overload}"
            self._replace(arguments["self" if "self" in arguments else "input"], outputs[0], {*stored, *inputs})
        if operator in _RIGID:  # their results may have another memory layout after a cut
            operator, arguments["shape"] = "aten.reshape.default", arguments.pop("size")
        made = ProgramNode(operator=operator, arguments=arguments, outputs=tuple(outputs))
        if operator in VIEWS:
            self.shared.update((*made.reads, *filter(None, outputs)))
        return made

    def _current(self, value: Argument) -> Argument:
        if isinstance(value, TensorRef):
            return TensorRef(tensor=self.now.get(value.tensor, value.tensor))
        if isinstance(value, TensorRefs):
            return TensorRefs(tensors=tuple(None if one is None else self.now.get(one, one) for one in value.tensors))
        return value

    def _replace(self, changed: Argument, by: str, given: set[str]) -> None:
        """From here on, readers of the tensor that is changed in place read the result."""
        name = changed.tensor if isinstance(changed, TensorRef) else ""
        if not name or name in given or name in self.shared:
            raise BadProgram(
                f"{name!r} is changed in place, but may have other names; export it as program.run_decompositions({{}})"
            )
        self.now.update({old: by for old, new in self.now.items() if new == name} | {name: by})


_LEFT_OUT: Any = object()
"""Arguments about devices and memory, which do not affect the results."""
_PLACES = frozenset({"as_device", "as_layout", "as_memory_format"})
_SCALARS = frozenset({"as_int", "as_bool", "as_string"})


def _argument(value: Any, sizes: Mapping[str, int | str]) -> Argument:
    ((kind, held),) = value.items()
    if kind in _PLACES:
        return _LEFT_OUT  # type: ignore[no-any-return]
    if kind == "as_none":
        return None
    if kind in _SCALARS:
        return held  # type: ignore[no-any-return]
    if kind == "as_float":
        return float(held)
    if kind == "as_tensor":
        return TensorRef(tensor=held["name"])
    if kind in ("as_tensors", "as_optional_tensors"):
        return TensorRefs(tensors=tuple(_optional(one) for one in held))
    if kind == "as_scalar_type":
        return DatatypeRef(datatype=_datatype(held))
    if kind == "as_sym_int":
        return _sized(held, sizes)
    if kind == "as_sym_ints":
        return tuple(_sized(one, sizes) for one in held)
    if kind in ("as_ints", "as_floats", "as_bools"):
        return tuple(float(one) if kind == "as_floats" else one for one in held)
    raise BadProgram(f"an argument of kind {kind.removeprefix('as_')!r} is not supported in a program")


def _optional(value: Any) -> str | None:
    if "name" in value:
        return str(value["name"])
    return None if "as_none" in value else str(value["as_tensor"]["name"])


def _sized(value: Any, sizes: Mapping[str, int | str]) -> int | SizeRef:
    if "as_int" in value:
        return int(value["as_int"])
    found = sizes[value["as_name"]]
    return found if isinstance(found, int) else SizeRef(size=found)


def _size(value: Any) -> int | str:
    """A size as a number, a symbolic size by name, or a multiple: `4*s77`."""
    if "as_int" in value:
        return int(value["as_int"])
    text = str(value["as_expr"]["expr_str"])
    found = _PRODUCT.fullmatch(text)
    if found is None:
        raise BadProgram(f"a size is {text[:200]!r}; only multiples of the rows are supported")
    number, names = 1, []
    for name, digits in re.findall(_SYMBOL, text):
        number *= int(digits or 1)
        names += [name] if name else []
    return "*".join([*([str(number)] if number > 1 else []), *names]) if names else number


def _tensor(name: str, meta: Any) -> ProgramTensor:
    return ProgramTensor(name=name, datatype=_datatype(meta["dtype"]), shape=tuple(map(_size, meta["sizes"])))


def _datatype(number: int) -> str:
    if number not in _DATATYPES:
        raise BadProgram(f"a tensor has torch's datatype {number}; expected one of {', '.join(SAFETENSORS)}")
    return _DATATYPES[number]


def _made(value: Any) -> list[str]:
    ((kind, held),) = value.items()
    if kind == "as_tensors":
        return [str(one["name"]) for one in held]
    return [_name(value)] if kind == "as_tensor" else [""]


def _name(value: Any) -> str:
    return str(value.get("as_tensor", {}).get("name", ""))
