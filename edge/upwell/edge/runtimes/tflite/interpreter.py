"""TFLite interpreters, with inputs and outputs under the names that callers see."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.input_check import InputCheck, blank, check_file, unkept_batch
from upwell.edge.runtimes.placement import AcceleratorNotUsable, NodeCover, from_nodes, judge
from upwell.edge.runtimes.runtime_options import XNNPACK, AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.delegate_nodes import apply_delegates, walk
from upwell.edge.runtimes.tflite.tflite_package import TflitePackage
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import open_plain
from upwell.shared.formats.tflite import BadTfliteFile, names_other_files, read_model
from upwell.shared.tensors import Array, TensorSpec, oip_datatype


@dataclass(frozen=True)
class Port:
    """One input or output: its specification, its tensor index, and its quantization (scale, zero point) if any."""

    spec: TensorSpec
    index: int
    shape: tuple[int, ...]
    quantization: tuple[float, int] | None


def ports_of(interpreter: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """The inputs and outputs of an allocated interpreter.

    If the model has exactly one signature that covers them, they have its names; else those of the tensors, with `_1`,
    `_2`, ... added to repeated names. Raises `InvalidRequest` for a datatype without a name.
    """
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    signatures = list(interpreter.get_signature_list())
    if len(signatures) == 1:
        runner = interpreter.get_signature_runner(signatures[0])
        given, gives = (
            {name: int(detail["index"]) for name, detail in details.items()}
            for details in (runner.get_input_details(), runner.get_output_details())
        )
        if _covers(given, inputs) and _covers(gives, outputs):
            return _by_signature(given, inputs), _by_signature(gives, outputs)
    return _by_tensor(inputs), _by_tensor(outputs)


def with_batch(ports: Sequence[Port], batch: int | None) -> tuple[Port, ...]:
    """The ports of an interpreter with its open batch fixed to `batch`, so that their first dimension is no longer
    dynamic."""
    return tuple(
        replace(port, spec=replace(port.spec, shape=(batch, *port.spec.shape[1:])))
        if batch is not None and (port.spec.shape[:1], port.shape[:1]) == ((-1,), (batch,))
        else port
        for port in ports
    )


def _covers(names: Mapping[str, int], details: Iterable[Mapping[str, Any]]) -> bool:
    return set(names.values()) == {detail["index"] for detail in details}


def _by_signature(names: Mapping[str, int], details: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    """In the order of the graph; a tensor that the signature gives two names appears twice."""
    unique = {detail["index"]: detail for detail in details}
    return tuple(
        _port(name, detail) for index, detail in unique.items() for name, target in names.items() if target == index
    )


def _by_tensor(details: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    own_names = {detail["name"] for detail in details}
    used: set[str] = set()
    ports = []
    for detail in details:
        name = base = detail["name"] or f"tensor_{detail['index']}"
        count = 0
        while name in used or (count and name in own_names):
            count += 1
            name = f"{base}_{count}"
        used.add(name)
        ports.append(_port(name, detail))
    return tuple(ports)


def _port(name: str, detail: Mapping[str, Any]) -> Port:
    scale, zero_point = detail["quantization"]
    return Port(
        TensorSpec(
            name, oip_datatype(np.dtype(detail["dtype"])), tuple(int(size) for size in detail["shape_signature"])
        ),
        int(detail["index"]),
        tuple(int(size) for size in detail["shape"]),
        (float(scale), int(zero_point)) if scale else None,
    )


INTERPRETER_ERRORS = (RuntimeError, ValueError, MemoryError, SystemError)
"""The errors that interpreters raise: mostly the first two, and `MemoryError` for too large a shape."""

_DELEGATE_ENTRY = "tflite_plugin_create_delegate"


class ShapesRefused(RuntimeError):
    """The interpreter could not allocate its tensors for new input shapes."""


def one_line(error: Exception) -> str:
    """An interpreter's error on one line, shortened; its type if it has no text, as for too large a tensor."""
    return " ".join(str(error).split())[:400] or type(error).__name__


