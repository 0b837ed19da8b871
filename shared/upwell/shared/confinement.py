"""Files whose names come from a stranger: from a bundle, a model.yaml, a model file, a split.json.

Such a name leads to a plain file in the folder that it belongs to, or it is refused. Else whoever made the bundle could
have the device's token read as labels, or keep it waiting for ever at a pipe. Every such name is resolved here, and
every such file is opened here.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

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
        raise NoPlainFile(f"{str(name)!r} leads nowhere") from None
    if not path.is_relative_to(within):
        raise LeadsOut(f"{str(name)!r} leads out of {folder}")
    return path


def plain_file(folder: Path, name: str | Path) -> Path:
    """As `confined`, of a plain file that is there. Raises `Unconfined`."""
    path = confined(folder, name)
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        is_plain = False
    if not is_plain:
        raise NoPlainFile(f"{str(name)!r} is no plain file of {folder}")
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
