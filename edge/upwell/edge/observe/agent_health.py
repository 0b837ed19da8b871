"""The health of an agent's models: where each runs, the evidence, and why it is not where it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from upwell.edge.models.edge_model import EdgeModel, ModelHealth, ServedModel, State
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:
    from upwell.edge.updates.releases.release_control import ReleaseControl
    from upwell.edge.updates.update_follower import UpdateStatus
    from upwell.shared.routing.drift.model_drift import DriftReport

_STATES: tuple[State, ...] = get_args(State)
_NAMED_NODES = 10


def health_of(models: Iterable[ServedModel], misfit: Callable[[str], str]) -> Sequence[ModelHealth]:
    """The health of every model with an edge side, and of every loaded head, as `model/cut`.

    `misfit` gives the reason why no calibration fits a model.
    """
    found: list[ModelHealth] = []
    for model in models:
        if model.edge is not None:
            found.append(_health(model.name, model.edge, misfit(model.name)))
        found += [_health(head.split_route.key, head.edge) for head in model.heads]
    return found


def _health(name: str, edge: EdgeModel, misfit: str = "") -> ModelHealth:
    return ModelHealth(
        model=name,
        state=edge.state,
        runtime=edge.runtime.version,
        accelerator=edge.accelerator,
        placement=edge.runtime.placement,
        report=edge.report,
        version=edge.source.version,
        reason="" if edge.state == "ready" else _why(edge),
        uncalibrated=misfit,
    )


def _why(edge: EdgeModel) -> str:
    lost = edge.runtime.placement.reason
    return lost or "; ".join(f"{attempt.what}: {attempt.reason}" for attempt in edge.report.attempts)


def summary(health: ModelHealth) -> str:
    """One line: `digits 3: onnxruntime 1.31.1 on the CPU, checked by golden vectors; fallback: …`."""
    where = "the CPU"
    if health.accelerator:
        placement = health.placement
        where = f"{health.accelerator} ({placement.nodes_on_accelerator} of {placement.nodes} nodes)"
    name = f"{health.model} {health.version}" if health.version else health.model
    checked = "tested by " + health.report.checked_by if health.report.checked_by != "nothing" else "not tested"
    reason = "" if health.state == "ready" else f"; {health.state}" + (f": {health.reason}" if health.reason else "")
    reason += "".join(f"; {remark}" for remark in health.report.remarks)
    return f"{name}: {health.runtime} on {where}, {checked}{reason}"


@value_class
class HealthPart:
    """The health of something around the agent: facts for JSON, and problems in sentences."""

    facts: Mapping[str, Any]
    problems: Sequence[str] = ()


def release_part(client: ReleaseControl, cloud: Mapping[str, str]) -> HealthPart:
    """The device's releases; `cloud` describes models whose cloud version differs from the release's."""
    status = client.status()
    problems = [f"release {status.sequence}: {text}" for text in cloud.values()]
    problems += (
        [f"the release is {status.phase}: {status.reason}"] if status.phase in ("refused", "rolled_back") else []
    )
    return HealthPart({**asdict(status), "notice": client.notice}, problems)


def drift_part(reports: Mapping[str, DriftReport]) -> HealthPart:
    """Whether the models' inputs and answers still match their bundles' references.

    Drift is not a problem of the agent, which serves as before.
    """
    return HealthPart({name: report.document() for name, report in reports.items()})


def document(
    models: Sequence[ModelHealth],
    updates: Mapping[str, UpdateStatus],
    problems: Sequence[str],
    missing: Mapping[str, str],
    parts: Mapping[str, HealthPart],
) -> dict[str, Any]:
    """The document served at `/health`, ready for JSON.

    `status` is `ok`, or `degraded` if a model is not where it should be or the agent has `problems`. `missing` are the
    models that the cloud does not have, with their names there. `parts` are the parts around the agent, by their keys.
    """
    problems = [*problems, *(problem for part in parts.values() for problem in part.problems)]
    return {
        "status": "ok" if all(one.state == "ready" for one in models) and not problems else "degraded",
        "problems": list(problems),
        "models": {one.model: _described(one) for one in models},
        "updates": {model: asdict(status) for model, status in updates.items()},
        "cloud_model_missing": dict(missing),
        **{name: part.facts for name, part in parts.items()},
    }


def _described(health: ModelHealth) -> dict[str, Any]:
    described = asdict(health)
    described["accelerator"] = health.accelerator or "cpu"
    del described["placement"]["refused"]  # `reason` names the latest
    left = health.placement.left_on_cpu
    described["placement"]["left_on_cpu"] = [*left[:_NAMED_NODES], *(["…"] if len(left) > _NAMED_NODES else [])]
    return described
