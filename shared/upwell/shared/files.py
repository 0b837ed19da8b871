"""Files: read within a limit, written whole or not at all, and confined to the folder that they belong to.

A name that comes from a stranger (from a bundle, a model.yaml, a model file, a split.json) leads to a plain file in the
folder that it belongs to, or it is refused. Else whoever made the bundle could read any file of the device."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from upwell.shared.errors import ConfigError

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def read_file(path: Path, what: str, max_bytes: int = 1 << 20) -> bytes:
    """The bytes of a small file. Raises `ConfigError` naming `what` it should have been."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError.at(path, f"cannot read {what}: {error.strerror or error}") from None
    if len(data) > max_bytes:
        raise ConfigError.at(path, f"{what} is larger than {max_bytes} bytes")
    return data


def read_json(path: Path, max_bytes: int = 1 << 20) -> Any:
    """What a plain file of JSON holds. Raises `OSError`, and `ValueError` for what is too large or no JSON."""
    with open_plain(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return parse_json(data)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, also where it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A new file, which takes the place of the one at `path` once the block is done, and is gone if that fails.

    It has the permissions of the file that it replaces; where there is none, those of `mode`, by default those of any
    new file. A link stays one. Raises `OSError`, also where something else than a plain file is in the way.
    """
    path = Path(os.path.realpath(path))
    permissions = _permissions(path, mode)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(draft, _NEW_FILE, 0o666 if permissions is None else permissions)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if permissions is not None:
            os.chmod(draft, permissions)  # whatever the umask took away
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    sync_folder(path.parent)


def _permissions(path: Path, mode: int | None) -> int | None:
    try:
        found = os.stat(path).st_mode
    except FileNotFoundError:
        return mode
    if stat.S_ISDIR(found):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "it is a device or a pipe; expected a plain file", str(path))
    return stat.S_IMODE(found)


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Put `data` at `path`, whole or not at all; `mode` as for `replacing`. Raises `OSError`."""
    with replacing(path, mode) as file:
        file.write(data)


def write_named(path: Path, data: bytes, option: str = "", like: Path | None = None) -> None:
    """Put `data`, whole or not at all, where a person wants it; `option` is how they said so.

    A new file has the permissions of the file `like`. Raises `ConfigError` where it cannot be written.
    """
    try:
        write_whole(path, data, None if like is None else stat.S_IMODE(like.stat().st_mode))
    except OSError as error:
        raise ConfigError.at(path, f"cannot be written: {error.strerror or error}", option) from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last. Where the system cannot do that for folders, nothing is done."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make all files under a folder last. Raises `OSError`."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class Unconfined(ValueError):
    """A name that may not be followed."""


class LeadsOut(Unconfined):
    """It leads out of the folder, perhaps by a link."""


class NoPlainFile(Unconfined):
    """There is no file of that name, or what is there is a folder, a pipe, a socket or a device."""


def confined(folder: Path, name: str | Path) -> Path:
    """What `name` leads to from `folder`, an absolute path without links, whether there is a file or not.

    A `Path` was put together already and is taken as it is; an absolute name may lead into the folder, too.
    Raises `LeadsOut`, and `NoPlainFile` for what can name no file.
    """
    try:
        within, path = folder.resolve(), (name if isinstance(name, Path) else folder / name).resolve()
    except (OSError, RuntimeError, ValueError):  # a name too long, links in a circle, a zero byte
        raise NoPlainFile(f"{str(name)!r} does not exist") from None
    if not path.is_relative_to(within):
        raise LeadsOut(f"{str(name)!r} points outside {folder}")
    return path


def plain_file(folder: Path, name: str | Path) -> Path:
    """As `confined`, of a plain file that is there. Raises `Unconfined`."""
    path = confined(folder, name)
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        is_plain = False
    if not is_plain:
        raise NoPlainFile(f"{str(name)!r} is not a regular file of {folder}")
    return path


def open_plain(path: Path) -> BufferedReader:
    """The plain file at `path`, open to be read.

    Raises `OSError`, also for a pipe, a socket or a device, which is neither opened nor waited for.
    """
    _check(os.stat(path).st_mode, path)  # first, since some devices act on being opened
    descriptor = os.open(path, _FLAGS)
    try:
        _check(os.fstat(descriptor).st_mode, path)  # again: another may be there by now
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device; expected a plain file", str(path))
