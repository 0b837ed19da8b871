"""Starts `upwell` as a process of its own without loading it anew: as a fork of one that has it loaded.

Loading takes more than a second of the processor, and tests start hundreds. Loading itself is judged by the tests that
run the installed program; those that want a running process, with signals, sockets and an exit code, take this one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]


class Forked:
    """A process as `subprocess.Popen` has them: what it says on standard error is in `stderr`, the rest is dropped."""

    def __init__(self, arguments: Sequence[str], cwd: str | None = None) -> None:
        said, its_stderr = os.pipe()
        self._ended, its_end = os.pipe()
        ignored = [int(one) for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN]
        order = json.dumps(
            {
                "arguments": list(arguments),
                "cwd": cwd or str(Path.cwd()),
                "environment": dict(os.environ),
                "ignored": ignored,
            }
        )
        parent = _parent()
        try:
            socket.send_fds(parent, [order.encode()], [its_stderr, its_end])
        finally:
            os.close(its_stderr)
            os.close(its_end)
        (self.pid,) = struct.unpack("=q", parent.recv(8))
        self.stderr: IO[str] = os.fdopen(said, encoding="utf-8")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative where a signal has ended it; `None` while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, waited for."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    raise subprocess.TimeoutExpired("upwell", timeout_s or 0.0)
            (status,) = struct.unpack("=q", os.read(self._ended, 8))
            os.close(self._ended)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@cache
def _parent() -> socket.socket:
    """The other end of the process that forks; it ends when this one does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        program = [sys.executable, "-m", "tests.warm", str(its.fileno())]
        process = subprocess.Popen(program, cwd=ROOT, pass_fds=[its.fileno()])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(orders: socket.socket) -> None:
    """Fork as told until nobody can tell any more. The children's ends go back through the pipe that came with each."""
    ends: dict[int, int] = {}
    woken, wakes = socket.socketpair()
    for one in (woken, wakes):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is woken:
                woken.recv(4096)
                _reap(ends)
                continue
            data, fds, _, _ = socket.recv_fds(orders, 1 << 20, 2)
            if not data:
                return
            its_stderr, its_end = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                selector.close()
                for one in (orders, woken, wakes):
                    one.close()
                for fd in (*ends.values(), its_end):
                    os.close(fd)
                _run(json.loads(data), its_stderr)
            ends[pid] = its_end
            os.close(its_stderr)
            orders.send(struct.pack("=q", pid))


def _reap(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        os.write(ends[pid], struct.pack("=q", status))
        os.close(ends.pop(pid))


def _run(order: dict[str, Any], its_stderr: int) -> None:
    """Be the program that was asked for."""
    from upwell.tools.entry import main

    nowhere = os.open(os.devnull, os.O_RDWR)
    for target, source in enumerate((nowhere, nowhere, its_stderr)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(its_stderr)
    for number in order["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    sys.argv = ["upwell", *order["arguments"]]
    main()
    sys.exit(0)


def _load() -> None:
    """What an agent and a service load before they read their configuration, but for what only some of them do."""
    from upwell.shared.platform.vendor_telemetry import forbid_telemetry

    forbid_telemetry()
    import upwell.cloud.cli
    import upwell.cloud.engines.onnx_engine
    import upwell.edge.cli
    import upwell.edge.runtimes.onnx.runtime
    import upwell.tools.cli  # noqa: F401


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
