"""Who has a device open, over all processes of this machine.

Opening some devices breaks whoever has them open already (a second process that opens a USB accelerator unplugs it from
the first), so nothing may try one out while it is in use. Locks are files in the machine's temporary folder, held by
`flock`: shared while a device is open, exclusively while it is tried out. They end with the process, however that ends.
Agents with temporary folders of their own do not see each other's, and on Windows there are none.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_POLL_S = 0.02


class DeviceBusy(Exception):
    """Somebody else has the device open, or is trying it out; or there is no telling."""


class DeviceLock:
    """A lock that is held until `release`, which may be called twice, and by whoever has inherited `descriptors`."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    def release(self) -> None:
        """Let others have the device."""
        while self.descriptors:
            with suppress(OSError):
                os.close(self.descriptors.pop())


def hold(library: str, options: Mapping[str, str], patience_s: float) -> DeviceLock:
    """The lock of whoever has the device open; any number of processes may hold it.

    Waits up to `patience_s` for somebody who tries the device out, then raises `DeviceBusy`.
    """
    every, device, _ = _names(library, options)
    return _wait(lambda: _lock([every, device], exclusive=False), patience_s)


def try_out(library: str, options: Mapping[str, str], patience_s: float) -> DeviceLock:
    """The lock of the one process that tries the device out.

    Waits up to `patience_s` for another that tries it out. Raises `DeviceBusy`, at once where it is in use.
    """
    every, device, any_device = _names(library, options)
    names = [every] if device == any_device else [device, any_device]

    def attempt() -> DeviceLock | None:
        shared = _lock(names, exclusive=False)  # which who uses it lets others have, and who tries it out does not
        if shared is None:
            return None
        shared.release()
        alone = _lock(names, exclusive=True)
        if alone is None:
            raise DeviceBusy("the device is open already")
        return alone

    return _wait(attempt, patience_s)


def _wait(attempt: Callable[[], DeviceLock | None], patience_s: float) -> DeviceLock:
    until_s = time.monotonic() + patience_s
    while True:
        lock = attempt()
        if lock is not None:
            return lock
        if time.monotonic() >= until_s:
            raise DeviceBusy("another process is trying the device out")
        time.sleep(_POLL_S)


def _names(library: str, options: Mapping[str, str]) -> tuple[str, str, str]:
    """Lock files: of the library, of the device that the options name, and of whoever names none.

    Who names no device may be on any. So to try out a named device neither it nor any unnamed one may be in use, and to
    try out an unnamed one no device of the library may be.
    """
    named = sorted((key, value) for key, value in options.items() if "device" in key.lower())

    def name(part: object) -> str:
        return f"upwell-device-{hashlib.sha256(repr((library, part)).encode()).hexdigest()[:32]}.lock"

    return name("every"), name(named), name([])


def _lock(names: list[str], *, exclusive: bool) -> DeviceLock | None:
    """All of these, or None where another lock forbids one. Raises `DeviceBusy` where a file cannot be used."""
    descriptors: list[int] = []
    lock = DeviceLock(descriptors)
    try:
        for name in names if fcntl is not None else ():
            descriptors.append(_opened(Path(tempfile.gettempdir()) / name))
            fcntl.flock(descriptors[-1], (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        lock.release()
        if error.errno == errno.EWOULDBLOCK:
            return None
        raise DeviceBusy(f"the device's lock file {error.filename} cannot be used: {error.strerror}") from None
    return lock


def _opened(path: Path) -> int:
    """The lock file, made if missing. Read-only, so that it serves every user, whoever made it; never a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(2):
        try:
            # Without O_CREAT: in a folder like /tmp that is refused for another user's file (fs.protected_regular).
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
            except FileExistsError:
                continue
            os.fchmod(descriptor, 0o444)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        return descriptor
    raise OSError(errno.EAGAIN, "it comes and goes", str(path))
