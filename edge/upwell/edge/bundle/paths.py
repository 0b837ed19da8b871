"""Which paths a file of a bundle may have: those that mean the same file on every system, inside the bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_PATH_CHARS = 100
"""What the plainest tar header holds."""

_PART = re.compile(r"[A-Za-z0-9_+@=](?:[A-Za-z0-9_+@=., -]*[A-Za-z0-9_+@=,-])?")
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))])


def why_unfit(path: str) -> str:
    """Why `path` cannot be the path of a file in a bundle; empty where it can.

    Parts are joined by `/` and made of ASCII letters, digits, space and `_+@=.,-`, beginning with a letter, digit or
    one of `_+@=`, so none is `..`, hidden, a Windows drive or stream, or spelt in two ways in Unicode.
    """
    if path.startswith("/") or ".." in path.split("/"):
        return "it leads out of the bundle"
    if len(path) > MAX_PATH_CHARS:
        return f"it is longer than {MAX_PATH_CHARS} characters"
    for part in path.split("/"):
        if part.startswith("."):
            return "hidden files do not belong in a bundle"
        if not _PART.fullmatch(part):
            return "expected names of letters, digits, spaces and _+@=.,- that begin with a letter or digit"
        if part.partition(".")[0].lower() in _DEVICES:
            return f"{part!r} is a device on Windows"
    return ""


def first_clash(files: Iterable[str], folders: Iterable[str] = ()) -> tuple[str, str] | None:
    """Two paths that some file system would take for the same, or of which one is a file and the other is in it."""
    seen: dict[str, tuple[str, bool]] = {}  # by lower case: the spelling, and whether it is a file
    for path, is_file in [*((path, False) for path in folders), *((path, True) for path in files)]:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            prefix, is_leaf = "/".join(parts[:count]), is_file and count == len(parts)
            before = seen.get(prefix.lower())
            if before is not None and (is_leaf or before != (prefix, False)):
                return before[0], path
            seen[prefix.lower()] = (prefix, is_leaf)
    return None
