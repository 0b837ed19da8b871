"""From files to a running agent: load what `agent.yaml` names, warm it up, put it together."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from upwell.edge.agent import Agent
from upwell.edge.config import AgentConfig, EdgeSide, ModelSection
from upwell.edge.models.served import EdgeModel, ServedModel
from upwell.edge.policy_check import check_policy
from upwell.edge.runtimes.load import load_runtime
from upwell.edge.spool.item import SpoolLimits, SpoolResult
from upwell.edge.spool.sinks import CallbackSink, JsonlSink, Sink
from upwell.edge.state_dir import StateDir
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.digest import model_digest
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Problem, UpwellError
from upwell.shared.routing.policy import Policy
from upwell.shared.routing.state import EdgeRan
from upwell.shared.signature.description import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype
from upwell.shared.yaml import load_yaml

WARM_UP_RUNS = 5
_BLANK_PICTURE = np.zeros((1, 224, 224, 3), np.uint8)

_log = logging.getLogger(__name__)


def build_agent(path: Path, on_result: Callable[[SpoolResult], None] | None = None) -> Agent:
    """The agent of an `agent.yaml`, its models loaded and warmed up. Raises `ConfigError` with every problem found."""
    config = load_yaml(path, AgentConfig)
    policy = load_yaml(config.policy, Policy) if config.policy else Policy()
    _warn_of_unknown_models(policy, config)
    with ExitStack() as on_failure:
        state_dir = uplink = None
        if config.agent.state_dir is not None:
            state_dir = StateDir(config.agent.state_dir)
            on_failure.callback(state_dir.close)
        if config.cloud is not None:
            cloud = config.cloud
            uplink = Uplink(cloud.endpoint, cloud.security, config.agent.max_message, cloud.fallbacks)
            on_failure.callback(uplink.close)
        models = load_models(config.models)
        check_policy(policy, models, config.policy, has_state_dir=state_dir is not None)
        spool = config.agent.spool
        sinks: list[Sink] = [] if spool.results is None else [JsonlSink(spool.results)]
        if on_result is not None:
            sinks.append(CallbackSink(on_result))
        agent = Agent(
            models, uplink, policy, name=config.agent.name, state_dir=state_dir, flights=config.agent.flights,
            spool=SpoolLimits(max_bytes=spool.limit, max_age_s=spool.max_age), sinks=sinks,
        )  # fmt: skip
        on_failure.callback(agent.close)
        for model in agent.models.values():
            if model.edge is not None:
                warm_up(agent, model.name, model.edge)
        agent.look_after(config.policy)
        on_failure.pop_all()
    return agent


def _warn_of_unknown_models(policy: Policy, config: AgentConfig) -> None:
    """A policy may serve many agents, so a model that this one lacks is no error; a misspelt one is worth a line."""
    named = set(policy.models)
    for rule in policy.rules:
        named.update([rule.match.model] if isinstance(rule.match.model, str) else rule.match.model or [])
    for name in sorted(named - set(config.models)):
        _log.warning("%s names the model %r, which this agent does not serve", config.policy, name)


def load_models(sections: Mapping[str, ModelSection]) -> list[ServedModel]:
    """Every model of the configuration. Raises one `ConfigError` with what is wrong with any of them."""
    models: list[ServedModel] = []
    problems: list[Problem] = []
    for name, section in sections.items():
        try:
            models.append(load_model(name, section))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return models


def load_model(name: str, section: ModelSection) -> ServedModel:
    """One model of the configuration. Raises `ConfigError`."""
    edge = load_edge(section.edge) if section.edge else None
    return ServedModel(name, edge, section.cloud.model if section.cloud else "")


def load_edge(side: EdgeSide) -> EdgeModel:
    """The edge side of a model, from its bundle or file. Raises `ConfigError`."""
    path, described_by = _files(side)
    runtime = load_runtime(path, side)
    # Whatever lies there is meant as the description, also where it turns out to be a folder or a broken link.
    description = load_yaml(described_by, ModelDescription) if os.path.lexists(described_by) else None
    processor = Processor(description, runtime.inputs, runtime.outputs, runtime.name)
    if runtime.placement.reason:
        _log.warning("%s runs on the CPU: %s", path, runtime.placement.reason)
    if side.file is not None:
        _log.warning("%s is a bare file without a bundle: nothing tests or verifies it", path)
    return EdgeModel(runtime, processor, model_digest(path), is_described=description is not None)


def _files(side: EdgeSide) -> tuple[Path, Path]:
    """The model file and the path where its description would be."""
    if side.file is not None:
        return side.file, side.file.with_suffix(".yaml")
    assert side.bundle is not None  # noqa: S101  the configuration has one of the two
    candidates = [side.bundle / f"model.{side.runtime}"] if side.runtime else _candidates(side.bundle)
    names = " or ".join(path.name for path in candidates)
    try:
        for path in candidates:
            if path.is_file():
                return path, side.bundle / "model.yaml"
        problem = "no such folder" if not side.bundle.is_dir() else f"no {names} in it"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    raise ConfigError.at(side.bundle, f"{problem}; expected a folder with {names}", "bundle")


def _candidates(bundle: Path) -> list[Path]:
    return [bundle / "model.onnx", bundle / "model.tflite"]


def warm_up(agent: Agent, name: str, edge: EdgeModel) -> None:
    """Run the model on zeros, and teach the router how long a request takes. Raises `ConfigError` if it cannot run."""
    zeros = {spec.name: _zeros(spec) for spec in edge.runtime.inputs}
    blank = {one.name: _BLANK_PICTURE if one.kind == "image" else _zeros(one.spec) for one in edge.signature.inputs}
    try:
        edge.runtime.run(zeros)  # pays for lazy initialization, and is no sample
        for _ in range(WARM_UP_RUNS):
            agent.router.observe(EdgeRan(name, 1, _timed_run(edge, blank, zeros)))
    except UpwellError as error:
        raise ConfigError.at(None, f"the model fails on a run with zeros: {error}", f"models.{name}.edge") from None


def _timed_run(edge: EdgeModel, blank: Mapping[str, Array], zeros: Mapping[str, Array]) -> float:
    """Seconds for a whole request, or for the bare model where what `model.yaml` describes takes no blank request."""
    try:
        return edge.run(blank, math.inf).duration_s
    except (InvalidRequest, ModelFailed):
        started_s = time.monotonic()
        edge.runtime.run(zeros)
        return time.monotonic() - started_s


def _zeros(spec: TensorSpec) -> Array:
    shape = tuple(1 if size < 0 else size for size in spec.shape)
    if spec.datatype == "BYTES":
        array = np.empty(shape, dtype=np.object_)
        array.fill(b"")
        return array
    return np.zeros(shape, dtype=numpy_dtype(spec.datatype))
