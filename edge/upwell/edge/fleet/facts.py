"""What a device says of itself, as values: taken from the agent, and compared with what the service knows already."""

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

from upwell.edge.observe.metrics import ModelTotals
from upwell.shared.opamp.demand import ModelDemand
from upwell.shared.opamp.names import AGENT_NAME, INSTANCE_UID, LABEL

Sections = Sequence[tuple[str, list[str]]]
"""Headings, each with its lines."""


class ReleaseState(Protocol):
    """How it stands with releases."""

    @property
    def sequence(self) -> int:
        """The release that runs; 0 for what agent.yaml names."""

    @property
    def phase(self) -> str:
        """`serving`, `fetching`, `trial`, `refused` or `rolled_back`."""

    @property
    def reason(self) -> str:
        """Why the last one that was offered does not run, or cannot be fetched; empty where there is no such reason."""


class ReleaseChooser(Protocol):
    """Who takes the choice of a release: among those that the holder of the release key has signed."""

    def choose(self, sequence: int | None, not_before_unix_s: float | None = None, shadow: int | None = None) -> None:
        """Run that release, from then on; None: the newest. `shadow` runs beside. What may not run is refused."""

    def status(self) -> ReleaseState:
        """How it stands."""


class ShadowReport(Protocol):
    """Lines of the request log of a release that runs beside, and why it does not, if it does not."""

    @property
    def release(self) -> int:
        """Its sequence."""

    @property
    def lines(self) -> Sequence[str]:
        """Each is JSON."""

    @property
    def problem(self) -> str:
        """Empty where it runs."""


class ShadowTeller(Protocol):
    """What a release that runs beside has recorded, for the service to calibrate it."""

    def news(self) -> ShadowReport | None:
        """What is to be told next; None for nothing."""

    def told(self, news: Any) -> None:
        """That was heard."""


ENOUGH_REQUESTS = 30
"""Of fewer requests nobody says which share of them the policy wants up."""

MOST_MODELS = 64


@dataclass(frozen=True)
class DemandView:
    """What a budget of the fleet is shared out by. `totals` grow from the start of the process on, `curve` has (share,
    risk) of a model, `shares` are those in force, and `allow` sets them."""

    totals: Callable[[], Mapping[str, ModelTotals]]
    curve: Callable[[str], Sequence[tuple[float, float]]]
    shares: Callable[[], Mapping[str, float]]
    allow: Callable[[Mapping[str, float]], None]


@dataclass(frozen=True)
class AgentView:
    """What the fleet's side sees of the agent. `health` is the document of `/health`, `counts` grow from the start of
    the process on, `now` is how link and spool stand, `drift` is the document of each model that is watched, `explain`
    tells of one request (raises `UpwellError`), `configuration` are digests of what is in force.
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
    shadow: ShadowTeller | None = None


def attributes(view: AgentView, instance_uid: str) -> dict[str, str]:
    """What the device is, and what runs its models where."""
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
    """Whose metrics they are, in OpenTelemetry's names: the device, its version of Upwell, its release and its labels.

    What runs each model is in the metrics themselves.
    """
    found = {key: one for key, one in attributes(view, instance).items() if not key.startswith("upwell.model.")}
    release = {} if view.release is None else {"upwell.release": str(view.release.status().sequence)}
    return found | release | {"service.name": "upwell-agent"} | ({INSTANCE_UID: instance_uid} if instance_uid else {})


def _board() -> str:
    """The model of a board that has a device tree."""
    with suppress(OSError):
        return Path("/proc/device-tree/model").read_bytes()[:100].decode("utf-8", "replace").strip("\0\n ")
    return ""


def within_bytes(documents: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """As many of the documents as fit into so many bytes of JSON; those with `findings` go first."""
    found: dict[str, Any] = {}
    for name, one in sorted(documents.items(), key=lambda item: not item[1].get("findings")):
        size_bytes = len(json.dumps({name: one}))
        if size_bytes <= max_bytes:
            found[name] = one
            max_bytes -= size_bytes
    return found


@dataclass
class DemandRates:
    """Demand as rates: of the time since it was last said."""

    _before: Mapping[str, ModelTotals] = field(default_factory=dict)
    _at_s: float | None = None

    def rates(self, view: AgentView, now_s: float) -> tuple[dict[str, Any], Callable[[], None]]:
        """`ModelDemand` by model, and what to call once that was said. `now_s` is monotonic."""
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


@dataclass
class ReleaseCounts:
    """Counts of a process, told apart by the release that it ran: each begins anew when that changes."""

    since_unix_s: float = field(default_factory=time.time)
    release: int | None = None
    _before: Mapping[str, int] = field(default_factory=dict)
    _last: Mapping[str, int] = field(default_factory=dict)

    def update(self, release: int | None, counts: Mapping[str, int], now_unix_s: float) -> dict[str, int]:
        """What was counted under the release that runs now."""
        if release != self.release:
            self.release, self.since_unix_s, self._before = release, now_unix_s, self._last
        self._last = dict(counts)
        return {name: count - self._before.get(name, 0) for name, count in counts.items()}
