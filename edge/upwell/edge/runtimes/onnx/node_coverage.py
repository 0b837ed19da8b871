"""The coverage of an ONNX model by an execution provider.

The nodes are those offered to a provider: ONNX Runtime first removes and rewrites some on any hardware (its basic
optimizations), and that graph is examined.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from upwell.edge.runtimes.input_check import check_file
from upwell.edge.runtimes.node_coverage import Coverage
from upwell.edge.runtimes.onnx.node_assignment import CAST_FOR_CPU, GraphPart, covers, parts_of, records_assignment
from upwell.edge.runtimes.onnx.providers import CPU, plain_text
from upwell.edge.runtimes.onnx.sessions import Opening, session_options
from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.file_checks import external_weights
from upwell.shared.formats.onnx.graph import named_apart, read_graph
from upwell.shared.formats.onnx.protobuf_reader import BadOnnxFile


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
