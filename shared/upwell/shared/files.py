"""Files: read within a size limit, written atomically, and confined to their folder.

A name from an untrusted file (a bundle, a model.yaml, a model file, a split.json) must lead to a regular file in the
folder of that file, or it is refused. Otherwise the author of a bundle could read any file of the device."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

from upwell.shared.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.new")


def read_file(path: Path, what: str, max_bytes: int = 1 << 20) -> bytes:
    """The bytes of a small file. Raises `ConfigError`, which names `what` the file should have been."""
    with ConfigError.on_os_error(path, f"cannot read {what}"), path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ConfigError.at(path, f"{what} is larger than {max_bytes} bytes")
    return data


def read_json(path: Path, max_bytes: int = 1 << 20) -> Any:
    """The value in a regular JSON file. Raises `OSError`, and `ValueError` if it is too large or not JSON."""
    with open_plain(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return parse_json(data)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, also if it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextlib.contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A new file that replaces the one at `path` when the block succeeds, and is removed when it fails.

    It gets the permissions of the replaced file, else `mode`, by default those of any new file. A link stays a link.
    Raises `OSError`, also if `path` is not a regular file.
    """
    path = Path(os.path.realpath(path))
    permissions = _permissions(path, mode)
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    descriptor = os.open(draft, _NEW_FILE, 0o666 if permissions is None else permissions)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if permissions is not None:
            with contextlib.suppress(PermissionError):  # a USB stick or share of another user keeps none of ours
                os.chmod(draft, permissions)  # despite the umask
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
    """Write `data` to `path` atomically; `mode` as for `replacing`. Raises `OSError`."""
    with replacing(path, mode) as file:
        file.write(data)


def remove_drafts(folder: Path) -> None:
    """Remove what `replacing` left under a folder when the power failed. Nobody else may write there meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in filter(_DRAFT.fullmatch, names):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))


class StateFile:
    """A private JSON file that outlives the process, for what is not worth an outage: failures are only logged.

    `what` names its contents, `loss` says what holds where they cannot be read.
    """

    def __init__(self, path: Path, what: str, loss: str, max_bytes: int = 1 << 20) -> None:
        self.path = path
        self._what, self._loss, self._max_bytes = what, loss, max_bytes
        self._has_failed = False

    def read(self, parse: Callable[[Any], T], otherwise: T) -> T:
        """The file's value as `parse` makes it; `otherwise` if there is none, or none that `parse` takes."""
        try:
            return parse(read_json(self.path, self._max_bytes))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            reason = error if isinstance(error, OSError) else type(error).__name__  # no text that may quote the file
            _log.warning("%s: %s cannot be read (%s): %s", self.path, self._what, reason, self._loss)
        return otherwise

    def write(self, value: Any) -> bool:
        """Replace the file, or remove it for None; returns whether that succeeded."""
        try:
            if value is None:
                self.path.unlink(missing_ok=True)
            else:
                write_whole(self.path, json.dumps(value).encode(), 0o600)
        except OSError as error:
            if not self._has_failed:
                _log.warning("%s: %s cannot be saved: %s", self.path, self._what, error.strerror)
            self._has_failed = True
            return False
        self._has_failed = False
        return True


def write_named(path: Path, data: bytes, option: str = "", like: Path | None = None) -> None:
    """Write `data` atomically to a path that a person chose with `option`.

    A new file gets the permissions of the file `like`. Raises `ConfigError` if it cannot be written.
    """
    with ConfigError.on_os_error(path, "cannot be written", option):
        write_whole(path, data, None if like is None else stat.S_IMODE(like.stat().st_mode))


