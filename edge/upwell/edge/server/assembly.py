"""From files to a running agent: load what `agent.yaml` names, warm it up, put it together."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from upwell.edge.config import AgentConfig
from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.models.plausible import implausible
from upwell.edge.models.sections import ModelSection
from upwell.edge.policy.housekeeping import Housekeeping
from upwell.edge.policy.policy_check import check_policy
from upwell.edge.runtimes.inputs import blank
from upwell.edge.runtimes.options import MAX_DEFAULT_THREADS, usable_cores
from upwell.edge.server.core import AgentCore, AgentParts, CoreT
from upwell.edge.server.state_dir import StateDir
from upwell.edge.spool.item import SpoolLimits, SpoolResult
from upwell.edge.spool.sinks import CallbackSink, JsonlSink, Sink
from upwell.edge.updates.follower import UpdateFollower
from upwell.edge.updates.model_start import ModelStart, Surroundings, clear_unpacked
from upwell.edge.updates.switching import Switching
from upwell.edge.updates.updater import Updater
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import Address, parse_address
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Problem, UpwellError
from upwell.shared.oip.open_client import open_client
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.telemetry.exposition import Page, PageReply, serve_pages
from upwell.shared.telemetry.open_tracer import open_tracer
from upwell.shared.tensors import Array

WARM_UP_RUNS = 5

FOR_OTHER_CALLERS = ("listen", "listen_http", "tls", "tokens", "insecure", "limits", "max_requests", "log")
"""Keys of `agent` that mean nothing in a program that holds the agent."""

_BLANK_PICTURE = np.zeros((1, 224, 224, 3), np.uint8)

_log = logging.getLogger(__name__)


def assemble(
    made_as: type[CoreT], config: AgentConfig, on_result: Callable[[SpoolResult], None] | None = None
) -> CoreT:
    """The agent of an `agent.yaml`, its models loaded and warmed up. Raises `ConfigError` with every problem found."""
    policy = load_yaml(config.policy, Policy) if config.policy else Policy()
    _warn_of_unknown_models(policy, config)
    section, cloud = config.agent, None
    with ExitStack() as on_failure:
        state_dir = None
        if section.state_dir is not None:
            state_dir = StateDir(section.state_dir)
            on_failure.callback(state_dir.close)
            if state_dir.problem:
                _log.error("%s", state_dir.explained)
            clear_unpacked(state_dir.path)
        if config.cloud is not None:
            for endpoint in config.cloud.endpoints:  # what is wrong with the files is said before models are loaded
                open_client(endpoint, config.cloud.security).close()
            cloud = UplinkSettings(
                config.cloud.endpoint, config.cloud.security, section.max_message, config.cloud.fallbacks
            )
        starts = load_models(config, on_failure)
        models = [start.served for start in starts]
        check_policy(policy, models, config.policy, has_state_dir=state_dir is not None)
        for model in models:
            if model.edge is not None:
                warm_up(model.name, model.edge)
            for head in model.heads:
                warm_up(model.name, head.edge)
        tracer = open_tracer(section.traces, "upwell-agent", section.name) if section.traces else None
        if tracer is not None:
            on_failure.callback(tracer.delivery.close)
        sinks: list[Sink] = [] if section.spool.results is None else [JsonlSink(section.spool.results)]
        if on_result is not None:
            sinks.append(CallbackSink(on_result))
        parts = AgentParts(
            name=section.name,
            state_dir=state_dir,
            recorder_limit=section.flights,
            spool=SpoolLimits(max_bytes=section.spool.limit, max_age_s=section.spool.max_age),
            sinks=sinks,
            tracer=tracer,
            policy_file=config.policy,
            followers=[start.follower for start in starts if start.follower is not None],
        )
        agent = made_as(models, cloud, policy, parts)
        on_failure.callback(agent.close)
        _keep_current(agent, starts, parts.followers)
        on_failure.pop_all()
    return agent


def embedded_agent(made_as: type[CoreT], path: Path, on_result: Callable[[SpoolResult], None] | None = None) -> CoreT:
    """The same in a program that calls it itself: it serves its metrics, and what others would call is left out.

    Raises `ConfigError` also where the metrics cannot be served.
    """
    config = load_yaml(path, AgentConfig)
    section = config.agent
    ignored = [f"agent.{key}" for key in FOR_OTHER_CALLERS if key in section.model_fields_set]
    ignored += [] if config.pipelines is None else ["pipelines"]
    agent = assemble(made_as, config, on_result)
    if ignored:
        _log.warning(
            "%s: ignored where a program embeds the agent; only `upwell agent` uses them: %s", path, ", ".join(ignored)
        )
    if section.metrics is not None:
        try:
            _log.info("metrics on %s", serve_metrics(agent, section.metrics))
        except ConfigError:
            agent.close()
            raise
    return agent


def serve_metrics(agent: AgentCore, address: str, pages: Mapping[str, Page] | None = None) -> str:
    """Answer `GET /metrics`, `GET /health` and `pages` at `HOST:PORT` until the agent is closed; where the metrics are.

    Port 0 takes a free one. Raises `ConfigError` where it cannot listen.
    """
    where = parse_address(address)
    all_pages: dict[str, Page] = {
        **(pages or {}), "/health": lambda _: PageReply(json.dumps(agent.health_document()).encode())
    }  # fmt: skip
    server = serve_pages(where.host, where.port, agent.metrics.registry, "agent.metrics", all_pages)
    agent.close_with(server.server_close)
    agent.close_with(server.shutdown)  # called before: parts are closed in the reverse order
    return f"http://{Address(where.host, server.server_port)}/metrics"


def load_models(config: AgentConfig, on_failure: ExitStack) -> list[ModelStart]:
    """Every model of the configuration. Raises one `ConfigError` with what is wrong with any of them."""
    around = Surroundings(config.agent.state_dir, config.agent.trust.trust)
    starts: list[ModelStart] = []
    problems: list[Problem] = []
    for name, section in _shared_out(config.models).items():
        try:
            start = ModelStart(name, section, around)
            on_failure.callback(start.close)
            if start.served.edge is not None:
                on_failure.callback(start.served.edge.close)
            for head in start.served.heads:
                on_failure.callback(head.edge.close)
            starts.append(start)
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return starts


def _shared_out(sections: Mapping[str, ModelSection]) -> Mapping[str, ModelSection]:
    """The sections with the cores divided among the models on the device, so that two do not fight for them.

    One that says how many threads it wants keeps them.
    """
    on_device = sum(section.edge is not None for section in sections.values())
    if on_device < 2:
        return sections
    threads = max(1, min(MAX_DEFAULT_THREADS, usable_cores() // on_device))
    shared = {}
    for name, section in sections.items():
        edge = section.edge
        if edge is not None and edge.threads is None:
            edge = edge.model_copy(update={"threads": threads, "instances": edge.instances or 1})
        shared[name] = section.model_copy(update={"edge": edge})
    return shared


def _keep_current(agent: AgentCore, starts: Sequence[ModelStart], followers: Sequence[UpdateFollower]) -> None:
    """Serve accelerators once they are ready, and new versions as they come."""
    switching = Switching(agent, warm_up)
    if followers:
        agent.close_with(Housekeeping(*(start.carry_out_rollback for start in starts)).close)
    for start in starts:
        start.serve(switching)
        agent.close_with(start.close)
    agent.close_with(Updater(followers).close)


def _warn_of_unknown_models(policy: Policy, config: AgentConfig) -> None:
    """A policy may serve many agents, so a model that this one lacks is no error; a misspelt one is worth a line."""
    named = set(policy.models)
    for rule in policy.rules:
        named.update([rule.match.model] if isinstance(rule.match.model, str) else rule.match.model or [])
    for name in sorted(named - set(config.models)):
        _log.warning("%s names the model %r, which this agent does not serve", config.policy, name)


def warm_up(name: str, edge: EdgeModel) -> None:
    """Run the model on zeros, and note how long a request takes. Raises `ConfigError` if it cannot run."""
    zeros = {spec.name: blank(spec.datatype, spec.shape) for spec in edge.runtime.inputs}
    empty = {
        one.name: _BLANK_PICTURE if one.kind == "image" else blank(one.spec.datatype, one.spec.shape)
        for one in edge.signature.inputs
    }
    try:
        edge.runtime.run(zeros)  # pays for lazy initialization, and is no sample
        runs = [_timed_run(edge, empty, zeros) for _ in range(WARM_UP_RUNS)]
    except UpwellError as error:
        raise ConfigError.at(None, f"the model fails on a run with zeros: {error}", f"models.{name}.edge") from None
    edge.durations_s = [run.duration_s for run in runs]
    remarks = implausible(edge.signature.outputs, runs[-1].outputs) if runs[-1].outputs else ()
    if remarks != edge.report.remarks:
        edge.report = replace(edge.report, remarks=remarks)
        for remark in remarks:
            _log.warning("model %s: on a run with zeros %s", name, remark)


def _timed_run(edge: EdgeModel, empty: Mapping[str, Array], zeros: Mapping[str, Array]) -> EdgeRun:
    """A whole request, or the bare model, without outputs, where what `model.yaml` describes takes no blank request."""
    try:
        return edge.run_now(empty)
    except (InvalidRequest, ModelFailed):
        started_s = time.monotonic()
        edge.runtime.run(zeros)
        return EdgeRun({}, time.monotonic() - started_s, edge.digest)
