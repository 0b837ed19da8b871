"""A simulated run over time: what the link carries, who answers, and how long that takes. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from upwell.shared.plot_style import ALARM, CLOUD, EDGE, INK, MUTED, STYLE
from upwell.shared.routing.reasons import DEGRADED, Route
from upwell.shared.routing.simulation.runs import Scene
from upwell.shared.routing.simulation.served import Served
from upwell.shared.tensors import Array

_UNDATED: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_MOST_BINS = 200
_KINDS = {"edge": EDGE, "cloud": CLOUD, "edge, degraded": ALARM, "no answer": INK}


def draw(scene: Scene, run: Sequence[Served], kind: str) -> bytes:
    """The picture as `kind`: png, svg or pdf."""
    with matplotlib.style.context(["default", dict(STYLE)]):  # whatever the user's own settings are
        figure = Figure(figsize=(12, 7), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        link, routes, latency = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 3))
        edges_s = _edges_s(run)
        _draw_link(link, scene, run, edges_s)
        _draw_routes(routes, run, edges_s)
        _draw_latency(latency, run)
        latency.set_xlim(edges_s[0], edges_s[-1])
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=_UNDATED[kind])
        return buffer.getvalue()


def _edges_s(run: Sequence[Served]) -> Array:
    """Bounds of bins of a second or more, at most `_MOST_BINS`."""
    first_s, last_s = run[0].request.t_s, run[-1].request.t_s
    bins = int(min(_MOST_BINS, max(1, last_s - first_s)))
    return np.linspace(first_s, max(last_s, first_s + 1.0), bins + 1)


def _draw_link(axes: Axes, scene: Scene, run: Sequence[Served], edges_s: Array) -> None:
    offered = np.array([scene.capacity.offered_bytes(at_s) for at_s in edges_s.tolist()])
    mbps = np.diff(offered) * 8e-6 / np.diff(edges_s)
    axes.stairs(mbps, edges_s, fill=True, color="#d5dee6", label="capacity")
    times_s = [one.request.t_s for one in run]
    axes.plot(times_s, [one.estimate_bits_per_s / 1e6 for one in run], color=INK, linewidth=0.9, label="estimate")
    axes.set(ylabel="uplink, Mbit/s", ylim=(0, max(float(mbps.max()) * 1.15, 1e-3)))
    _legend(axes, 2)


def _kind(served: Served) -> str:
    if served.route is None:
        return "no answer"
    if served.route is Route.CLOUD:
        return "cloud"
    return "edge, degraded" if served.reason in DEGRADED else "edge"


def _draw_routes(axes: Axes, run: Sequence[Served], edges_s: Array) -> None:
    times_s = {name: [one.request.t_s for one in run if _kind(one) == name] for name in _KINDS}
    counts = np.array([np.histogram(times, edges_s)[0] for times in times_s.values()])
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    bottom = np.zeros(len(edges_s) - 1)
    for (name, color), share in zip(_KINDS.items(), shares, strict=True):
        axes.stairs(bottom + share, edges_s, baseline=bottom, fill=True, color=color, label=name)
        bottom += share
    axes.set(ylabel="share of requests", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _legend(axes, len(_KINDS))


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, borderaxespad=0.2)


def _draw_latency(axes: Axes, run: Sequence[Served]) -> None:
    for name, color in _KINDS.items():
        chosen = [one for one in run if _kind(one) == name and one.route is not None]
        latencies_ms = [one.latency_s * 1e3 for one in chosen]
        axes.plot([one.request.t_s for one in chosen], latencies_ms, ".", markersize=3, color=color)
    deadlines_ms = [(one.deadline_s - one.request.t_s) * 1e3 for one in run]
    axes.plot([one.request.t_s for one in run], deadlines_ms, color=MUTED, linewidth=1, linestyle=(0, (5, 3)))
    axes.set(ylabel="latency, ms", xlabel="time, s", ylim=(0, None))