@contextlib.contextmanager
def new_folder(path: Path, option: str = "", *, replaces: bool = False) -> Iterator[Path]:
    """A folder that appears at `path`, which a person chose with `option`, once the block has succeeded.

    There must be none yet, unless it `replaces` that. One that a killed process left behind (a name with a dot and
    `.new`) is removed. Raises `ConfigError`.
    """
    import shutil  # which no running agent needs

    if not replaces and os.path.lexists(path):
        raise ConfigError.at(path, "already exists; expected a new folder", option)
    real = Path(os.path.realpath(path))
    draft, old = (real.with_name(f".{real.name}.{os.urandom(4).hex()}.{kind}") for kind in ("new", "old"))
    with ConfigError.on_os_error(path, "cannot be written", option):
        try:
            real.parent.mkdir(parents=True, exist_ok=True)
            for left in unfinished(real):
                shutil.rmtree(left, ignore_errors=True)
            draft.mkdir()
            yield draft
            sync_tree(draft)
            if replaces and real.exists():
                real.rename(old)
            try:
                draft.rename(real)
            except OSError:
                if old.exists():
                    old.rename(real)
                raise
            sync_folder(real.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            if real.exists():  # else the former one could not be put back, and stays under its other name
                shutil.rmtree(old, ignore_errors=True)


def unfinished(path: Path) -> Iterator[Path]:
    """What `new_folder` is writing for `path`, and what killed processes left of it."""
    import glob

    return path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.new")


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk. Does nothing if the system cannot sync folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync all files under a folder to disk. Raises `OSError`."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class Unconfined(ValueError):
    """A name that must not be followed."""


class LeadsOut(Unconfined):
    """The name leads out of the folder, perhaps by a link."""


class NoPlainFile(Unconfined):
    """The name has no file, or belongs to a folder, a pipe, a socket or a device."""


def confined(folder: Path, name: str | Path) -> Path:
    """The absolute path, without links, to which `name` leads from `folder`; the file need not exist.

    An absolute name is accepted if it leads into the folder; a `Path` is used unchanged. Raises `LeadsOut`, and
    `NoPlainFile` for what cannot be a file name.
    """
    try:
        within, path = folder.resolve(), (name if isinstance(name, Path) else folder / name).resolve()
    except (OSError, RuntimeError, ValueError):  # name too long, circular links, NUL character
        raise NoPlainFile(f"{str(name)!r} does not exist") from None
    if not path.is_relative_to(within):
        raise LeadsOut(f"{str(name)!r} points outside {folder}")
    return path


def plain_file(folder: Path, name: str | Path) -> Path:
    """As `confined`, for a regular file that exists. Raises `Unconfined`."""
    path = confined(folder, name)
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        is_plain = False
    if not is_plain:
        raise NoPlainFile(f"{str(name)!r} is not a regular file of {folder}")
    return path


def open_plain(path: Path) -> BufferedReader:
    """Open the regular file at `path` for reading.

    Raises `OSError`, also for a pipe, a socket or a device, which is neither opened nor waited for.
    """
    require_plain(os.stat(path).st_mode, path)  # before opening, since some devices act on being opened
    descriptor = os.open(path, _FLAGS)
    try:
        require_plain(os.fstat(descriptor).st_mode, path)  # again, since it may have been replaced
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_plain(mode: int, path: Path) -> None:
    """Raise `OSError` unless this is the mode of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device; expected a plain file", str(path))


_TAIL_BYTES = 1 << 16


@contextlib.contextmanager
def open_log(path: Path, *, keeps_mode: bool = False) -> Iterator[int]:
    """Open a file of lines for reading and appending; an incomplete last line, left by a dying process, is removed.

    A missing one is created with mode 0600; an existing one gets it, unless it `keeps_mode`. Raises `OSError`.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
    file = os.open(path, flags, 0o600)
    try:
        require_plain(os.fstat(file).st_mode, path)  # writing to a full pipe would wait for ever
        if not keeps_mode:
            os.chmod(path, 0o600)
        if _cut_torn_line(file):
            _log.warning("%s ended in the middle of a line, which was removed", path)
        yield file
    finally:
        os.close(file)


def lock_file(file: int, *, waits: bool = False) -> bool:
    """Lock an open file until it is closed; false if another process has locked it. With `waits` it is waited for.

    True, too, where files cannot be locked (Windows, some network shares).
    """
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        _log.debug("no lock: %s", error)
    return True


def append_line(file: int, text: bytes) -> None:
    """Append whole lines or nothing. Raises `OSError`."""
    before_bytes = os.fstat(file).st_size
    try:
        while text:  # a write that is cut short has an error to tell at the next one
            text = text[os.write(file, text) :]
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(file, before_bytes)
        raise


def _cut_torn_line(file: int) -> bool:
    end = keep = os.fstat(file).st_size
    while keep > 0:
        start = max(0, keep - _TAIL_BYTES)
        os.lseek(file, start, os.SEEK_SET)
        newline = os.read(file, keep - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep != end:
        os.ftruncate(file, keep)
    return keep != end
