"""The plots of `upwell policy calibrate` and `upwell policy simulate`. Need matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from upwell.shared.routing.calibration.pair_calibration import CalibrationResult
from upwell.shared.routing.calibration.threshold_choice import found
from upwell.shared.routing.reasons import DEGRADED, Route
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome
from upwell.shared.routing.simulation.strategies import Scene
from upwell.shared.tensors import Array
from upwell.tools.plot_style import ALARM, CLOUD, EDGE, INK, MUTED, picture

_POINTS = 150


def draw_calibrations(calibrations: Sequence[CalibrationResult], kind: str) -> bytes:
    """A panel for each calibration, as a file of the kind `.png`, `.svg` or `.pdf`."""

    def draw(figure: Figure) -> None:
        for axes, one in zip(figure.subplots(len(calibrations), squeeze=False)[:, 0], calibrations, strict=True):
            _panel(axes, one)

    return picture(draw, kind, (6.5, 4.2 * len(calibrations)))


def _panel(axes: Axes, one: CalibrationResult) -> None:
    cuts = one.sample.cuts()
    chosen_cuts = cuts[np.unique(np.linspace(0, len(cuts) - 1, _POINTS).astype(int))]
    line = [found(one.sample, float(cut), one.target.confidence) for cut in chosen_cuts]
    shares = [point.share for point in line]
    axes.plot(shares, [point.risk for point in line], color=EDGE, label="kept by the device and wrong")
    bound = f"upper bound at {one.target.confidence:.4g} confidence"
    axes.plot(shares, [point.risk_bound for point in line], color=EDGE, linestyle=":", label=bound)
    chosen = one.chosen
    axes.vlines(chosen.share, chosen.risk, chosen.risk_bound, color=ALARM)
    axes.plot([chosen.share], [chosen.risk], "o", color=ALARM, label=f"chosen: {chosen.share:.1%} offloaded")
    if one.target.is_share:
        axes.axvline(one.target.cloud_share, color=MUTED, linewidth=1, linestyle="--", label="requested share")
    else:
        axes.axhline(one.target.max_risk, color=MUTED, linewidth=1, linestyle="--", label="requested risk")
    axes.set_title(f"{one.model}: {one.hard.measure}, {chosen.requests} requests", parse_math=False)
    axes.set_xlabel("share of requests offloaded")
    axes.set_ylabel("share of all requests")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()


_MOST_BINS = 200
_KINDS = {"edge": EDGE, "cloud": CLOUD, "edge, degraded": ALARM, "no answer": INK}


def draw_simulation(scene: Scene, run: Sequence[SimulatedOutcome], kind: str) -> bytes:
    """Link, routes and latency over time, as a file of the kind `.png`, `.svg` or `.pdf`."""

    def draw(figure: Figure) -> None:
        link, routes, latency = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 3))
        edges_s = _edges_s(run)
        _draw_link(link, scene, run, edges_s)
        _draw_routes(routes, run, edges_s)
        _draw_latency(latency, run)
        latency.set_xlim(edges_s[0], edges_s[-1])

    return picture(draw, kind, (12, 7), dpi=130)


def _edges_s(run: Sequence[SimulatedOutcome]) -> Array:
    """Edges of bins of at least a second, at most `_MOST_BINS` bins."""
    first_s, last_s = run[0].request.t_s, run[-1].request.t_s
    bins = int(min(_MOST_BINS, max(1, last_s - first_s)))
    return np.linspace(first_s, max(last_s, first_s + 1.0), bins + 1)


def _draw_link(axes: Axes, scene: Scene, run: Sequence[SimulatedOutcome], edges_s: Array) -> None:
    offered = np.array([scene.capacity.offered_bytes(at_s) for at_s in edges_s.tolist()])
    mbps = np.diff(offered) * 8e-6 / np.diff(edges_s)
    axes.stairs(mbps, edges_s, fill=True, color="#d5dee6", label="capacity")
    times_s = [one.request.t_s for one in run]
    axes.plot(times_s, [one.estimate_bits_per_s / 1e6 for one in run], color=INK, linewidth=0.9, label="estimate")
    axes.set(ylabel="uplink, Mbit/s", ylim=(0, max(float(mbps.max()) * 1.15, 1e-3)))
    _legend(axes, 2)


def _kind(served: SimulatedOutcome) -> str:
    if served.route is None:
        return "no answer"
    if served.route is Route.CLOUD:
        return "cloud"
    return "edge, degraded" if served.reason in DEGRADED else "edge"


def _draw_routes(axes: Axes, run: Sequence[SimulatedOutcome], edges_s: Array) -> None:
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


def _draw_latency(axes: Axes, run: Sequence[SimulatedOutcome]) -> None:
    for name, color in _KINDS.items():
        chosen = [one for one in run if _kind(one) == name and one.route is not None]
        latencies_ms = [one.latency_s * 1e3 for one in chosen]
        axes.plot([one.request.t_s for one in chosen], latencies_ms, ".", markersize=3, color=color)
    deadlines_ms = [(one.deadline_s - one.request.t_s) * 1e3 for one in run]
    axes.plot([one.request.t_s for one in run], deadlines_ms, color=MUTED, linewidth=1, linestyle=(0, (5, 3)))
    axes.set(ylabel="latency, ms", xlabel="time, s", ylim=(0, None))
