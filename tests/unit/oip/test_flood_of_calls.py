"""The threads of a server after a flood of calls: given back, also while single calls go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.oip.http.client.client import HttpClient
from upwell.shared.oip.http.server.server import start_http_server
from upwell.shared.platform import call_threads

CALLS = 80
FEW = 12
"""Threads that may be left: those of single calls that go on, and some on their way out."""
TIMEOUT_S = 30.0
ECHO = InferRequest("echo", EXAMPLE)


def count(name: str) -> int:
    return sum(one.name.startswith(name) for one in threading.enumerate())


@pytest.mark.parametrize(
    ("start", "client", "name", "at_work"),
    [
        pytest.param(start_server, OipClient, "oip-", {}, marks=pytest.mark.exhaustive),
        (start_server, OipClient, "oip-", {"at_work": 1}),
        (start_http_server, lambda at: HttpClient(f"http://{at}"), "http-", {}),
    ],
    ids=["grpc, as the agent", "grpc, as the service", "http"],
)
def test_a_server_gives_the_threads_of_a_flood_back(
    monkeypatch: pytest.MonkeyPatch, start: Any, client: Callable[[str], Any], name: str, at_work: dict[str, int]
) -> None:
    monkeypatch.setattr(call_threads, "IDLE_S", 0.3)
    fake = FakeDataplane()
    server = start(fake, ["127.0.0.1:0"], max_workers=100, **at_work)
    one = client(server.addresses[0])
    try:
        before = count(name)
        for _ in range(2):
            fake.hold()
            with ThreadPoolExecutor(CALLS) as callers:
                asked = [callers.submit(one.infer, ECHO, TIMEOUT_S) for _ in range(CALLS)]
                until_s = time.monotonic() + TIMEOUT_S
                while count(name) < CALLS and time.monotonic() < until_s:
                    time.sleep(0.01)
                assert count(name) >= CALLS
                fake.release()
                for call in asked:
                    assert call.result(TIMEOUT_S).outputs
            until_s = time.monotonic() + TIMEOUT_S
            while count(name) > before + FEW and time.monotonic() < until_s:
                assert one.infer(ECHO, TIMEOUT_S).outputs
            assert count(name) <= before + FEW
    finally:
        fake.release()
        one.close()
        server.stop(1.0)
