"""The ONNX Runtime adapter on the device, and the coverage of a model by an execution provider.

The covered nodes are those offered to a provider: ONNX Runtime first removes and rewrites some on any hardware (its
basic optimizations), and that graph is examined.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.input_check import InputCheck, check_file
from upwell.edge.runtimes.onnx.node_assignment import CAST_FOR_CPU, GraphPart, covers, parts_of, records_assignment
from upwell.edge.runtimes.onnx.providers import CPU, plain_text
from upwell.edge.runtimes.onnx.sessions import Opening, open_on_accelerator, open_on_cpu, session_options
from upwell.edge.runtimes.onnx.tensor_conversion import Call, caller_for, symbols_of
from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.edge.runtimes.placement import AcceleratorFailed, Coverage
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, UpwellError
from upwell.shared.formats.onnx.file import BadOnnxFile, external_weights
from upwell.shared.formats.onnx.graph import named_apart, read_graph
from upwell.shared.formats.onnx.tensor_types import UnsupportedTensor, spec_of
from upwell.shared.tensors import Array


class OnnxRuntime:
    """A model in ONNX Runtime, on one accelerator or on the CPU. `run` is thread-safe.

    Raises `ConfigError` if the file is missing or broken, if its weights are not beside it, if it needs what this ONNX
    Runtime lacks (custom operators, a newer IR version), or if an input or output is not a tensor; and
    `AcceleratorNotUsable` if `accelerator` takes no node, or not every node with `require: must`. Nodes are counted in
    the graph after the runtime removed and rewrote some.

    `cache_dir` stores what the accelerator compiled, for the next start. An accelerator that fails later raises
    `AcceleratorFailed`. `instances` is the useful number of concurrent runs; one session serves them all.
    """

    name: str = "onnx"

    def __init__(
        self,
        path: Path,
        options: RuntimeOptions | None = None,
        accelerator: AcceleratorOptions | None = None,
        *,
        cache_dir: Path | None = None,
    ) -> None:
        check_file(path)
        _check_weights(path)
        self.version = f"onnxruntime {onnxruntime.__version__}"
        self.placement: Placement
        self._path = path
        options = options or RuntimeOptions()
        try:
            if accelerator is None:
                self.instances = options.instance_count
                session, self.placement = open_on_cpu(path, options)
            else:
                self.instances = options.instances or 1
                session, self.placement = open_on_accelerator(path, options, accelerator, cache_dir)
            self.inputs = tuple(map(spec_of, session.get_inputs()))
            self.outputs = tuple(map(spec_of, session.get_outputs()))
            self._call: Call | None = caller_for(session, self.inputs, self.outputs)
            self._symbols = {argument.name: symbols_of(argument) for argument in session.get_inputs()}
        except UnsupportedTensor as error:
            raise ConfigError.at(path, str(error)) from None
        except UnicodeDecodeError:  # of a damaged file, say
            raise ConfigError.at(path, "a node, input or output has a name that is not UTF-8") from None
        self._check = InputCheck(self.inputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        call = self._call
        if call is None:
            raise ModelFailed(f"{self._path.name} is closed")
        self._check(inputs)
        try:
            return call(inputs)
        except UpwellError:
            raise
        except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
            raise self._explained(error, inputs) from None

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        self._call = None

    def _explained(self, error: Exception, inputs: Mapping[str, Array]) -> UpwellError:
        misfit = self._check.mismatch(inputs) or self._unequal_symbols(inputs)
        if misfit:
            return InvalidRequest(misfit)
        if self.placement.nodes_on_accelerator:
            return AcceleratorFailed(plain_text(error), is_of_shapes=None)
        text = f"{self._path.name}: {plain_text(error)}"
        # Kernels report wrong values, such as an index out of bounds, as invalid arguments too.
        return InvalidRequest(text) if type(error).__name__ == "InvalidArgument" else ModelFailed(text)

    def _unequal_symbols(self, inputs: Mapping[str, Array]) -> str:
        """Dimensions with one name in the model but different sizes in the inputs."""
        sizes: dict[str, tuple[str, int]] = {}
        for name, symbols in self._symbols.items():
            for symbol, size in zip(symbols, inputs[name].shape, strict=False):
                first, expected = sizes.setdefault(symbol, (name, size))
                if symbol and size != expected:
                    return (
                        f"inputs {first!r} and {name!r} must agree in dimension {symbol!r}, got {expected} and {size}"
                    )
        return ""


def _check_weights(path: Path) -> None:
    try:
        external_weights(path)
    except BadOnnxFile as error:
        raise ConfigError.at(path, str(error)) from None


def coverage_of(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    """The coverage of the model at `path` by `accelerator`. Work is NaN without the `onnx` package.

    With `require: must` the provider is asked in strict mode, in which some take more nodes. Raises `ConfigError` if
    the CPU cannot load the model and `AcceleratorNotUsable` if the provider is missing or refuses it.
    """
    return survey(path, options, accelerator, by_profile=not records_assignment())


def survey(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions, *, by_profile: bool) -> Coverage:
    """The coverage, from the profile of a run or from the assignment that ONNX Runtime records since 1.24."""
    check_file(path)
    with tempfile.TemporaryDirectory(prefix="upwell-coverage-") as folder:
        try:
            external_weights(path)
            offered = _offered(path, options, Path(folder))
            graph = read_graph(offered)
        except BadOnnxFile as error:
            raise ConfigError.at(path, str(error)) from None
        opening = Opening(offered, options, accelerator, by_profile=by_profile, is_basic=True)
        session, nodes = opening.open()
        parts = [] if by_profile else [*parts_of(session)]
        known = {node for part in parts for node in part.nodes}
        parts += [GraphPart(node.provider, (node,)) for node in nodes if node not in known]
    return Coverage(
        accelerator=accelerator.provider,
        runtime=f"onnxruntime {onnxruntime.__version__}",
        source="profile" if by_profile else "graph assignment",
        nodes=covers(graph, parts, opening.provider.name),
    )


def _offered(path: Path, options: RuntimeOptions, folder: Path) -> Path:
    """The model as offered to providers, in a file, with a name for each node.

    A float16 model is used unchanged, since providers are never offered the CPU's float32 version of it.
    """
    offered = folder / "offered.onnx"
    # Weights in a separate file, so that a model may exceed the 2 GB of a protobuf message.
    entries = {
        "session.optimized_model_external_initializers_file_name": "weights.bin",
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    }
    settings = session_options(path, options, entries)
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(offered)
    try:
        onnxruntime.InferenceSession(str(path), settings, providers=[CPU], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
        raise ConfigError.at(path, f"ONNX Runtime cannot load the model: {plain_text(error)}") from None
    source = offered
    if any(node.name.startswith(CAST_FOR_CPU) for node in read_graph(offered).nodes):
        source = path
        if external_weights(path):
            return path
    offered.write_bytes(_with_shapes(named_apart(source.read_bytes())))
    return offered


def _with_shapes(model: bytes) -> bytes:
    """The model with inferred tensor shapes; unchanged without the `onnx` package."""
    try:
        import onnx
        import onnx.shape_inference
    except ModuleNotFoundError:
        return model
    return bytes(onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).SerializeToString())
