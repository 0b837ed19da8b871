"""What this side announces to the other in its server metadata."""

from __future__ import annotations

from importlib.metadata import version

from upwell.shared.signature.processor import versions


def extensions() -> tuple[str, ...]:
    """`upwell/MAJOR.MINOR`, and the library versions that decide whether both sides process pictures alike."""
    minor = ".".join(version("upwell").split(".")[:2])
    return (f"upwell/{minor}", *versions())
