"""The style of all plots of this project, and how they are saved. Drawing needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upwell.shared.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED = "#22303c", "#7b8794"
EDGE, CLOUD, HYBRID, ALARM = "#2a78b8", "#e07b27", "#2f9e63", "#c8374a"

_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6eaee",
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "svg.hashsalt": "upwell",
}
"""The style for `matplotlib.style.context`; the salt makes plots of equal data equal files."""
_UNDATED: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def check_plot(path: Path | None) -> None:
    """Raise `ConfigError` if the plot that `--plot` asks for cannot be drawn."""
    if path is None:
        return
    if path.suffix.lower().removeprefix(".") not in _UNDATED:
        expected = ", ".join(f".{kind}" for kind in _UNDATED)
        raise ConfigError.at(path, f"expected a file that ends in {expected}", "--plot")
    if find_spec("matplotlib") is None:
        raise ConfigError.at(None, "needs matplotlib: pip install 'upwell[plot]'", "--plot")


def picture(
    draw: Callable[[Figure], None], kind: str, size: tuple[float, float], dpi: int = 150, **style: Any
) -> bytes:
    """What `draw` puts on a figure of `size` inches, as a file of a `kind` given by its suffix: png, svg or pdf."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind = kind.lower().removeprefix(".")
    with matplotlib.style.context(["default", {**_STYLE, **style}]):  # ignores the user's own settings
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=_UNDATED[kind])
        return buffer.getvalue()
