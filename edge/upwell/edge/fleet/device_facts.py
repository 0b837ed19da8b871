"""A device's facts as values, taken from the agent and compared with what the service already knows."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from upwell.edge.observe.agent_metrics import ModelTotals
from upwell.edge.observe.shadow_release import ShadowRelease
from upwell.shared.opamp import AGENT_NAME, INSTANCE_UID, LABEL, ModelDemand

Sections = Sequence[tuple[str, list[str]]]
"""Headings, each with its lines."""


class ReleaseState(Protocol):
    """The device's state of releases."""

    @property
    def sequence(self) -> int:
        """The release that runs; 0 for what agent.yaml names."""

    @property
    def phase(self) -> str:
        """`serving`, `fetching`, `trial`, `refused` or `rolled_back`."""

    @property
    def reason(self) -> str:
        """Why the last release offered does not run or cannot be fetched; empty if there is no problem."""


class ReleaseChooser(Protocol):
    """Accepts the choice of a release among those signed with the release key."""

    def choose(self, sequence: int | None, not_before_unix_s: float | None = None, shadow: int | None = None) -> None:
        """Run that release from that time on; None means the newest. `shadow` runs in shadow. Unsuitable releases are
        refused."""

    def status(self) -> ReleaseState:
        """The present state."""


ENOUGH_REQUESTS = 30
"""Minimum number of requests for stating which share of them the policy wants to offload."""

MOST_MODELS = 64


@dataclass(frozen=True)
class DemandView:
    """The figures by which a fleet's budget is divided. `totals` grow from the start of the process, `curve` gives
    (share, risk) of a model, `shares` are those in force, and `allow` sets them."""

    totals: Callable[[], Mapping[str, ModelTotals]]
    curve: Callable[[str], Sequence[tuple[float, float]]]
    shares: Callable[[], Mapping[str, float]]
    allow: Callable[[Mapping[str, float]], None]


@dataclass(frozen=True)
class AgentView:
    """The agent as the fleet code sees it. `health` is the document of `/health`, `counts` grow from the start of the
    process, `now` is the state of link and spool, `drift` is the document of each watched model, `explain` describes
    one request (raises `UpwellError`), `configuration` has the digests of the files in force.
    """

    name: str
    labels: Mapping[str, str]
    health: Callable[[], Mapping[str, Any]]
    counts: Callable[[], Mapping[str, int]]
    now: Callable[[], Mapping[str, Any]]
    drift: Callable[[], Mapping[str, Any]]
    explain: Callable[[str], Sections]
    configuration: Callable[[], Mapping[str, str]]
    demand: DemandView
    release: ReleaseChooser | None = None
    shadow: ShadowRelease | None = None


def attributes(view: AgentView, instance_uid: str) -> dict[str, str]:
    """The device's attributes, and what runs each of its models."""
    found = {
        "service.name": "io.upwell.agent", "service.version": version("upwell"), "service.instance.id": instance_uid,
        AGENT_NAME: view.name, "os.type": platform.system().lower(), "os.version": platform.release(),
        "host.arch": platform.machine(), "host.name": platform.node(), "host.model": _board(),
    }  # fmt: skip
    for model, one in view.health().get("models", {}).items():
        placement = one.get("placement", {})
        found[f"upwell.model.{model}.runtime"] = str(one.get("runtime", ""))
        nodes = f"{placement.get('nodes_on_accelerator', 0)} of {placement.get('nodes', 0)} nodes"
        found[f"upwell.model.{model}.accelerator"] = f"{one.get('accelerator', 'cpu')} ({nodes})"
    return {key: value for key, value in found.items() if value} | {
        LABEL + key: one for key, one in view.labels.items()
    }


def resource_attributes(view: AgentView, instance: str, instance_uid: str) -> dict[str, str]:
    """The origin of metrics, by OpenTelemetry's names: the device, its version of Upwell, its release and its labels.

    What runs each model is in the metrics themselves.
    """
    found = {key: one for key, one in attributes(view, instance).items() if not key.startswith("upwell.model.")}
    release = {} if view.release is None else {"upwell.release": str(view.release.status().sequence)}
    return found | release | {"service.name": "upwell-agent"} | ({INSTANCE_UID: instance_uid} if instance_uid else {})


def _board() -> str:
    """The board's model, from its device tree."""
    with suppress(OSError):
        return Path("/proc/device-tree/model").read_bytes()[:100].decode("utf-8", "replace").strip("\0\n ")
    return ""


def within_bytes(documents: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """As many of the documents as fit into `max_bytes` of JSON; those with `findings` first."""
    found: dict[str, Any] = {}
    for name, one in sorted(documents.items(), key=lambda item: not item[1].get("findings")):
        size_bytes = len(json.dumps({name: one}))
        if size_bytes <= max_bytes:
            found[name] = one
            max_bytes -= size_bytes
    return found


@dataclass
class DemandRates:
    """Demand as rates over the time since the last report."""

    _before: Mapping[str, ModelTotals] = field(default_factory=dict)
    _at_s: float | None = None

    def rates(self, view: AgentView, now_s: float) -> tuple[dict[str, Any], Callable[[], None]]:
        """`ModelDemand` by model, and a function to call once they are reported. `now_s` is monotonic."""
        totals = view.demand.totals()
        elapsed_s = math.inf if self._at_s is None else max(1e-3, now_s - self._at_s)
        found = {}
        for model, total in list(totals.items())[:MOST_MODELS]:
            came = total.since(self._before.get(model, ModelTotals()))
            curve = view.demand.curve(model)
            found[model] = ModelDemand(
                requests_per_s=came.requests / elapsed_s,
                request_bytes=total.sent_bytes / total.up if total.up else 0.0,
                wanted=min(1.0, came.wanted / came.requests) if came.requests >= ENOUGH_REQUESTS else 1.0,
                share=view.demand.shares().get(model),
                shares=tuple(round(share, 4) for share, _ in curve),
                risks=tuple(round(risk, 4) for _, risk in curve),
            ).model_dump()

        def is_said() -> None:
            self._before, self._at_s = totals, now_s

        return ({} if self._at_s is None else found), is_said


_OF_THE_DEVICE = "uplink_bytes"
"""The count that budgets add up, whatever the release."""


@dataclass
class ReleaseCounts:
    """Counts of a process per release: they start over when the release changes.

    What was counted between the last two updates then belongs to neither: most of it is the former release's, while the
    device was busy with fetching and testing the new one.
    """

    since_unix_s: float = field(default_factory=time.time)
    release: int | None = None
    _before: Mapping[str, int] = field(default_factory=dict)
    _last: Mapping[str, int] = field(default_factory=dict)

    def update(self, release: int | None, counts: Mapping[str, int], now_unix_s: float) -> dict[str, int]:
        """The counts under the present release."""
        if release != self.release:
            self.release, self.since_unix_s = release, now_unix_s
            sent = self._last.get(_OF_THE_DEVICE, 0)
            self._before = {**counts, _OF_THE_DEVICE: sent} if self._last else {}
        self._last = dict(counts)
        return {name: count - self._before.get(name, 0) for name, count in counts.items()}
