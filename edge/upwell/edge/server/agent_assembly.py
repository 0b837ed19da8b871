"""Assembling a running agent from its files: loading what `agent.yaml` names and warming it up."""

from __future__ import annotations

import json
import logging
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from upwell.edge.bundle.bundle import Bundle
from upwell.edge.config import AgentConfig, CloudSection, SpoolSection
from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.models.first_run import blank_request
from upwell.edge.models.model_config import ModelSection
from upwell.edge.models.plausible_outputs import implausible
from upwell.edge.observe.agent_health import release_part
from upwell.edge.observe.flight_recorder import LIMIT, UnknownRequest
from upwell.edge.policy.periodic_jobs import PeriodicJobs
from upwell.edge.policy.policy_file import check_policy
from upwell.edge.runtimes.input_check import run_on_zeros
from upwell.edge.runtimes.runtime_options import MAX_DEFAULT_THREADS
from upwell.edge.server.agent_core import AgentCore, AgentParts
from upwell.edge.server.state_dir import StateDir
from upwell.edge.updates.model_versions.model_start import ModelStart, Surroundings, clear_unpacked
from upwell.edge.updates.model_versions.model_switching import ModelSwitching
from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.config.security import TlsFiles
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing, InvalidRequest, ModelFailed, Problem, UpwellError
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.tensors import Array

if TYPE_CHECKING:  # imported where agent.yaml asks for them, since that takes long
    from upwell.edge.case_collection.case_delivery import CaseHome
    from upwell.edge.case_collection.cases_section import CasesSection
    from upwell.edge.fleet.device_facts import AgentView, Sections
    from upwell.edge.fleet.fleet_config import FleetSection
    from upwell.edge.fleet.fleet_poller import FleetPoller
    from upwell.edge.spool.result_sinks import Sink
    from upwell.edge.spool.spooled_request import SpoolLimits, SpoolResult
    from upwell.edge.updates.releases.release_control import ReleaseControl
    from upwell.edge.updates.releases.release_start import ReleaseStart
    from upwell.edge.updates.update_follower import UpdateFollower
    from upwell.edge.uplink.uplink import UplinkSettings
    from upwell.shared.telemetry.page_server import Page

WARM_UP_RUNS = 5

FOR_OTHER_CALLERS = ("listen", "listen_http", "tls", "tokens", "insecure", "limits", "max_requests", "log")
"""Keys of `agent` that have no effect in a program that embeds the agent."""

_log = logging.getLogger(__name__)


def assemble(config: AgentConfig, on_result: Callable[[SpoolResult], None] | None = None) -> AgentCore:
    """Build the agent of an `agent.yaml`, with its models loaded and warmed up. Raises `ConfigError` with every problem
    found."""
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
            cloud = _uplink_settings(config.cloud, section.max_message)
        release = _release(config, policy)
        starts, policy = load_newest(config, policy, release, on_failure)
        models = [start.served for start in starts]
        for model in models:
            if model.edge is not None:
                warm_up(model.name, model.edge)
            for head in model.heads:
                warm_up(model.name, head.edge)
        tracer = None
        if section.traces is not None:
            from upwell.shared.telemetry.open_collectors import open_tracer

            tracer = open_tracer(section.traces, "upwell-agent", section.name)
            on_failure.callback(tracer.delivery.close)
        parts = AgentParts(
            name=section.name,
            state_dir=state_dir,
            recorder_limit=LIMIT if section.flights is None else section.flights,
            spool=None if state_dir is None else _spool_limits(section.spool),
            sinks=_sinks(section.spool.results, on_result),
            tracer=tracer,
            policy_file=config.policy if release is None else None,
            followers=[start.follower for start in starts if start.follower is not None],
        )
        agent = AgentCore(models, cloud, policy, parts)
        on_failure.callback(agent.close)
        _keep_current(agent, starts, parts.followers)
        if release is not None:
            _follow_releases(agent, release, starts)
        poller = _report(agent, config) if config.fleet is not None or section.otlp is not None else None
        if section.cases is not None and state_dir is not None:
            _carry_cases(agent, section.cases, state_dir.path, poller)
        on_failure.pop_all()
    return agent


def _uplink_settings(section: CloudSection, max_message_bytes: int) -> UplinkSettings:
    """The way to the cloud; reports wrong files before models are loaded. Raises `ConfigError`."""
    from upwell.edge.uplink.uplink import UplinkSettings
    from upwell.shared.oip.open_client import open_client

    for endpoint in section.endpoints:
        open_client(endpoint, section.security, interface=next(iter(section.interfaces), "")).close()
    return UplinkSettings(section.endpoint, section.security, max_message_bytes, section.fallbacks, section.interfaces)


