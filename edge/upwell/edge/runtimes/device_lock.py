"""Locks on accelerator devices, across all processes of this machine.

Opening some devices breaks the process that already uses them (a second process that opens a USB accelerator
disconnects the first), so a device must not be probed while in use. Locks are files in the machine's temporary folder,
held by `flock`: shared while a device is open, exclusive while it is probed. They end with the process, however that
ends. Agents with separate temporary folders do not see each other's locks, and Windows has none.
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
    """Another process has the device open or is probing it; or that is unknown."""


class DeviceLock:
    """A lock held until `release`, which may be called twice; processes that inherit `descriptors` hold it too."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    def release(self) -> None:
        """Release the device."""
        while self.descriptors:
            with suppress(OSError):
                os.close(self.descriptors.pop())


def hold(library: str, options: Mapping[str, str], patience_s: float) -> DeviceLock:
    """Take the shared lock for using the device; any number of processes may hold it.

    Waits up to `patience_s` for a process that probes the device, then raises `DeviceBusy`.
    """
    every, device, _ = _names(library, options)
    return _wait(lambda: _lock([every, device], exclusive=False), patience_s)


def try_out(library: str, options: Mapping[str, str], patience_s: float) -> DeviceLock:
    """Take the exclusive lock for probing the device.

    Waits up to `patience_s` for another probing process. Raises `DeviceBusy`, at once if the device is in use.
    """
    every, device, any_device = _names(library, options)
    names = [every] if device == any_device else [device, any_device]

    def attempt() -> DeviceLock | None:
        shared = _lock(names, exclusive=False)  # compatible with users of the device, but not with a probing process
        if shared is None:
            return None
        shared.release()
        alone = _lock(names, exclusive=True)
        if alone is None:
            raise DeviceBusy("the device is already open")
        return alone

    return _wait(attempt, patience_s)


def _wait(attempt: Callable[[], DeviceLock | None], patience_s: float) -> DeviceLock:
    until_s = time.monotonic() + patience_s
    while True:
        lock = attempt()
        if lock is not None:
            return lock
        if time.monotonic() >= until_s:
            raise DeviceBusy("another process is probing the device")
        time.sleep(_POLL_S)


def _names(library: str, options: Mapping[str, str]) -> tuple[str, str, str]:
    """The lock files of the library, of the device that the options name, and of users that name no device.

    A user that names no device may be on any. So probing a named device requires that neither it nor an unnamed one is
    in use, and probing an unnamed one that no device of the library is.
    """
    named = sorted((key, value) for key, value in options.items() if "device" in key.lower())

    def name(part: object) -> str:
        return f"upwell-device-{hashlib.sha256(repr((library, part)).encode()).hexdigest()[:32]}.lock"

    return name("every"), name(named), name([])


def _lock(names: list[str], *, exclusive: bool) -> DeviceLock | None:
    """Lock all of these files, or return None if another lock conflicts. Raises `DeviceBusy` if a file cannot be
    used."""
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
    """Open the lock file, created if missing; read-only, so that it works for every user, and never a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    for _ in range(2):
        try:
            # Without O_CREAT, which is refused for another user's file in folders like /tmp (fs.protected_regular).
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
    raise OSError(errno.EAGAIN, "it keeps being deleted", str(path))
