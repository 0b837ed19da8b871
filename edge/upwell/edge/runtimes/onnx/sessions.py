"""ONNX Runtime sessions on the CPU, or on an accelerator with placement evidence.

An open batch is fixed through the name of its dimension, wherever that occurs, and ONNX Runtime infers the resulting
shapes. It cannot fix a dimension without a name.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.input_check import unkept_batch
from upwell.edge.runtimes.onnx.compiled_cache import CacheEntry, entry_for
from upwell.edge.runtimes.onnx.int8_saturation import saturation
from upwell.edge.runtimes.onnx.node_assignment import (
    RECORD_KEY,
    AssignedNode,
    assigned_nodes,
    constant_tensors,
    from_profile,
    records_assignment,
)
from upwell.edge.runtimes.onnx.providers import CPU, OPENVINO, Provider, find_provider, plain_text
from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.edge.runtimes.placement import AcceleratorNotUsable, from_nodes, judge
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.shared.formats.onnx.graph import read_graph
from upwell.shared.formats.onnx.weights_in_memory import weights_in_memory

_TOOL = "python -m onnxruntime.tools.make_dynamic_shape_fixed"
_FLOAT16 = 10
_REMOVED = ("Identity", "Dropout")
_LOG_ERRORS = 3
_LOG_FATAL = 4
_NO_FALLBACK = {"enable_fallback": 0}
"""Without this a failing session prints to standard output and silently recreates itself on the CPU."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_STRICT: Mapping[str, str] = {"session.disable_cpu_ep_fallback": "1"}
_LEFT_NODES = "assigned to the default CPU EP"
_EXACT: Mapping[str, str] = {"session.x64quantprecision": "1"}
"""Rewrites int8 weights as uint8, which uses another kernel. Only effective on x86-64."""

Opened: TypeAlias = "tuple[Any, Sequence[AssignedNode]]"
"""A session and the assignment of its nodes."""

_log = logging.getLogger(__name__)


def names_to_fix(path: Path, batch: int) -> Sequence[str]:
    """The names of the open first dimensions of the inputs of the model at `path`.

    Raises `ConfigError` if one has no name or names another dimension as well, or if all are fixed but not to `batch`.
    """
    try:
        inputs = read_graph(path).inputs
    except BadOnnxFile as error:
        raise ConfigError.at(path, str(error)) from None
    opened = _open(inputs)
    for name, symbol in opened.items():
        if not symbol:
            how = f"fix it in the file ({_TOOL} --input_name {name} --input_shape …), or export it with a name"
            raise unkept_batch(path, batch, f"the first dimension of input {name!r} is open but has no name; {how}")
        if any(symbol in shape[1:] for shape in inputs.values()):
            raise unkept_batch(
                path, batch, f"{symbol!r}, the first dimension of input {name!r}, also names other dimensions"
            )
    if not opened and batch not in [shape[0] for shape in inputs.values() if shape]:
        fixed = ", ".join(f"{name!r} {list(shape)}" for name, shape in inputs.items())
        raise unkept_batch(path, batch, f"the model has no open batch dimension: it takes {fixed}")
    return sorted(set(opened.values()))


def hint(path: Path) -> str:
    """A hint for an accelerator that does not take the whole model at `path`, if its batch is open; else empty."""
    try:
        opened = _open(read_graph(path).inputs)
    except (BadOnnxFile, OSError):
        return ""
    if not opened:
        return ""
    return (
        f"; the batch of {', '.join(map(repr, opened))} is open, but many accelerators accept only fixed sizes: "
        "write `batch: 1`"
    )


def _open(inputs: Mapping[str, tuple[int | str, ...]]) -> Mapping[str, str]:
    leading = {name: shape[0] for name, shape in inputs.items() if shape}
    return {name: size for name, size in leading.items() if isinstance(size, str)}


def has_float16(path: Path) -> bool:
    """Whether an input, an output or a weight of the model at `path` is float16."""
    try:
        return _FLOAT16 in read_graph(path).dtypes.values()
    except (BadOnnxFile, OSError):
        return False  # ONNX Runtime will report the problem


def unassigned(path: Path, assigned: Sequence[AssignedNode]) -> Sequence[AssignedNode]:
    """The nodes of a float16 model that are missing in the record, though strict mode says there are some.

    A node without a name is listed only if nothing else is left on the CPU.
    """
    graph = read_graph(path)
    constants, known = constant_tensors(graph), {node.name for node in assigned}
    found = [
        AssignedNode(node.name, node.operator, CPU)
        for node in graph.nodes
        if node.name
        and node.name not in known
        and node.operator not in _REMOVED
        and not constants.issuperset(node.outputs)
    ]
    if found or any(node.provider == CPU for node in assigned):
        return found
    return [AssignedNode("", "a node that ONNX Runtime does not name", CPU)]