def _spool_limits(section: SpoolSection) -> SpoolLimits:
    from upwell.edge.spool.spooled_request import SpoolLimits

    return SpoolLimits(max_bytes=section.limit, max_age_s=section.max_age)


def _sinks(results: Path | None, on_result: Callable[[SpoolResult], None] | None) -> Sequence[Sink]:
    """The sinks of the cloud's answers to spooled cases."""
    if results is None and on_result is None:
        return ()
    from upwell.edge.spool.result_sinks import CallbackSink, JsonlSink

    found: list[Sink] = [] if results is None else [JsonlSink(results)]
    return found if on_result is None else [*found, CallbackSink(on_result)]


def _report(agent: AgentCore, config: AgentConfig) -> FleetPoller | None:
    """Report to a fleet service and a metrics collector until the agent is closed. Raises `ConfigError`."""
    from upwell.edge.fleet.device_facts import AgentView, DemandView, resource_attributes
    from upwell.shared.opamp import digest_of

    agent_digest = digest_of(config.model_dump_json().encode()).hex()
    view = AgentView(
        name=agent.name,
        labels={} if config.fleet is None else config.fleet.labels,
        health=agent.health_document,
        counts=agent.metrics.totals,
        now=partial(_link_and_spool, agent),
        drift=partial(_drift, agent),
        explain=partial(_explain, agent),
        configuration=lambda: {
            "agent.yaml": agent_digest,
            "policy.yaml": agent.router.digest,
            **{f"models/{name}": one.edge.digest for name, one in agent.models.items() if one.edge is not None},
        },
        demand=DemandView(agent.metrics.demand, agent.router.curve, agent.router.shares, agent.router.allow),
        release=agent.release,
        shadow=None if config.agent.state_dir is None else agent.shadow,
    )
    poller = None if config.fleet is None else _join_fleet(agent, config, config.fleet, view)
    if config.agent.otlp is not None:
        has_name = "name" in config.agent.model_fields_set
        instance = agent.name if has_name else platform.node()
        uid = "" if poller is None else poller.instance_uid
        from upwell.edge.observe.metric_families import counter_by
        from upwell.shared.telemetry.open_collectors import open_metrics_push

        push = open_metrics_push(
            config.agent.otlp, agent.metrics.registry.collect, partial(resource_attributes, view, instance, uid)
        )
        agent.close_with(push.close)
        text = "Pushes of the metrics, by outcome."
        agent.metrics.export(lambda: [counter_by("upwell_otlp_pushes", text, "became", push.became)])
    return poller


def _join_fleet(agent: AgentCore, config: AgentConfig, section: FleetSection, view: AgentView) -> FleetPoller:
    """Report to the fleet service. Raises `ConfigError`."""
    with ExtraMissing.on_import("bundle", "needs the package PACKAGE", "fleet"):
        from upwell.edge.fleet.device_identity import FOLDER_NAME
        from upwell.edge.fleet.fleet_poller import FleetPoller
    assert config.agent.state_dir is not None  # noqa: S101  the configuration was checked
    poller = FleetPoller(section, view, config.agent.state_dir / FOLDER_NAME)
    agent.close_with(poller.close)
    agent.describe_with("fleet", poller.describe)
    return poller


def _explain(agent: AgentCore, request: str) -> Sections:
    from upwell.edge.observe.explain_text import tell_elsewhere

    if agent.flight_recorder is None:
        raise UnknownRequest("without a `state_dir` no requests are recorded")
    return tell_elsewhere(agent.flight_recorder.find(request))


def _link_and_spool(agent: AgentCore) -> dict[str, float | None]:
    """The state of the link and of waiting cases for the fleet; None for unknown values."""
    state = agent.router.state
    links = [state.over(one).link for one in (state.interface, *state.others)]
    link = max(links, key=lambda one: one.last_at_s)  # of several interfaces the one last used
    inverse = link.inverse_bandwidth_s_per_byte
    found: dict[str, float | None] = {
        "rtt_s": link.rtt_s if math.isfinite(link.rtt_s) else None,
        "up_bytes_per_s": 1.0 / inverse if inverse > 0 else None,
    }
    if agent.spool is not None:
        from upwell.edge.spool.spooled_request import READ_TIMEOUT_S, SpoolUnavailable

        with suppress(SpoolUnavailable):
            held = agent.spool.held(READ_TIMEOUT_S)
            found |= {"spool_waiting": held.waiting, "spool_bytes": held.size_bytes}
    return found


