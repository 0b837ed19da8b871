"""The coverage of a TFLite model by an accelerator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from upwell.edge.runtimes.node_coverage import Coverage
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_options import LITERT_NPU, AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import describe, open_nodes
from upwell.edge.runtimes.tflite.tflite_package import find_package


def coverage_of(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    """Open the model with the delegate of `accelerator`, or compile it, and find the nodes of the main graph that it
    took.

    `accelerator.require` is ignored. For `litert_npu` the source is `compiled model` if the whole model compiled, else
    `partition plan`: the nodes that the vendor's plugin would take; unless it takes all, the model runs on the CPU.
    Raises `ConfigError` as `TfliteRuntime` does, and `AcceleratorNotUsable` if the accelerator cannot be loaded, or
    refuses a model although it would take every node.
    """
    if accelerator.provider == LITERT_NPU:
        return _compiled(path, options, accelerator)
    package = find_package(options.package)
    _, nodes = open_nodes(package, path, options, accelerator)
    return Coverage(accelerator.provider, package.version, "delegate walk", nodes)


def _compiled(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    from upwell.edge.runtimes.tflite.npu_options import litert
    from upwell.edge.runtimes.tflite.npu_plan import planned
    from upwell.edge.runtimes.tflite.npu_runtime import Incomplete, compile_for_npu, runs_on_npu

    package = litert(options)
    _, _, nodes = describe(package, path)
    try:
        model = compile_for_npu(path, accelerator)
    except Incomplete as refusal:
        plan = planned(path, options, accelerator)
        if all(node.partition is not None for node in plan):
            raise AcceleratorNotUsable(str(refusal)) from None
        return Coverage(accelerator.provider, package.version, "partition plan", plan)
    if not runs_on_npu(model):
        raise AcceleratorNotUsable(f"{accelerator.provider}: LiteRT compiled the model and runs it on the CPU")
    whole = [replace(node, partition=0) for node in nodes]
    return Coverage(accelerator.provider, package.version, "compiled model", whole)