class OpenModel:
    """An interpreter with its tensors allocated.

    After `run` raises anything but `InvalidRequest` it must be discarded: an interpreter whose allocation failed
    crashes the process when used again (tflite_runtime 2.14).
    """

    def __init__(self, interpreter: Any, placement: Placement, batch: int | None = None) -> None:
        self.placement = placement
        self._interpreter = interpreter
        self.inputs, self.outputs = (with_batch(ports, batch) for ports in ports_of(interpreter))
        self._shapes = {port.index: port.shape for port in self.inputs}
        self._check = InputCheck([port.spec for port in self.inputs])
        self._given, self._made = (
            tuple((port.spec.name, port.index) for port in ports) for ports in (self.inputs, self.outputs)
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Raises `InvalidRequest` before the interpreter is touched, else `INTERPRETER_ERRORS`."""
        self._check(inputs)
        interpreter, shapes = self._interpreter, self._shapes
        for name, index in self._given:
            if inputs[name].shape != shapes[index]:
                self._reshape(inputs)
                break
        for name, index in self._given:
            interpreter.set_tensor(index, inputs[name])
        interpreter.invoke()
        return {name: interpreter.get_tensor(index) for name, index in self._made}

    def _reshape(self, inputs: Mapping[str, Array]) -> None:
        mismatch = self._check.mismatch(inputs)
        if mismatch:
            raise InvalidRequest(mismatch)
        shapes = ((index, inputs[name].shape) for name, index in self._given)
        changed = [(index, shape) for index, shape in shapes if shape != self._shapes[index]]
        try:
            for index, shape in changed:
                self._interpreter.resize_tensor_input(index, shape, strict=True)
            self._interpreter.allocate_tensors()
        except INTERPRETER_ERRORS as error:
            raise ShapesRefused(str(error)) from None
        self._shapes.update(changed)


@dataclass(frozen=True)
class LoadedModelFile:
    """A model file, copied into memory.

    The packages map a file and read weights from it in every run, so copying a new model over the old one would change
    the answers of the running model, or end the process with a bus error while the file is shorter.
    """

    path: Path
    content: bytes = field(repr=False)


def read_file(package: TflitePackage, path: Path) -> LoadedModelFile:
    """Read the model at `path`. Raises `ConfigError` if it is missing, names other files or, for `tflite_runtime`, is
    broken."""
    check_file(path)
    with open_plain(path) as file:
        content = file.read()
    _check_contents(path, content, is_all=package.name == "tflite_runtime")
    return LoadedModelFile(path, content)


def open_model(
    package: TflitePackage, file: LoadedModelFile, options: RuntimeOptions, accelerator: AcceleratorOptions | None
) -> OpenModel:
    """Open the model in `file`, with the delegate of `accelerator` or, for None, on the CPU (XNNPACK and kernels).

    Raises `ConfigError` if the model cannot be run, and `AcceleratorNotUsable` if it cannot be run with the delegate,
    or if that does not take the required nodes.
    """
    interpreter, nodes = open_nodes(package, file, options, accelerator)
    if accelerator is None:
        placement = Placement(nodes=len(nodes))
    else:
        left = tuple(node.name for node in nodes if node.partition is None)
        placement = from_nodes(accelerator, len(nodes), left)
        judge(accelerator, placement)
    with _refusals(package, file.path, accelerator):
        opened = OpenModel(interpreter, placement, options.batch)
        for port in opened.inputs:
            # Some datatypes are described but not supported (INT4, UINT16 in tflite_runtime): find out now.
            interpreter.set_tensor(port.index, blank(port.spec.datatype, port.shape))
    return opened


def open_nodes(
    package: TflitePackage, file: LoadedModelFile, options: RuntimeOptions, accelerator: AcceleratorOptions | None
) -> tuple[Any, tuple[NodeCover, ...]]:
    """An interpreter with allocated tensors, and its nodes with the partitions of the delegate of `accelerator`.

    Raises as `open_model` does, but does not judge the placement.
    """
    own = accelerator is not None and accelerator.provider == XNNPACK and accelerator.library is None
    delegates = [] if accelerator is None or own else [_load_delegate(package, accelerator)]
    with _refusals(package, file.path, accelerator):
        interpreter = package.interpreter.Interpreter(
            model_content=file.content,
            experimental_delegates=delegates if options.batch is None else [],
            num_threads=options.thread_count,
        )
        if options.batch is not None:
            _fix_batch(file.path, interpreter, options.batch)
            apply_delegates(interpreter, delegates)
        # Before the first allocation every DELEGATE node is ours; XNNPACK takes remaining nodes during it.
        nodes = () if own else walk(interpreter)
        interpreter.allocate_tensors()
        return interpreter, walk(interpreter) if own else nodes


def describe(package: TflitePackage, path: Path) -> tuple[Sequence[Port], Sequence[Port], Sequence[NodeCover]]:
    """Inputs, outputs and nodes of a model, even one that cannot run on the CPU (compiled for an accelerator)."""
    content = read_file(package, path).content
    with _refusals(package, path, None):
        interpreter = package.interpreter.Interpreter(model_content=content)
        return *ports_of(interpreter), walk(interpreter)


@contextlib.contextmanager
def _refusals(package: TflitePackage, path: Path, accelerator: AcceleratorOptions | None) -> Iterator[None]:
    try:
        yield
    except (*INTERPRETER_ERRORS, InvalidRequest) as error:
        if accelerator is not None:
            raise AcceleratorNotUsable(f"{accelerator.provider} refused the model: {one_line(error)}") from None
        raise ConfigError.at(path, f"{package.version} cannot run the model: {one_line(error)}") from None


def _fix_batch(path: Path, interpreter: Any, batch: int) -> None:
    """Give each input with an open first dimension `batch` rows. Raises `ConfigError` if there is none."""
    given = interpreter.get_input_details()
    opened = [one for one in given if tuple(one["shape_signature"][:1]) == (-1,)]
    if not opened and batch not in [int(one["shape"][0]) for one in given if len(one["shape"])]:
        fixed = ", ".join(f"{one['name']!r} {one['shape'].tolist()}" for one in given)
        raise unkept_batch(path, batch, f"the model has no open batch dimension: it takes {fixed}")
    for one in opened:
        interpreter.resize_tensor_input(one["index"], (batch, *one["shape"][1:]), strict=True)


def _check_contents(path: Path, content: bytes, *, is_all: bool) -> None:
    """Refuse a model that refers to other files, and with `is_all` one with parts beyond the file's end."""
    try:
        if is_all:
            read_model(content)
        is_whole = not names_other_files(content)
    except BadTfliteFile as error:
        if not is_all:
            return  # the package checks it, with its own message
        raise ConfigError.at(path, f"the model file cannot be read: {error}") from None
    if not is_whole:
        raise ConfigError.at(path, "its weights are in other files, which is not supported; convert it into one file")


def _load_delegate(package: TflitePackage, accelerator: AcceleratorOptions) -> Any:
    if accelerator.library is None:
        raise AcceleratorNotUsable(
            f"accelerator {accelerator.provider!r} needs `library`, the path of a TFLite external delegate"
        )
    library = str(accelerator.library)
    try:
        # load_delegate prints a traceback from its destructor if the library is missing or not a delegate.
        entry = hasattr(ctypes.CDLL(library), _DELEGATE_ENTRY)
        if not entry:
            raise AcceleratorNotUsable(f"{library} is not an external delegate: it does not export {_DELEGATE_ENTRY}")
        return package.interpreter.load_delegate(library, accelerator.option_texts())
    except (OSError, ValueError) as error:
        raise AcceleratorNotUsable(f"delegate {library} cannot be loaded: {one_line(error)}") from None