def open_on_cpu(path: Path, options: RuntimeOptions) -> tuple[Any, Placement]:
    """Open a session on the CPU. Raises `ConfigError` if the model cannot be loaded."""
    settings = session_options(path, options, cpu_settings(path))
    try:
        with weights_in_memory(settings, path):
            session = onnxruntime.InferenceSession(str(path), settings, providers=[CPU], **_NO_FALLBACK)
    except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
        raise ConfigError.at(path, f"ONNX Runtime cannot load the model: {plain_text(error)}") from None
    nodes = assigned_nodes(session) if records_assignment() else ()
    return session, Placement(nodes=len(nodes))


def open_on_accelerator(
    path: Path, options: RuntimeOptions, wanted: AcceleratorOptions, cache_dir: Path | None = None
) -> tuple[Any, Placement]:
    """Open a session on the execution provider that `wanted` names; returns it with the placement.

    The compiled model is cached in `cache_dir`. Raises `AcceleratorNotUsable` if it takes no node, or not every node
    with `require: must`, and `ConfigError` if the batch cannot be fixed as `options` require.
    """
    opening = Opening(path, options, wanted)
    try:
        entry = None if cache_dir is None else entry_for(cache_dir, path, opening.provider, wanted, options.batch)
        if entry is not None:
            return _kept(opening, entry) or _compiled(opening, entry)
    except OSError as error:
        _log.warning("%s: what %s compiles cannot be cached: %s", path, opening.provider.name, error)
    return _judged(opening, opening.open())


class Opening:
    """Opening one model on one provider. Raises `AcceleratorNotUsable` if the provider is missing.

    `by_profile` takes the evidence from a run, for an ONNX Runtime that does not record it; `is_basic` keeps the
    graph's nodes as offered to the provider, without the later fusions for the CPU.
    """

    def __init__(
        self,
        path: Path,
        options: RuntimeOptions,
        wanted: AcceleratorOptions,
        *,
        by_profile: bool | None = None,
        is_basic: bool = False,
    ) -> None:
        self.path = path
        self.wanted = wanted
        self.provider = find_provider(wanted)
        self.options = options
        self._cpu_settings = cpu_settings(path)
        self._by_profile = not records_assignment() if by_profile is None else by_profile
        self._is_basic = is_basic

    def open(self, entries: Mapping[str, str] = _NOTHING, extra: Mapping[str, str] = _NOTHING) -> Opened:
        """Open a session, with `entries` for its configuration and `extra` for the provider; returns it with its nodes.

        It is strict with `require: must` if possible; otherwise the nodes include those left on the CPU.
        """
        hides_nodes = not self._by_profile and has_float16(self.path)
        if self.wanted.require != "must" and not hides_nodes and not self._hides_fallback():
            return self.open_once(self.path, entries, extra)
        try:
            return self.open_once(self.path, {**entries, **_STRICT}, extra)
        except _NodesLeft:  # without strict mode they can be listed
            session, nodes = self.open_once(self.path, entries, extra)
            hidden = unassigned(self.path, nodes) if hides_nodes else ()
            return session, [*nodes, *hidden]

    def open_once(self, path: Path, entries: Mapping[str, str], extra: Mapping[str, str]) -> Opened:
        """Open a session for `path` instead of the model; returns it with its nodes."""
        settings = session_options(self.path, self.options, {**self._cpu_settings, **entries})
        if self._is_basic:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        with tempfile.TemporaryDirectory(prefix="upwell-profile-") as profiles:
            if self._by_profile:
                settings.enable_profiling = True
                settings.profile_file_prefix = str(Path(profiles) / "profile")
            session = _create(path, settings, self.provider, {**self.provider.options, **extra})
            return session, _profiled(session) if self._by_profile else assigned_nodes(session)

    def placement(self, nodes: Sequence[AssignedNode]) -> Placement:
        """The placement that the evidence shows."""
        left = tuple(node.label for node in nodes if node.provider != self.provider.name)
        placement = from_nodes(self.wanted, len(nodes), left)
        if placement.nodes_on_accelerator:
            return placement
        why = "; see ONNX Runtime's messages on standard error"
        return replace(placement, reason=f"{self.wanted.provider} took none of the {len(nodes)} nodes{why}")

    def _hides_fallback(self) -> bool:
        """Whether a fallback could be hidden: if its NPU refuses the model, OpenVINO uses its own CPU device, except in
        strict mode.

        Strict mode fails for nodes left on ONNX Runtime's CPU only after OpenVINO has compiled the others.
        """
        return self.provider.name == OPENVINO and "NPU" in self.provider.options.get("device_type", "")


