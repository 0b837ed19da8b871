"""Loading the heads of a split model, as many as fit their memory limit."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

from upwell.edge.models.edge_model import EdgeModel, FullModel, Head, row_bytes
from upwell.edge.models.model_config import EdgeSide, ModelSection, SplitSection
from upwell.edge.models.model_loader import Loader
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.files import Unconfined, plain_file
from upwell.shared.partition.split.split_file import FILE_NAME, CutFacts, SplitFacts, split_file_of
from upwell.shared.routing.decide.router_state import SplitRoute
from upwell.shared.signature.processor import sizes_fit
from upwell.shared.tensors import TensorSpec

AUTO_FOLDER = "split"
"""The folder that `split: auto` searches, in the bundle or beside the file."""

_log = logging.getLogger(__name__)


def load_heads(
    name: str, section: ModelSection, *, whole: EdgeModel | None, state_dir: Path | None
) -> tuple[Head, ...]:
    """Load a model's heads in the order of its `split.json`, while they fit the memory limit.

    `whole` is the model on the device, whose scheduler the heads share, so that runs stay in order. A head that cannot
    be loaded is skipped with a log line. Raises `ConfigError` if the configured folder is missing or wrong.
    """
    bundle = whole.source.bundle.folder if whole is not None and whole.source.bundle is not None else None
    place = _place(section, bundle)
    if place is None:
        return ()
    # Files named in a bundle lie in the bundle; a plan named in the configuration has its own folder.
    within = bundle if bundle is not None and section.split == "auto" else place.parent
    facts = load_yaml(place, SplitFacts, within=within)
    limit_bytes = section.split.memory if isinstance(section.split, SplitSection) else SplitSection(plan=place).memory
    known = _known(whole, facts)
    heads: list[Head] = []
    used_bytes = 0
    for cut, path in _files(place, facts):
        head_bytes = path.stat().st_size
        if used_bytes + head_bytes > limit_bytes:
            _log.warning(
                "model %s: cut %s is not used: it exceeds the limit of %d bytes for heads", name, cut.name, limit_bytes
            )
            continue
        try:
            side = _side(section, path, facts.format)
            edge = Loader(f"{name}/{cut.name}", side, within=within, state_dir=state_dir).load()
        except ConfigError as error:
            _log.error("model %s: cut %s is not used: %s", name, cut.name, error)
            continue
        grown_bytes = max(head_bytes, edge.report.memory_bytes)
        problem = _misfit(cut, edge, known) or _unlike(edge, whole)
        if not problem and used_bytes + grown_bytes > limit_bytes:
            problem = f"it takes {grown_bytes} bytes and exceeds the limit of {limit_bytes} bytes for heads"
        if problem:
            _log.error("model %s: cut %s is not used: %s", name, cut.name, problem)
            edge.close()
            continue
        used_bytes += grown_bytes
        if whole is not None:
            edge.scheduler = whole.scheduler
        elif heads:
            edge.scheduler = heads[0].edge.scheduler
        heads.append(Head(cut, edge, _split_route(name, cut, edge, known), known))
    return tuple(heads)


def _place(section: ModelSection, bundle: Path | None) -> Path | None:
    """The path of `split.json`; None if the model is not split."""
    if isinstance(section.split, SplitSection):
        return split_file_of(section.split.plan)
    if section.split == "off":
        return None
    file = section.edge.file if section.edge else None
    folder = bundle if bundle is not None else file.parent if file is not None else None
    place = None if folder is None else folder / AUTO_FOLDER / FILE_NAME
    if place is None or not os.path.lexists(place):
        _log.warning("`split: auto` finds no %s/%s in %s", AUTO_FOLDER, FILE_NAME, folder or "a model without a bundle")
        return None
    return place


def _files(place: Path, facts: SplitFacts) -> Iterator[tuple[CutFacts, Path]]:
    """Every cut with its head's file. Raises `ConfigError` for a file that is missing or outside the folder."""
    for index, cut in enumerate(facts.cuts):
        try:
            yield cut, plain_file(place.parent, cut.head)
        except Unconfined:
            problem = f"expected a file in {place.parent}, got {cut.head!r}"
            raise ConfigError.at(place, problem, f"cuts[{index}].head") from None


def _side(section: ModelSection, path: Path, file_format: str) -> EdgeSide:
    """The head's options: those of the whole on the device, if it has the same runtime."""
    whole = section.edge
    if whole is None:
        return EdgeSide(file=path)
    package = whole.package if file_format == "tflite" else None
    others: dict[str, object] = {"bundle": None, "updates": None, "exits": [], "runtime": None}
    return whole.model_copy(update={**others, "file": path, "package": package})


def _known(whole: EdgeModel | None, facts: SplitFacts) -> FullModel | None:
    if whole is None or whole.digest.removeprefix("sha256:") != facts.whole:
        return None
    return FullModel(whole.processor, tuple(whole.runtime.inputs), tuple(whole.runtime.outputs))


def _misfit(cut: CutFacts, edge: EdgeModel, whole: FullModel | None) -> str:
    """Why this file cannot be the head of the cut; empty if it can."""
    outputs = {output.name: output.spec for output in edge.signature.outputs}
    for tensor in cut.tensors:
        spec = outputs.get(tensor.name)
        if spec is None:
            return f"the head has no output {tensor.name!r}"
        if spec.datatype != tensor.datatype:
            return f"output {tensor.name!r} is {spec.datatype}, but the tail takes {tensor.datatype}"
    unmade = [name for name in cut.outputs if name not in outputs]
    if unmade:
        return f"the head has no output {unmade[0]!r}"
    if cut.needs_post and whole is None:
        return "its answer needs the whole model's description, but the device does not run that model file"
    missing = sorted(set(cut.raw_inputs) - {spec.name for spec in _inputs(edge, whole)})
    return f"the tail takes the input {missing[0]!r}, which the head does not give" if missing else ""


def _unlike(edge: EdgeModel, whole: EdgeModel | None) -> str:
    """Why a head cannot take the whole model's inputs; empty if it can."""
    if whole is None:
        return ""
    given = {one.name: one for one in whole.signature.inputs}
    for one in edge.signature.inputs:
        there = given.get(one.name)
        if there is None:
            return f"the head takes {one.name!r}, which is no input of the model: it takes {', '.join(given)}"
        is_same = (one.kind, one.spec.datatype) == (there.kind, there.spec.datatype)
        if not is_same or not sizes_fit(one.spec.shape[1:], there.spec.shape[1:]):
            return f"the head takes {one.name!r} as {_said(one.spec)}, but the model takes it as {_said(there.spec)}"
    return ""


def _said(spec: TensorSpec) -> str:
    return f"{spec.datatype} {list(spec.shape)}"


def _inputs(edge: EdgeModel, whole: FullModel | None) -> tuple[TensorSpec, ...]:
    """The model inputs that the device can prepare for a tail."""
    return tuple(edge.runtime.inputs) if whole is None else whole.inputs


def _split_route(name: str, cut: CutFacts, edge: EdgeModel, whole: FullModel | None) -> SplitRoute:
    raw = [spec for spec in _inputs(edge, whole) if spec.name in cut.raw_inputs]
    cut_bytes = sum(tensor.bytes for tensor in cut.tensors) + sum(map(row_bytes, raw))
    head_s, tail_s = (math.nan if known_s is None else known_s for known_s in (cut.edge_s, cut.cloud_s))
    return SplitRoute(f"{name}/{cut.name}", cut_bytes, head_s, tail_s)