def _drift(agent: AgentCore) -> dict[str, Any]:
    """The drift of each model's rows for the fleet, by model."""
    return {} if agent.drift is None else {name: one.document() for name, one in agent.drift.reports().items()}


def embedded_agent(path: Path, on_result: Callable[[SpoolResult], None] | None = None) -> AgentCore:
    """Build the agent for a program that embeds it: it serves its metrics, but no addresses for other callers.

    Raises `ConfigError`, also if the metrics cannot be served.
    """
    config = load_yaml(path, AgentConfig)
    section = config.agent
    ignored = [f"agent.{key}" for key in FOR_OTHER_CALLERS if key in section.model_fields_set]
    ignored += [] if config.pipelines is None else ["pipelines"]
    agent = assemble(config, on_result)
    if ignored:
        _log.warning("%s: ignored in an embedded agent; only `upwell agent` uses them: %s", path, ", ".join(ignored))
    if section.metrics is not None:
        try:
            _log.info("metrics on %s", serve_metrics(agent, section.metrics))
        except ConfigError:
            agent.close()
            raise
    return agent


def serve_metrics(agent: AgentCore, address: str, pages: Mapping[str, Page] | None = None) -> str:
    """Answer `GET /metrics`, `GET /health` and `pages` at `HOST:PORT` until the agent is closed; returns the metrics'
    address.

    Port 0 means any free port. Raises `ConfigError` if it cannot listen.
    """
    from upwell.shared.telemetry.page_server import PageReply, serve_pages

    where = parse_address(address)
    all_pages: dict[str, Page] = {
        **(pages or {}), "/health": lambda _: PageReply(json.dumps(agent.health_document()).encode())
    }  # fmt: skip
    server = serve_pages(where.host, where.port, agent.metrics.registry, "agent.metrics", all_pages)
    agent.close_with(server.server_close)
    agent.close_with(server.shutdown)  # called earlier: parts are closed in reverse order
    return f"http://{Address(where.host, server.server_port)}/metrics"


def _release(config: AgentConfig, local: Policy) -> ReleaseStart | None:
    """The device's releases; None if agent.yaml has no `release`."""
    section, state_dir = config.release, config.agent.state_dir
    if section is None or state_dir is None:
        return None
    from upwell.edge.updates.releases.release_start import ReleaseStart

    sides = [model.edge for model in config.models.values() if model.edge is not None]
    has_factory = all(side.has_source for side in sides)
    trust, configured = config.agent.trust.trust, config.model_dump_json()
    return ReleaseStart(section, state_dir, trust, local, has_factory=has_factory, configured=configured)


def load_newest(
    config: AgentConfig, local: Policy, release: ReleaseStart | None, on_failure: ExitStack
) -> tuple[list[ModelStart], Policy]:
    """Load every model and the policy from the newest release that is usable as a whole, else from agent.yaml.

    Raises `ConfigError` with the problem of the oldest.
    """
    has_state_dir = config.agent.state_dir is not None
    failure: ConfigError | None = None
    for sequence, stored, policy in [(0, None, local)] if release is None else release.candidates():
        with ExitStack() as attempt:
            try:
                starts = load_models(config, attempt, {} if stored is None else stored.bundles)
                check_policy(policy, [one.served for one in starts], config.policy, has_state_dir=has_state_dir)
            except ConfigError as error:
                failure = error
                if sequence:
                    _log.error("release %d is not used: %s", sequence, error)
                continue
            on_failure.push(attempt.pop_all())
            return starts, policy
    raise failure or ConfigError.at(None, "no installed release can be used", "release")


def _follow_releases(agent: AgentCore, release: ReleaseStart, starts: Sequence[ModelStart]) -> None:
    """Serve new releases as they come, and report their state."""
    from upwell.edge.observe.metric_families import release_families

    loads = {start.name: start for start in starts if start.name in agent.models}
    client, switching = release.follow(agent, loads, warm_up)
    agent.release = client
    agent.close_with(PeriodicJobs(switching.poll).close)
    agent.close_with(client.close)
    agent.describe_with("release", lambda: release_part(client, _other_clouds(agent, client)))
    agent.metrics.export(lambda: release_families(client))