def _judged(opening: Opening, opened: Opened) -> tuple[Any, Placement]:
    session, nodes = opened
    placement = opening.placement(nodes)
    try:
        judge(opening.wanted, placement)
    except AcceleratorNotUsable as error:
        advice = hint(opening.path) if opening.options.batch is None else ""
        raise AcceleratorNotUsable(f"{error}{advice}") from None
    return session, placement


def _kept(opening: Opening, entry: CacheEntry) -> tuple[Any, Placement] | None:
    """Open the cached compiled model; None if there is none, or it was unusable and removed."""
    before = entry.kept()
    if before is None:
        return None
    try:
        if entry.context is None:
            return _judged(opening, opening.open(extra=entry.options(entry.folder)))
        strict = _STRICT if not before.left_on_cpu else _NOTHING
        session, nodes = opening.open_once(entry.context, strict, _NOTHING)
        placement = opening.placement(nodes)
        # A compiled part is now one node: the seal lists the original nodes; nodes left on the CPU appear here too.
        if placement.nodes_on_accelerator and set(placement.left_on_cpu) <= set(before.left_on_cpu):
            return session, before
        reason = f"it leaves other nodes on the CPU: {', '.join(placement.left_on_cpu)}"
    except AcceleratorNotUsable as error:
        reason = str(error)
    text = "%s: what %s compiled earlier cannot be used and is compiled again: %s"
    _log.warning(text, opening.path, opening.provider.name, reason)
    entry.remove()
    return None


def _compiled(opening: Opening, entry: CacheEntry) -> tuple[Any, Placement]:
    """Compile and cache the model, then open it from the cache, which proves that this works."""
    with entry.unfinished() as folder:
        try:
            opened = opening.open(entry.settings(folder), entry.options(folder))
        except AcceleratorNotUsable as error:  # perhaps the disk is full
            opened = opening.open()
            _log.warning("%s: what %s compiles cannot be cached: %s", opening.path, opening.provider.name, error)
            return _judged(opening, opened)
        session, placement = _judged(opening, opened)
        if not entry.keep(folder, placement):
            return session, placement
    del session, opened
    return _kept(opening, entry) or _judged(opening, opening.open())


def session_options(path: Path, options: RuntimeOptions, entries: Mapping[str, str]) -> Any:
    """The options of every session of the model at `path`, with `entries` for its configuration.

    Raises `ConfigError` if the batch cannot be fixed as `options` require.
    """
    settings = onnxruntime.SessionOptions()
    # In strict mode nodes left on the CPU are an expected result, not an error to log.
    settings.log_severity_level = _LOG_FATAL if _STRICT.items() <= entries.items() else _LOG_ERRORS
    settings.intra_op_num_threads = options.thread_count
    settings.inter_op_num_threads = 1
    # Threads that spin between runs save a few microseconds and drain the battery.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.add_session_config_entry(RECORD_KEY, "1")
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    if options.batch is not None:
        for name in names_to_fix(path, options.batch):
            settings.add_free_dimension_override_by_name(name, options.batch)
    return settings


def cpu_settings(path: Path) -> Mapping[str, str]:
    """The CPU's session settings for the model: exact multiplication if the fast kernel would saturate."""
    warning = saturation(path)
    if not warning:
        return _NOTHING
    _log.info("%s: %s; here it runs with uint8 weights, which is exact but slower", path, warning)
    return _EXACT


class _NodesLeft(AcceleratorNotUsable):
    """Strict mode refused the model because a node is left on the CPU."""


def _create(path: Path, settings: Any, provider: Provider, texts: Mapping[str, str]) -> Any:
    is_strict = settings.log_severity_level == _LOG_FATAL
    try:
        if provider.device is not None:
            settings.add_provider_for_devices([provider.device], dict(texts))
            session = onnxruntime.InferenceSession(str(path), settings, **_NO_FALLBACK)
        else:
            # Strict mode does not allow naming the CPU provider.
            chain = [(provider.name, dict(texts)), *([] if is_strict else [CPU])]
            session = onnxruntime.InferenceSession(str(path), settings, providers=chain, **_NO_FALLBACK)
    except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
        if _LEFT_NODES in str(error):
            raise _NodesLeft(f"{provider.name} leaves nodes on the CPU") from None
        raise AcceleratorNotUsable(f"{provider.name} refused the model: {plain_text(error)}") from None
    if provider.device is None and provider.name not in session.get_providers():
        raise AcceleratorNotUsable(
            f"{provider.name} does not start here; see ONNX Runtime's messages on standard error"
        )
    return session


def _profiled(session: Any) -> Sequence[AssignedNode]:
    try:
        return from_profile(session)
    except Exception as error:  # noqa: BLE001 (the probing run may fail in any kernel)
        raise AcceleratorNotUsable(
            f"onnxruntime {onnxruntime.__version__} cannot report where the nodes run (1.24 and later can), "
            f"and a profiling run failed: {plain_text(error)}"
        ) from None
