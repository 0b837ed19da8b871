"""What each side announces to the other in its server metadata."""

from __future__ import annotations

from importlib.metadata import version

from upwell.shared.signature.processor import versions


def extensions() -> tuple[str, ...]:
    """`upwell/MAJOR.MINOR`, and the versions of the libraries that process pictures on both sides."""
    minor = ".".join(version("upwell").split(".")[:2])
    return (f"upwell/{minor}", *versions())
