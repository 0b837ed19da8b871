"""The token that a client sends, from a file."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file
from upwell.shared.platform.watched_files import WatchedFiles


def watch_token(path: Path | None) -> WatchedFiles[str] | None:
    """The token in that file, reloaded on change; None without a file. Raises `ConfigError`."""
    return WatchedFiles([path], lambda: read_token(path)) if path else None


def read_token(path: Path) -> str:
    """The token in a client's token file: one line of visible ASCII. Raises `ConfigError`, which does not show it."""
    data = read_file(path, "the token", max_bytes=4096).strip()
    if not data or any(not 0x21 <= byte <= 0x7E for byte in data):
        raise ConfigError.at(path, "expected a single token of visible ASCII characters without spaces")
    return data.decode("ascii")