def _other_clouds(agent: AgentCore, client: ReleaseControl) -> Mapping[str, str]:
    """Messages about models whose cloud model has another digest than the installed release was made with."""
    stored = client.installed
    said: dict[str, str] = {}
    if stored is None:
        return said
    for name, served in agent.models.items():
        wanted, found = stored.document.cloud.get(served.cloud_model, ""), agent.router.cloud_digest(name)
        if wanted and found and wanted != found:
            said[name] = f"the cloud's {served.cloud_model!r} is {found}; the release was made with {wanted}"
    return said


def load_models(
    config: AgentConfig, on_failure: ExitStack, bundles: Mapping[str, Bundle] = MappingProxyType({})
) -> list[ModelStart]:
    """Load every configured model, from `bundles` if it has one there.

    Raises one `ConfigError` with the problems of all of them.
    """
    around = Surroundings(config.agent.state_dir, config.agent.trust.trust, bundles)
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
    """The sections with the cores divided among the models on the device, so that these do not compete for them.

    A configured number of threads is kept.
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


def _carry_cases(agent: AgentCore, section: CasesSection, folder: Path, poller: FleetPoller | None) -> None:
    """Deliver cases until the agent is closed. Raises `ConfigError`."""
    from upwell.edge.case_collection.case_database import FILE_NAME as CASES_NAME
    from upwell.edge.case_collection.case_delivery import CaseCarrier, FolderHome
    from upwell.edge.observe.metric_families import counter_by

    home: CaseHome
    if section.to is not None:
        home = FolderHome(section.to, agent.name)
    else:
        from upwell.edge.fleet.case_upload import FleetHome, StorageHome

        assert poller is not None  # noqa: S101  the configuration was checked
        files = TlsFiles(ca=section.storage_ca)
        home = (
            FleetHome(poller.caller) if section.storage is None else StorageHome(section.storage, files, poller.caller)
        )
    carrier = CaseCarrier(section, home, folder / CASES_NAME, agent.router)
    agent.close_with(carrier.close)
    text = "Cases delivered, or why not."
    agent.metrics.export(lambda: [counter_by("upwell_cases_home", text, "became", carrier.counts())])


def _keep_current(agent: AgentCore, starts: Sequence[ModelStart], followers: Sequence[UpdateFollower]) -> None:
    """Serve accelerators once they are ready, and new versions as they come."""
    switching = ModelSwitching(agent, warm_up)
    if followers:
        agent.close_with(PeriodicJobs(*(start.carry_out_rollback for start in starts)).close)
    for start in starts:
        start.serve(switching)
        agent.close_with(start.close)
    if followers:
        from upwell.edge.updates.update_follower import UpdatePoller

        agent.close_with(UpdatePoller(followers).close)


def _warn_of_unknown_models(policy: Policy, config: AgentConfig) -> None:
    """Log models that the policy names but this agent lacks: a policy may be shared, but the name may be a typo."""
    named = set(policy.models)
    for rule in policy.rules:
        named.update(rule.match.models or ())
    for name in sorted(named - set(config.models)):
        _log.warning("%s names model %r, which this agent does not serve", config.policy, name)


def warm_up(name: str, edge: EdgeModel) -> None:
    """Run the model on zeros, and measure the time of a request. Raises `ConfigError` if it cannot run."""
    empty = blank_request(edge.signature)
    try:
        _timed_run(edge, empty)  # does lazy initialization, so it does not count
        runs = [_timed_run(edge, empty) for _ in range(WARM_UP_RUNS)]
    except UpwellError as error:
        raise ConfigError.at(None, f"the model fails on a run with zeros: {error}", f"models.{name}.edge") from None
    edge.durations_s = [run.duration_s for run in runs]
    remarks = implausible(edge.signature.outputs, runs[-1].outputs) if runs[-1].outputs else ()
    if remarks != edge.report.remarks:
        edge.report = replace(edge.report, remarks=remarks)
        for remark in remarks:
            _log.warning("model %s: on a run with zeros %s", name, remark)


def _timed_run(edge: EdgeModel, empty: Mapping[str, Array]) -> EdgeRun:
    """Time a whole request, or just the model (without outputs) if its processing does not accept a blank request."""
    try:
        return edge.run_now(empty)
    except (InvalidRequest, ModelFailed):
        zeros = run_on_zeros(edge.runtime)
        started_s = time.monotonic()
        edge.runtime.run(zeros)
        return EdgeRun({}, time.monotonic() - started_s, edge.digest)
