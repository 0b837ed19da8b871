"""The plot of an advice: the cost of each option at each bandwidth, and the least. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from upwell.shared.partition.objectives import Objective
from upwell.shared.partition.split_advice import Advice, Option
from upwell.shared.tensors import Array
from upwell.tools.plot_style import CLOUD, EDGE, HYBRID, INK, MUTED, picture

_COLORS = {"edge": EDGE, "cloud": CLOUD, "cut": HYBRID}
_MEASURED, _INTERPOLATED = ("-", "--", "-.", (0, (6, 2, 1, 2, 1, 2))), (0, (1, 1.2))
_POINTS = 400


def draw(advice: Advice, measured: Sequence[Option], objective: Objective, title: str, kind: str) -> bytes:
    """Draw the plot as `kind`: .png, .svg or .pdf. `measured` are cuts to draw faintly beside the options."""

    def on(figure: Figure) -> None:
        _panel(figure.subplots(), advice, measured, objective, title)

    return picture(on, kind, (8, 5))


def _panel(axes: Axes, advice: Advice, measured: Sequence[Option], objective: Objective, title: str) -> None:
    mbps = _mbps(advice)
    named = objective.name + (f", {objective.unit}" if objective.unit else "")
    scale, label = (1e3, "latency, ms") if objective.name == "latency" else (1.0, named)
    for index, option in enumerate(measured):
        name = "other measured cuts" if not index else None
        axes.plot(mbps, _values(option, mbps) * scale, color=HYBRID, linewidth=0.6, alpha=0.45, label=name)
    drawn = dict.fromkeys(_COLORS, 0)
    for option in advice.options:
        style = _MEASURED[drawn[option.kind] % len(_MEASURED)] if option.is_measured else _INTERPOLATED
        drawn[option.kind] += option.is_measured
        name = option.name + ("" if option.is_measured else ", interpolated")
        values, color = _values(option, mbps) * scale, _COLORS[option.kind]
        axes.plot(mbps, values, linestyle=style, color=color, linewidth=1.5, label=name)
    least = np.min([_values(piece.line.of, mbps) for piece in advice.wins], axis=0)
    axes.plot(mbps, least * scale, color=INK, linewidth=6, alpha=0.18, label="the best of all")
    corners = np.array([piece.to_bps / 1e6 for piece in advice.wins[:-1]])
    axes.plot(corners, np.interp(corners, mbps, least * scale), "o", color=INK, markersize=4)
    axes.axvline(1e-6 / advice.inverse, color=MUTED, linewidth=1, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="uplink, Mbit/s", ylabel=label, xlim=(mbps[0], mbps[-1]))
    axes.set_title(title, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    # Values hundreds of times worse than the best of a slow link do not matter.
    axes.set_ylim(float(least.min()) * scale / 2, float(least.max()) * scale * 20)
    axes.legend(fontsize=8)


def _mbps(advice: Advice) -> Array:
    """Bandwidths from well below the first breakpoint to well above the last, including the current one."""
    corners = [1e-6 / advice.inverse, *(piece.to_bps / 1e6 for piece in advice.wins[:-1])]
    return np.geomspace(min(0.1, *corners) / 3, max(100.0, *corners) * 3, _POINTS)


def _values(option: Option, mbps: Array) -> Array:
    return np.maximum(option.value.base + option.value.slope * 1e-6 / mbps, 1e-12)
