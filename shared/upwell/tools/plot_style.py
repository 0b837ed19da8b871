"""How every picture of this project looks: colours by meaning, and matplotlib's settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

INK, MUTED = "#22303c", "#7b8794"
EDGE, CLOUD, HYBRID, ALARM = "#2a78b8", "#e07b27", "#2f9e63", "#c8374a"

STYLE: Mapping[str, Any] = MappingProxyType(
    {
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
)
"""For `matplotlib.style.context`; the salt makes two pictures of the same data the same file."""
