"""The demo's plot: the effect of a threshold, and what callers get when the cloud dies. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from upwell.shared.routing.policy.settings import HardSettings, Settings
from upwell.tools.demo.demo_requests import DemoOutcome, Outage, Summary, ThresholdSweep
from upwell.tools.demo.digit_data import DIGITS
from upwell.tools.plot_style import ALARM, CLOUD, EDGE, HYBRID, INK, MUTED, picture

_TITLES: Mapping[str, Any] = {"axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlepad": 12}


def draw(
    runs: Mapping[str, Summary], every: ThresholdSweep, singles: ThresholdSweep, outage: Outage, settings: Settings
) -> bytes:
    """Draw the plot as PNG.

    `every` and `singles` are the results of other thresholds for all requests and for single digits alone; `settings`
    are those of the hybrid run and the outage.
    """

    def on(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_threshold(left, runs, every, singles, settings)
        _draw_outage(right, outage, settings.deadline_s)

    return picture(on, "png", (11.5, 4.6), **_TITLES)


def _draw_threshold(
    axes: Axes, runs: Mapping[str, Summary], every: ThresholdSweep, singles: ThresholdSweep, settings: Settings
) -> None:
    edge, cloud, hybrid = (runs[name] for name in ("edge_only", "cloud_only", "hybrid"))
    for run, color, name in ((edge, EDGE, "edge only"), (cloud, CLOUD, "cloud only")):
        axes.axhline(run.accuracy, color=color, linewidth=1.5, linestyle=(0, (5, 3)))
        _note(axes, f"{name}  {run.accuracy:.1%}", (1, run.accuracy), (0, 4), color, ha="right")
    axes.plot(singles.shares, singles.accuracies, color=MUTED, linewidth=1.5, label="single digits alone")
    axes.plot(every.shares, every.accuracies, color=INK, linewidth=2.2, label="all, pages always sent up")
    hard = settings.hard or HardSettings()
    threshold = f"hybrid, {hard.measure} threshold {hard.threshold:g}"
    for run, label in ((hybrid.kinds[DIGITS], "_"), (hybrid, threshold)):
        point: dict[str, Any] = {"markersize": 11, "markeredgecolor": "white", "zorder": 5, "linestyle": "none"}
        axes.plot(run.cloud_share, run.accuracy, "o", color=HYBRID, label=label, **point)
    parts = (("all", hybrid), ("single digits", hybrid.kinds[DIGITS]))
    text = "\n".join(f"{name}: {run.accuracy:.1%} with {run.cloud_share:.0%} sent up" for name, run in parts)
    _note(axes, text, (hybrid.cloud_share, hybrid.accuracy), (14, -46), HYBRID, weight="bold")
    axes.set(title="What a threshold buys", xlabel="share of requests sent up", ylabel="digits read correctly")
    axes.set_xlim(0, 1)
    low = min(edge.accuracy, *singles.accuracies, *every.accuracies)
    high = max(cloud.accuracy, *singles.accuracies, *every.accuracies)
    axes.set_ylim(low - 0.1 * (high - low) - 1e-3, high + 0.12 * (high - low) + 1e-3)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g}%"))
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.42), numpoints=1)


def _draw_outage(axes: Axes, outage: Outage, deadline_s: float) -> None:
    every = [*outage.before.outcomes, *outage.after.outcomes]
    start_s = every[0].began_s
    groups = (
        ("device", EDGE, [one for one in every if not one.from_cloud and not _is_degraded(one)]),
        ("cloud", CLOUD, [one for one in every if one.from_cloud]),
        ("device for the cloud (degraded)", ALARM, [one for one in every if _is_degraded(one)]),
    )
    for name, color, outcomes in groups:
        times = [one.began_s - start_s for one in outcomes]
        axes.scatter(times, [one.elapsed_s * 1e3 for one in outcomes], s=14, color=color, linewidths=0, label=name)
    axes.axvline(outage.killed_at_s - start_s, color=ALARM, linewidth=1.5)
    axes.axhline(deadline_s * 1e3, color=MUTED, linewidth=1.5, linestyle=(0, (5, 3)))
    _note(axes, f"deadline {deadline_s * 1e3:.0f} ms", (0, deadline_s * 1e3), (4, 4), MUTED)
    _note(axes, "cloud killed", (outage.killed_at_s - start_s, deadline_s * 1e3), (6, -14), ALARM, weight="bold")
    fastest_ms = min(one.elapsed_s for one in every) * 1e3
    axes.set(title="The cloud dies, answers keep coming", xlabel="seconds", ylabel="answered after, ms", yscale="log")
    axes.set_ylim(fastest_ms * 0.6, max(deadline_s * 1e3, np.max([one.elapsed_s for one in every]) * 1e3) * 1.8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, handletextpad=0.1)


def _note(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], color: str, **style: Any
) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", color=color, **style)


def _is_degraded(outcome: DemoOutcome) -> bool:
    return outcome.answer is not None and outcome.answer.degraded
