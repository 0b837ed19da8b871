"""Sinks on the device's own disk: events as lines of a file, and their pictures in a folder."""

from __future__ import annotations

import hashlib
import os
import re
from bisect import insort
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from urllib.parse import quote

from upwell.pipelines.sinks.base import Message, Poisonous, SinkUnavailable
from upwell.pipelines.sinks.sink_settings import JsonlSettings, PicturesSettings
from upwell.shared.files import append_line, open_log, parse_json, sync_folder, write_whole

_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-.+\.jpg")
_DRAFT = re.compile(r"\.\d{8}T\d{6}\.\d{3}Z-.+\.jpg\.[0-9a-f]{8}\.new")
_PART_CHARACTERS = 100
_DIGEST_CHARACTERS = 16


class JsonlFile:
    """Appends each message's body as one line. A line counts once it is on disk, and is never written by halves.

    The file is rotated at half of its limit; the previous one is `<name>.1`. Both have mode 0600. A line that a dying
    process left unfinished is removed at the next start. The file may be moved away at any time.
    """

    leaves_device = False

    def __init__(self, settings: JsonlSettings) -> None:
        self._path = settings.path
        self._half_bytes = settings.limit_bytes // 2
        self.name = f"jsonl:{settings.path.absolute()}"
        if self._path.exists():
            # Opening cuts off a torn line. A failure shows again in `deliver`.
            with suppress(OSError), open_log(self._path):
                pass

    def deliver(self, messages: Sequence[Message]) -> None:
        """Append these messages."""
        lines = [message.body.replace(b"\n", b" ") + b"\n" for message in messages]  # JSON strings have no newline
        taken = 0
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while taken < len(lines):
                if len(lines[taken]) > self._half_bytes:
                    raise Poisonous(taken, f"it has {len(lines[taken])} bytes, more than half of the file's limit")
                taken += self._append(lines[taken:])
        except OSError as error:
            raise SinkUnavailable(f"{self._path}: {error.strerror or error}", taken=taken) from None

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _append(self, lines: Sequence[bytes]) -> int:
        """Append as many as fit into the file, at least one after rotating it if none does; return their number."""
        with open_log(self._path) as file:
            size_bytes = os.fstat(file).st_size
            fitting: list[bytes] = []
            left_bytes = self._half_bytes - size_bytes
            for line in lines:
                if (left_bytes := left_bytes - len(line)) < 0:
                    break
                fitting.append(line)
            if fitting:
                append_line(file, b"".join(fitting))
                os.fsync(file)
                if size_bytes == 0:
                    sync_folder(self._path.parent)
                return len(fitting)
        os.replace(self._path, f"{self._path}.1")
        return 0


class PictureFolder:
    """Writes the picture of each message that has one, atomically, and removes the oldest pictures to make room.

    A file is named `<UTC time of capture>-<event>-<id>.jpg`, so that names sort by time and a second delivery
    replaces the first. Other files of the folder are neither touched nor counted.
    """

    leaves_device = False

    def __init__(self, settings: PicturesSettings) -> None:
        self._folder = settings.folder
        self._limit_bytes = settings.limit_bytes
        self._sizes: dict[str, int] | None = None
        self._names: list[str] = []
        self._held_bytes = 0
        self.name = f"pictures:{settings.folder.absolute()}"

    def deliver(self, messages: Sequence[Message]) -> None:
        """Write the pictures of these messages."""
        for index, message in enumerate(messages):
            size_bytes = len(message.picture)
            if size_bytes > self._limit_bytes:
                raise Poisonous(index, f"its picture has {size_bytes} bytes, more than the folder's limit")
            if size_bytes:
                try:
                    self._write(picture_name(message), message.picture)
                except OSError as error:
                    text = f"{self._folder}: {error.strerror or error}"
                    raise SinkUnavailable(text, taken=index) from None

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _write(self, name: str, picture: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes = self._look()
        if name in sizes:
            self._remove(name, sizes)
        while self._names and self._held_bytes + len(picture) > self._limit_bytes:
            self._remove(self._names[0], sizes)
        write_whole(self._folder / name, picture, 0o600)
        sizes[name] = len(picture)
        insort(self._names, name)
        self._held_bytes += len(picture)

    def _remove(self, name: str, sizes: dict[str, int]) -> None:
        with suppress(FileNotFoundError):  # deleted by someone else
            (self._folder / name).unlink()
        self._names.remove(name)
        self._held_bytes -= sizes.pop(name)

    def _look(self) -> dict[str, int]:
        """The size of each picture in the folder, read once. Removes what a dying process left unfinished."""
        if self._sizes is None:
            sizes: dict[str, int] = {}
            for path in self._folder.iterdir():
                if _NAME.fullmatch(path.name) and path.is_file():
                    sizes[path.name] = path.stat().st_size
                elif _DRAFT.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            self._sizes, self._names, self._held_bytes = sizes, sorted(sizes), sum(sizes.values())
        return self._sizes


def picture_name(message: Message) -> str:
    """The file name for the message's picture; safe for any event and id."""
    try:
        captured = datetime.fromtimestamp(float(parse_json(message.body)["captured_unix_s"]), timezone.utc)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        captured = datetime.fromtimestamp(0, timezone.utc)
    time = f"{captured:%Y%m%dT%H%M%S}.{captured.microsecond // 1000:03d}Z"
    return f"{time}-{_part(message.event)}-{_part(message.key)}.jpg"


def _part(text: str) -> str:
    """The text as a part of a file name: without separators, and bounded in length."""
    escaped = quote(text, safe="", errors="replace")
    if len(escaped) <= _PART_CHARACTERS:
        return escaped
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGEST_CHARACTERS]
    return escaped[: _PART_CHARACTERS - _DIGEST_CHARACTERS] + digest
