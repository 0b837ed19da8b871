"""The nodes of a model that a vendor's compiler plugin would take, from LiteRT's partitioning tool.

LiteRT compiles for the NPU alone or not at all and does not report which nodes prevented it. Its package includes a
program that runs the plugin's partitioning and writes the model with each selected part as a separate graph, which
shows them. It is a plan: it does not show whether the parts compile or whether there is a device.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.node_coverage import NodeCover
from upwell.edge.runtimes.placement import AcceleratorNotUsable, left_behind
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import describe
from upwell.edge.runtimes.tflite.npu_options import litert, litert_module, npu_options

_PLAN_S = 600
_DISPATCH = b"DISPATCH_OP"
_MAKERS = {"intel_openvino": "IntelOpenVINO"}
"""The tool's names for vendors' plugins. Others also need the chip's model and were not tried."""


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
