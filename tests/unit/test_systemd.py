"""What systemd is told, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from upwell.shared.platform.process import StopSignals, Systemd, stop_signals

LIMIT_S = 10.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(LIMIT_S)
        receiver.bind(str(tmp_path / "notify"))
        yield receiver


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    former = {one: signal.getsignal(one) for one in stop_signals()}
    signals = StopSignals()
    yield signals
    signals.restore_default()
    for one, handler in former.items():
        signal.signal(one, handler)


def of(manager: socket.socket, **more: str) -> Systemd:
    return Systemd.of_environment({"NOTIFY_SOCKET": manager.getsockname(), **more})


def test_it_is_told_when_all_is_ready_and_when_it_ends(manager: socket.socket) -> None:
    systemd = of(manager)
    systemd.ready()
    systemd.stopping()
    assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_while_all_is_well_it_hears_so_twice_in_its_time(manager: socket.socket, stop: StopSignals) -> None:
    systemd = of(manager, WATCHDOG_USEC="40000")
    assert systemd.interval_s == 0.02
    states = iter([True, False, True])

    def is_well() -> bool:
        state = next(states, None)
        if state is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return bool(state)

    systemd.ping_until(stop, is_well)
    systemd.stopping()
    assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the abstract namespace is Linux's")
def test_a_name_in_the_abstract_namespace() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(LIMIT_S)
        receiver.bind(f"\0upwell-test-{os.getpid()}")
        Systemd(f"@upwell-test-{os.getpid()}").ready()
        assert receiver.recv(100) == b"READY=1"


def test_without_systemd_nothing_is_sent_and_nothing_pings() -> None:
    systemd = Systemd.of_environment({"WATCHDOG_USEC": "40000"})
    systemd.ready()
    assert systemd.interval_s is None


@pytest.mark.parametrize(
    "given",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"}],
)
def test_no_watchdog_of_ours(manager: socket.socket, given: dict[str, str]) -> None:
    assert of(manager, **given).interval_s is None


def test_a_manager_that_is_gone_is_no_reason_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Systemd(str(tmp_path / "none")).ready()
    assert "cannot send READY=1 to systemd" in caplog.text


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows has no signals for a thread")
def test_a_signal_that_another_thread_has_taken_ends_the_wait(manager: socket.socket, stop: StopSignals) -> None:
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)
    other.start()
    threading.Timer(0.2, signal.pthread_kill, (other.ident, signal.SIGTERM)).start()
    of(manager).ping_until(stop, lambda: True)
    waiting.set()
    other.join()
