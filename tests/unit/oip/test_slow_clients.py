"""Slow clients are cut off whatever the system lacks."""

from __future__ import annotations

import threading

import pytest

from upwell.shared.oip.grpc.server.slow_clients import SlowClientGuard

LIMIT_S = 10.0


def test_where_the_system_has_no_thread_to_cut_slow_clients_off_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    is_cut_off = threading.Event()
    guard: SlowClientGuard[str] = SlowClientGuard(0, str, lambda _: is_cut_off.set())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        guard.add(1, "slow")
    guard.add(2, "slow")
    assert is_cut_off.wait(LIMIT_S)
