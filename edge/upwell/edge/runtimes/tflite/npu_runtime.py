"""LiteRT's NPU path (`CompiledModel`) behind the `Runtime` interface.

The options of a `litert_npu` accelerator are translated into LiteRT's, for any of its versions and vendors.

LiteRT compiles for the NPU alone or not at all and does not report which nodes prevented it. Its package includes a
program that runs the vendor's partitioning and writes the model with each selected part as a separate graph, which
shows them (`planned`). It is a plan: it does not show whether the parts compile or whether there is a device.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import math
import re
import subprocess
import tempfile
import threading
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.input_check import InputCheck, blank
from upwell.edge.runtimes.placement import AcceleratorFailed, AcceleratorNotUsable, NodeCover, from_nodes, left_behind
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import INTERPRETER_ERRORS, describe, one_line
from upwell.edge.runtimes.tflite.tflite_package import TflitePackage, find_package
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

_SOURCE_LINE = re.compile(r"(└ )?ERROR: \[[^\]]*\]\s*(└ )?")
_HOST_MEMORY = 1  # LiteRtTensorBufferType: the type that the CPU's kernels use
_LITERT = "ai_edge_litert"
_PATHS = ("compiler_plugin_path", "dispatch_library_path")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_SUFFIX = "_options"
_NO_NPU = ("cpu", "gpu")
_PLAN_S = 600
_DISPATCH = b"DISPATCH_OP"

_MAKERS = {"intel_openvino": "IntelOpenVINO"}
"""The tool's names for vendors' plugins. Others also need the chip's model and were not tried."""


class Incomplete(Exception):
    """LiteRT did not compile the whole model for the NPU; the text is LiteRT's."""


@dataclass(frozen=True)
class _Bound:
    """One input or output with its buffer and its layout."""

    spec: TensorSpec
    buffer: Any
    dtype: np.dtype[Any]
    elements: int


