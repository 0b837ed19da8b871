"""The file of a profile: which model, where and how it was measured, its graph and its points."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from upwell.shared.digest import model_digest
from upwell.shared.partition.candidates import known_bytes
from upwell.shared.partition.graph import Graph
from upwell.shared.partition.profile import (
    Machine,
    ModelFacts,
    NodeFacts,
    Point,
    Profile,
    RuntimeFacts,
    TensorFacts,
)


@dataclass(frozen=True)
class Taken:
    """How points were measured. `stretch` 1: as this machine is."""

    tier: Literal["edge", "cloud"]
    rows: int
    stretch: float
    runtime: RuntimeFacts
    points: tuple[Point, ...]


def document_of(path: Path, graph: Graph, sizes: Mapping[str, int], taken: Taken) -> Profile:
    """The profile of the model at `path`, whose contracted graph has open dimensions of these `sizes`."""
    simulated = f"times of this machine multiplied by {taken.stretch:g}" if taken.stretch != 1 else ""
    system = f"{platform.system()} {platform.release()}"
    return Profile(
        tier=taken.tier,
        model=ModelFacts(
            name=path.name,
            format="onnx" if graph.format == "onnx" else "tflite",
            digest=model_digest(path).removeprefix("sha256:"),
            rows=taken.rows,
        ),
        machine=Machine(name=platform.node(), system=system, processor=_processor(), simulated=simulated),
        runtime=taken.runtime,
        nodes=tuple(
            NodeFacts(name=node.name, op=node.op, inputs=node.inputs, outputs=node.outputs, work=node.work)
            for node in graph.nodes
        ),
        tensors=_tensors(graph, sizes),
        inputs=graph.inputs,
        outputs=graph.outputs,
        points=taken.points,
    )


def _tensors(graph: Graph, sizes: Mapping[str, int]) -> dict[str, TensorFacts]:
    """Those that a node or the model itself takes or gives."""
    named = [name for node in graph.nodes for name in (*node.inputs, *node.outputs)]
    known = [graph.tensors[name] for name in dict.fromkeys((*graph.inputs, *named, *graph.outputs))]
    return {tensor.name: TensorFacts(datatype=tensor.datatype, bytes=known_bytes(tensor, sizes)) for tensor in known}


def _processor() -> str:
    """Its model where the system tells, and its cores."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() == "model name":
                model = value.strip()
                break
    return f"{model}, {os.cpu_count() or 1} cores"
