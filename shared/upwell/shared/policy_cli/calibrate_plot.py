"""The picture of a calibration: what each share of requests in the cloud leaves as risk. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from upwell.shared.plot_style import ALARM, EDGE, MUTED, STYLE
from upwell.shared.routing.calibration.calibrate import Calibration
from upwell.shared.routing.calibration.choosing import found

_POINTS = 150


def draw(calibrations: Sequence[Calibration], kind: str) -> bytes:
    """A panel for each calibration, as a file of the kind `png`, `svg` or `pdf`."""
    with matplotlib.style.context(["default", dict(STYLE)]):  # whatever the user's own settings are
        figure = Figure(figsize=(6.5, 4.2 * len(calibrations)), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        for axes, one in zip(figure.subplots(len(calibrations), squeeze=False)[:, 0], calibrations, strict=True):
            _panel(axes, one)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind)
        return buffer.getvalue()


def _panel(axes: Axes, one: Calibration) -> None:
    cuts = one.sample.cuts()
    chosen_cuts = cuts[np.unique(np.linspace(0, len(cuts) - 1, _POINTS).astype(int))]
    line = [found(one.sample, float(cut), one.target.confidence) for cut in chosen_cuts]
    shares = [point.share for point in line]
    axes.plot(shares, [point.risk for point in line], color=EDGE, label="kept by the device and wrong")
    bound = f"upper bound at {one.target.confidence:.4g} confidence"
    axes.plot(shares, [point.risk_bound for point in line], color=EDGE, linestyle=":", label=bound)
    chosen = one.chosen
    axes.vlines(chosen.share, chosen.risk, chosen.risk_bound, color=ALARM)
    axes.plot([chosen.share], [chosen.risk], "o", color=ALARM, label=f"chosen: {chosen.share:.1%} go up")
    if one.target.is_share:
        axes.axvline(one.target.cloud_share, color=MUTED, linewidth=1, linestyle="--", label="share asked for")
    else:
        axes.axhline(one.target.max_risk, color=MUTED, linewidth=1, linestyle="--", label="risk asked for")
    axes.set_title(f"{one.model}: {one.hard.measure}, {chosen.requests} requests", parse_math=False)
    axes.set_xlabel("share of requests that go up")
    axes.set_ylabel("share of all requests")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()