class CompiledRuntime:
    """A model compiled by LiteRT for an NPU (`provider: litert_npu`, options as in `npu_options`).

    It is all or nothing: LiteRT compiles for the NPU alone, so a node that the vendor's plugin does not take makes
    compilation fail, and `prefer` and `must` are the same. The evidence is that it compiled and that the vendor's
    dispatcher owns its inputs and outputs (`runs_on_npu`).

    Calls run one at a time (`instances` is 1), and LiteRT holds Python's GIL while it runs, so no other thread of the
    process makes progress meanwhile. Shapes are the compiled ones: for an open dimension of the model, `inputs` and
    `outputs` give its fixed size.

    Raises `ConfigError` for a file that is not a LiteRT model and `AcceleratorNotUsable` if it cannot run on the NPU,
    naming the nodes left on the CPU if LiteRT's partitioning tool is available. An NPU that fails later raises
    `AcceleratorFailed`.
    """

    name: str = "tflite"
    instances: int = 1

    def __init__(self, path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> None:
        package = litert(options)
        self.version = package.version
        self._path = path
        inputs, outputs, nodes = describe(package, path)
        try:
            self._model = compile_for_npu(path, accelerator)
        except Incomplete as error:
            raise AcceleratorNotUsable(f"{error}{explained(path, options, accelerator)}") from None
        if not runs_on_npu(self._model):
            raise AcceleratorNotUsable(f"{accelerator.provider}: LiteRT compiled the model and runs it on the CPU")
        self.placement: Placement = from_nodes(accelerator, len(nodes), ())
        try:
            self._given, self._gives = self._bind([port.spec for port in inputs], [port.spec for port in outputs])
            self.inputs = tuple(bound.spec for bound in self._given)
            self.outputs = tuple(bound.spec for bound in self._gives)
            self._run_now({spec.name: blank(spec.datatype, spec.shape) for spec in self.inputs})
        except INTERPRETER_ERRORS as error:
            raise AcceleratorNotUsable(f"{accelerator.provider} cannot run the model: {one_line(error)}") from None
        _check_batch(accelerator, options.batch, self.inputs)
        self._check = InputCheck(self.inputs)
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        self._check(inputs)
        if any(inputs[spec.name].shape != spec.shape for spec in self.inputs):
            raise InvalidRequest(self._check.mismatch(inputs))
        with self._lock:
            if self._model is None:
                raise ModelFailed(f"{self._path.name} is closed")
            try:
                return self._run_now(inputs)
            except INTERPRETER_ERRORS as error:
                raise AcceleratorFailed(one_line(error)) from None

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        with self._lock:
            self._model = None
            self._given, self._gives = [], []
            self._given_buffers = self._gives_buffers = ()

    def _run_now(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for bound in self._given:
            bound.buffer.write(inputs[bound.spec.name])
        self._model.run_by_index(0, self._given_buffers, self._gives_buffers)
        return {
            bound.spec.name: bound.buffer.read(bound.elements, bound.dtype).reshape(bound.spec.shape)
            for bound in self._gives
        }

    def _bind(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[list[_Bound], list[_Bound]]:
        signature, names = next(iter(self._model.get_signature_list().items()))
        self._given_buffers = self._model.create_input_buffers(0)
        self._gives_buffers = self._model.create_output_buffers(0)
        return (
            _bound(inputs, names["inputs"], self._model.get_input_tensor_details(signature), self._given_buffers),
            _bound(outputs, names["outputs"], self._model.get_output_tensor_details(signature), self._gives_buffers),
        )


def compile_for_npu(path: Path, accelerator: AcceleratorOptions) -> Any:
    """LiteRT's model, compiled for the NPU alone.

    Raises `Incomplete`, and `AcceleratorNotUsable` for a wrong option.
    """
    options, environment = npu_options(accelerator)
    compiled_model = litert_module("compiled_model").CompiledModel
    try:
        return compiled_model.from_file(str(path), options=options, environment=environment)
    except INTERPRETER_ERRORS as error:
        why = unloadable(environment) or _said(error)
        raise Incomplete(f"{accelerator.provider} did not compile the model: {why}") from None


def _said(error: Exception) -> str:
    """LiteRT's error without source lines and without its advice to allow the CPU, which would hide the failure."""
    text = _SOURCE_LINE.sub("", one_line(error)).partition(" Add kLiteRt")[0]
    return f"{text or 'no reason given'} (LiteRT writes the cause to standard error)"


def runs_on_npu(model: Any) -> bool:
    """Whether a compiled model runs on the NPU: fully accelerated, with buffers that are not just host memory.

    The first alone is no evidence: LiteRT also reports it for models on the CPU. But there inputs and outputs accept
    only host memory, while a dispatcher adds the memory types that its device shares.
    """
    given, gives = (len(model.get_signature_by_index(0)[side]) for side in ("inputs", "outputs"))
    requirements = [model.get_input_buffer_requirements(index) for index in range(given)]
    requirements += [model.get_output_buffer_requirements(index) for index in range(gives)]
    return bool(model.is_fully_accelerated()) and all(one["supported_types"] != [_HOST_MEMORY] for one in requirements)


def _bound(
    specs: Sequence[TensorSpec], names: Sequence[str], details: Mapping[str, Any], buffers: Sequence[Any]
) -> list[_Bound]:
    """Each specification with its buffer: by name if the compiled model has the same names, else by position."""
    if len(names) != len(specs):
        raise ValueError(f"the compiled model has {len(names)} tensors for {len(specs)}")
    by_name = {spec.name for spec in specs} == set(names)
    bound = []
    for position, spec in enumerate(specs):
        index = names.index(spec.name) if by_name else position
        shape = tuple(int(size) for size in details[names[index]]["shape"])
        fixed = replace(spec, shape=shape)
        bound.append(_Bound(fixed, buffers[index], numpy_dtype(spec.datatype), math.prod(shape)))
    return bound


def _check_batch(accelerator: AcceleratorOptions, batch: int | None, inputs: Sequence[TensorSpec]) -> None:
    """Refuse another batch: LiteRT compiles open dimensions only for the example sizes in the file."""
    leading = sorted({spec.shape[0] for spec in inputs if spec.shape})
    if batch is not None and batch not in leading:
        sizes = " and ".join(map(str, leading)) or "no"
        raise AcceleratorNotUsable(f"{accelerator.provider} compiles this model for {sizes} rows, not `batch: {batch}`")


def npu_options(accelerator: AcceleratorOptions) -> tuple[Any, Any]:
    """LiteRT's `Options` for the NPU alone, and the `Environment` to compile in.

    In `accelerator.options`, `vendor` (such as `intel_openvino` or `qualcomm`) chooses the vendor's compiler plugin and
    dispatch library from the package; `compiler_plugin_path` and `dispatch_library_path` are folders to use instead.
    Every other option sets the field of that name in the vendor's option group: enum members by name, `field.KEY` for a
    map, comma-separated numbers for a list. Without `vendor` LiteRT uses the first whose dispatch library it finds.

    Only the NPU is requested, since with the CPU allowed LiteRT silently runs there and still reports full
    acceleration. Raises `AcceleratorNotUsable` for an option that this LiteRT does not have.
    """
    compiled, options = litert_module("compiled_model"), litert_module("options")
    given = accelerator.option_texts()
    vendor = given.pop("vendor", "")
    paths = {name: given.pop(name) for name in _PATHS if name in given}
    chosen = options.Options(hardware_accelerators=options.HardwareAccelerator.NPU)
    if vendor:
        paths = _vendor_paths(Path(compiled.__file__).parent / "vendors", vendor) | paths
    if given:
        group = getattr(chosen, f"{vendor}{_SUFFIX}", None) if vendor not in _NO_NPU else None
        if group is None:
            raise AcceleratorNotUsable(_no_group(options.Options, vendor, given))
        for name, text in given.items():
            _set(group, name, text)
    return chosen, compiled.Environment.create(options=compiled.EnvironmentOptions(**paths))


def litert(options: RuntimeOptions) -> TflitePackage:
    """Import ai-edge-litert, the only package that supports NPUs; raises `AcceleratorNotUsable` without it."""
    if options.package not in (None, _LITERT):
        raise AcceleratorNotUsable(f"only {_LITERT} supports NPUs, but `package: {options.package}` is set")
    try:
        return find_package(_LITERT)
    except ConfigError as error:
        raise AcceleratorNotUsable(str(error)) from None


def litert_module(name: str) -> Any:
    """Import a module of ai-edge-litert; raises `AcceleratorNotUsable` if its version has none of that name."""
    try:
        return importlib.import_module(f"{_LITERT}.{name}")
    except ImportError as error:
        raise AcceleratorNotUsable(f"a newer ai-edge-litert is needed; this one has no {name}: {error}") from None


def unloadable(environment: Any) -> str:
    """Why an environment's vendor libraries cannot be loaded, which LiteRT only logs; empty if they can."""
    for what, name in zip(("compiler plugin", "dispatch library"), _PATHS, strict=True):
        folder = getattr(environment.options, name)
        libraries = sorted(Path(folder).glob("*LiteRt*.so")) if folder else []
        if not libraries:
            return f"there is no {what} in {folder or 'the package'}"
        try:
            ctypes.CDLL(str(libraries[0]))
        except OSError as error:
            return f"the {what} cannot be loaded: {error}"
    return ""


def _vendor_paths(folder: Path, vendor: str) -> dict[str, str]:
    """Both folders of the vendor, even if missing, since LiteRT would otherwise use another vendor's."""
    known = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if vendor not in known:
        raise AcceleratorNotUsable(
            f"expected vendor to be one of {', '.join(known) or 'none in this package'}, got {vendor!r}"
        )
    return dict(zip(_PATHS, (str(folder / vendor / "compiler"), str(folder / vendor / "dispatch")), strict=True))


def _no_group(options: Any, vendor: str, given: typing.Iterable[str]) -> str:
    known = [name.removesuffix(_SUFFIX) for name in dir(options) if name.endswith(_SUFFIX) and not name.startswith("_")]
    vendors = ", ".join(name for name in known if name not in _NO_NPU)
    what = f"vendor {vendor!r} has no options here" if vendor else "`vendor` must be set for these options"
    return f"{what}: {', '.join(given)}; this LiteRT has options for {vendors}"


def _set(group: Any, name: str, text: str) -> None:
    field, _, key = name.partition(".")
    hints = typing.get_type_hints(type(group))
    if field not in hints:
        raise AcceleratorNotUsable(f"unknown option {name!r}; the vendor's options are {', '.join(hints)}")
    kind = _without_none(hints[field])
    if (typing.get_origin(kind) is dict) != bool(key):
        raise AcceleratorNotUsable(f"option {name!r}: `{field}.KEY` is only for an option that is a map")
    try:
        if key:
            getattr(group, field)[key] = text
        else:
            setattr(group, field, _value(text, kind))
    except (KeyError, ValueError):
        raise AcceleratorNotUsable(f"option {name!r} must be {_wanted(kind)}, got {text!r}") from None


def _without_none(hint: Any) -> Any:
    """`X` for `Optional[X]`."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0] if typing.get_origin(hint) is typing.Union else hint


def _value(text: str, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind[text.upper()]
    if kind is bool:
        return _TRUTHS[text.lower()]
    if kind in (int, str):
        return kind(text)
    return [int(number) for number in text.split(",")]


def _wanted(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(member.name for member in kind)
    return {bool: "true or false", int: "a number", str: "text"}.get(kind, "numbers separated by commas")


def planned(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Sequence[NodeCover]:
    """The nodes of the main graph, each with the partition that the plugin would assign.

    Raises `AcceleratorNotUsable` if the tool or plugin is missing, or fails.
    """
    _, _, nodes = describe(litert(options), path)
    _, environment = npu_options(accelerator)
    plugins = Path(environment.options.compiler_plugin_path)
    maker = _MAKERS.get(plugins.parent.name)
    if maker is None:
        raise AcceleratorNotUsable(f"LiteRT's partitioning tool was not tried with the plugin in {plugins}")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "plan.tflite"
        _partition(f"--model={path.absolute()}", f"--o={target}", f"--libs={plugins}", f"--soc_manufacturer={maker}")
        return _assigned(nodes, target.read_bytes())


def explained(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> str:
    """Why a model did not compile, after its plan: `; it leaves 1 of 3 nodes on the CPU: 1 ROUND y`.

    Empty if there is no plan.
    """
    try:
        nodes = planned(path, options, accelerator)
    except AcceleratorNotUsable:
        return ""
    left = tuple(node.name for node in nodes if node.partition is None)
    if left:
        return f"; its plugin {left_behind(left, len(nodes))}"
    return "; its plugin takes every node: check the device, its driver and its options"


def _partition(*arguments: str) -> None:
    tool = Path(litert_module("tools").__file__).parent / "apply_plugin_main"
    command = [str(tool), "--cmd=partition", "--err=--", *arguments]
    try:
        done = subprocess.run(  # noqa: S603  a program of the package, no shell
            command, capture_output=True, text=True, errors="replace", timeout=_PLAN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AcceleratorNotUsable(f"LiteRT's partitioning tool does not run here: {error}") from None
    if done.returncode != 0:
        raise AcceleratorNotUsable(f"LiteRT's partitioning tool failed with exit code {done.returncode}")


def _assigned(nodes: Sequence[NodeCover], plan: bytes) -> Sequence[NodeCover]:
    """`nodes` with the partitions of the plan. Its parts are graphs of their own, and tensors keep their names."""
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(plan, 0))
    custom = [code.customCode == _DISPATCH for code in model.operatorCodes]
    partitions: dict[str, int | None] = {}
    for position, graph in enumerate(model.subgraphs):
        for operator in graph.operators:
            if not custom[operator.opcodeIndex] and len(operator.outputs):
                partitions[_name(graph.tensors[operator.outputs[0]])] = position - 1 if position else None
    names = [node.name.split(" ", 2)[-1] for node in nodes]
    if set(names) != set(partitions) or len(set(names)) != len(nodes):
        raise AcceleratorNotUsable("the plan of LiteRT's partitioning tool does not distinguish the model's nodes")
    return [replace(node, partition=partitions[name]) for node, name in zip(nodes, names, strict=True)]


def _name(tensor: Any) -> str:
    return bytes(tensor.name or b"").decode(errors="replace")
