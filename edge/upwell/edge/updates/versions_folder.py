"""The folder of a model's versions in the `state_dir`."""

from __future__ import annotations

import hashlib
import string

FOLDER_NAME = "bundles"
ORDER_NAME = "rollback.json"
"""An order to go back to the version before."""
ANSWER_NAME = "rollback-answer.json"

_LONGEST_NAME = 100
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "-_")


def encoded(model: str) -> str:
    """A model's name as that of a folder: safe on every file system, and of no two models the same.

    Lower-case letters, digits, `-` and `_` stand for themselves, everything else for its bytes in UTF-8.
    """
    text = "".join(
        char if char in _PLAIN else "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in model
    )
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[:_LONGEST_NAME]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"
