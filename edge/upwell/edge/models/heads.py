"""The heads of a split model that are ready on the device, as many as fit the memory given to them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from upwell.edge.lane import Lane
from upwell.edge.model_sections import EdgeSide, ModelSection, SplitSection
from upwell.edge.models.compiling import load_edge
from upwell.edge.models.served import EdgeModel, ServedModel
from upwell.edge.timetable import Claim
from upwell.shared.errors import ConfigError
from upwell.shared.partition.split.folder import FILE_NAME, CutFacts, SplitFacts
from upwell.shared.routing.state import Way
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype
from upwell.shared.yaml import load_yaml

AUTO_FOLDER = "split"
"""Where `split: auto` looks: in the bundle, or beside the file."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Head:
    """One cut: the head as a model on the device, and what the router and the cloud know its tail by."""

    cut: CutFacts
    edge: EdgeModel
    way: Way

    def tail(self, whole: ServedModel) -> ServedModel:
        """What answers in the cloud, as the model by which the router and the uplink know it."""
        return ServedModel(self.way.key, whole.edge, self.cut.tail, whole=whole.name)

    def run(self, inputs: Mapping[str, Array], deadline_s: float, claim: Claim) -> tuple[Mapping[str, Array], float]:
        """What the tail takes for checked inputs, by name, and the seconds that the device took. Raises as
        `EdgeModel.run` does."""
        run = self.edge.run(inputs, deadline_s, claim)
        tensors = {tensor.name: run.outputs[tensor.name] for tensor in self.cut.tensors}
        if self.cut.raw_inputs:
            prepared = self.edge.processor.pre(inputs)
            tensors.update({name: prepared.tensors[name] for name in self.cut.raw_inputs})
        return tensors, run.duration_s


def load_heads(
    name: str, section: ModelSection, *, bundle: Path | None, lane: Lane | None, state_dir: Path | None
) -> tuple[Head, ...]:
    """The heads of a model of the configuration, in the order of its `split.json`, while they fit the memory.

    `bundle` is the folder of the bundle in use; `lane` that of the whole model, which heads share, so that the device's
    runs go on in turn. A head that cannot be loaded is left, with a line in the log. Raises `ConfigError` for a folder
    that is named and is none, or is wrong.
    """
    place = _place(section, bundle)
    if place is None:
        return ()
    facts = load_yaml(place, SplitFacts)
    limit_bytes = section.split.memory if isinstance(section.split, SplitSection) else SplitSection(plan=place).memory
    heads: list[Head] = []
    used_bytes = 0
    for cut, path in _files(place, facts):
        head_bytes = path.stat().st_size
        if used_bytes + head_bytes > limit_bytes:
            _log.warning("model %s: cut %s is left, it does not fit %d bytes for heads", name, cut.name, limit_bytes)
            continue
        try:
            edge = load_edge(f"{name}/{cut.name}", _side(section, path, facts.format), state_dir=state_dir)
        except ConfigError as error:
            _log.error("model %s: cut %s is left: %s", name, cut.name, error)
            continue
        grown_bytes = max(head_bytes, edge.report.memory_bytes)
        problem = _misfit(cut, edge)
        if not problem and used_bytes + grown_bytes > limit_bytes:
            problem = f"it takes {grown_bytes} bytes and does not fit {limit_bytes} bytes for heads"
        if problem:
            _log.error("model %s: cut %s is left: %s", name, cut.name, problem)
            edge.close()
            continue
        used_bytes += grown_bytes
        if lane is not None:
            edge.lane = lane
        elif heads:
            edge.lane = heads[0].edge.lane
        heads.append(Head(cut, edge, _way(name, cut, edge)))
    return tuple(heads)


def _place(section: ModelSection, bundle: Path | None) -> Path | None:
    """The `split.json`; None where the model is not split."""
    if isinstance(section.split, SplitSection):
        plan = section.split.plan
        return plan / FILE_NAME if plan.is_dir() else plan
    if section.split == "off":
        return None
    file = section.edge.file if section.edge else None
    folder = bundle if bundle is not None else file.parent if file is not None else None
    place = None if folder is None else folder / AUTO_FOLDER / FILE_NAME
    if place is None or not place.is_file():
        _log.warning("`split: auto` finds no %s/%s in %s", AUTO_FOLDER, FILE_NAME, folder or "a model without a bundle")
        return None
    return place


def _files(place: Path, facts: SplitFacts) -> Iterator[tuple[CutFacts, Path]]:
    """Every cut with its head's file. Raises `ConfigError` for one that is outside the folder, or missing."""
    folder = place.parent.resolve()
    for index, cut in enumerate(facts.cuts):
        path = (folder / cut.head).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            problem = f"expected a file in {folder}, got {cut.head!r}"
            raise ConfigError.at(place, problem, f"cuts[{index}].head")
        yield cut, path


def _side(section: ModelSection, path: Path, file_format: str) -> EdgeSide:
    """The head's options: those of the whole on the device, as far as they are about the same runtime."""
    whole = section.edge
    if whole is None:
        return EdgeSide(file=path)
    package = whole.package if file_format == "tflite" else None
    others: dict[str, object] = {"bundle": None, "updates": None, "exits": [], "runtime": None}
    return whole.model_copy(update={**others, "file": path, "package": package})


def _misfit(cut: CutFacts, edge: EdgeModel) -> str:
    """Why this file cannot be the head of the cut; empty where it can."""
    outputs = {output.name: output.spec for output in edge.signature.outputs}
    for tensor in cut.tensors:
        spec = outputs.get(tensor.name)
        if spec is None:
            return f"the head has no output {tensor.name!r}"
        if spec.datatype != tensor.datatype:
            return f"output {tensor.name!r} is {spec.datatype}, and the tail takes {tensor.datatype}"
    known = {spec.name for spec in edge.runtime.inputs}
    missing = sorted(set(cut.raw_inputs) - known)
    return f"the tail takes the input {missing[0]!r}, which the head does not know" if missing else ""


def _way(name: str, cut: CutFacts, edge: EdgeModel) -> Way:
    raw = [spec for spec in edge.runtime.inputs if spec.name in cut.raw_inputs]
    row_bytes = sum(tensor.bytes for tensor in cut.tensors) + sum(map(_row_bytes, raw))
    head_s, tail_s = (math.nan if known_s is None else known_s for known_s in (cut.edge_s, cut.cloud_s))
    return Way(f"{name}/{cut.name}", row_bytes, head_s, tail_s)


def _row_bytes(spec: TensorSpec) -> int:
    return numpy_dtype(spec.datatype).itemsize * math.prod(max(1, dim) for dim in spec.shape[1:])
