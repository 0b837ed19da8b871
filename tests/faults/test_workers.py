"""Workers under load: one is killed, all are drained, and one connection comes by each of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.faults.proxy import Proxy
from tests.integration.cloud.processes import LIMIT_S, children, connections, is_running, until, zombies
from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import linear, slow
from upwell.cloud.workers.worker_deaths import Restarts
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers share a port on Linux alone")

QUICK = InferRequest("linear", {"x": np.ones((1, 8), np.float32)})
SLOW = InferRequest("slow", {"x": np.ones((30, 512), np.float32)})
"""Long enough that a signal finds requests at work."""
PAUSE_S = 0.01
"""Between two requests of a caller; without one they would take the machine from the service."""
REFUSALS = ("draining", "failed to connect", "GOAWAY", "Connection refused")
"""Words of errors that say that a request was never taken."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("linear", "slow"):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        (linear(folder) if name == "linear" else slow(folder, size=512, layers=20)).rename(folder / "model.onnx")
    return root


@contextmanager
def workers(folder: Path, models: Path, count: int, more: str = "") -> Iterator[Service]:
    path = folder / "cloud.yaml"
    path.write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], models: {models}, workers: {count}{more}}}\n"
        "defaults: {instances: 1}\n"
    )
    with serving("-c", path) as running:
        yield running


class Load:
    """Callers that ask one after the other, each over a connection of its own, until `stop`; what became of it."""

    def __init__(self, address: str, request: InferRequest, count: int = 8) -> None:
        self._address = address
        self._request = request
        self._stop = threading.Event()
        self.answers = [0] * count
        self.errors: list[RemoteError] = []
        self._threads = [threading.Thread(target=self._run, args=(place,)) for place in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until_all_go_on(self) -> None:
        """Until each caller has one more answer."""
        before = list(self.answers)
        until(lambda: all(now > then for now, then in zip(self.answers, before, strict=True)))

    def _run(self, place: int) -> None:
        client = OipClient(self._address)
        while not self._stop.is_set():
            try:
                client.infer(self._request, LIMIT_S)
                self.answers[place] += 1
            except RemoteError as error:
                self.errors.append(error)
            time.sleep(PAUSE_S)
        client.close()


@pytest.mark.slow
def test_a_worker_killed_under_load_costs_what_it_had_in_hand(tmp_path: Path, models: Path) -> None:
    with workers(tmp_path, models, 2) as service:
        port = int(service.address.rpartition(":")[2])
        load = Load(service.address, QUICK)
        load.until_all_go_on()
        assert load.errors == []
        killed = max(children(service.process.pid), key=lambda pid: connections(pid, port))
        os.kill(killed, signal.SIGKILL)
        until(lambda: sum("serves" in line for line in service.lines) == 3)
        load.until_all_go_on()
        until(lambda: zombies(service.process.pid) == [])
        load.stop()
        assert {error.kind for error in load.errors} <= {RemoteErrorKind.UNAVAILABLE}
        assert len(load.errors) <= len(load.answers), "each caller loses at most the request under way"
        service.terminate()
        assert service.exit_code() == 0


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_drain_under_load_loses_nothing(tmp_path: Path, models: Path, count: int) -> None:
    with workers(tmp_path, models, count) as service:
        load = Load(service.address, SLOW)
        load.until_all_go_on()
        pids = children(service.process.pid)
        service.terminate()
        assert service.exit_code() == 0
        load.stop()
        assert not any(map(is_running, pids))
        lost = [error for error in load.errors if not any(words in str(error) for words in REFUSALS)]
        assert not lost, Counter(map(str, lost))


@pytest.mark.slow
def test_one_connection_through_a_proxy_comes_by_four_workers_within_a_minute(tmp_path: Path, models: Path) -> None:
    with (
        workers(tmp_path, models, 4, ", max_connection_age: 2s") as service,
        Proxy(service.address) as proxy,
    ):
        port = int(service.address.rpartition(":")[2])
        pids = children(service.process.pid)
        load = Load(proxy.address, QUICK, count=1)
        seen: set[int] = set()

        def all_seen() -> bool:
            seen.update(pid for pid in pids if connections(pid, port))
            return len(seen) == len(pids) == 4

        try:
            until(all_seen, limit_s=60.0)
        finally:
            load.stop()
        assert load.errors == []
        assert proxy.accepted >= 4


@pytest.mark.slow
def test_workers_that_die_again_and_again_end_the_service_only_once_none_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "models/linear/1"
    folder.mkdir(parents=True)
    linear(folder).rename(folder / "model.onnx")
    with workers(tmp_path, tmp_path / "models", 2) as service:
        client = OipClient(service.address)
        (folder / "model.onnx").write_bytes(b"no model")
        pids = children(service.process.pid)
        port = int(service.address.rpartition(":")[2])
        client.infer(QUICK, LIMIT_S)
        idle, other = sorted(pids, key=lambda pid: connections(pid, port))
        os.kill(idle, signal.SIGKILL)
        until(lambda: sum(" died: " in line for line in service.lines) == Restarts.LIMIT, limit_s=100.0)
        client.infer(QUICK, LIMIT_S)
        os.kill(other, signal.SIGKILL)
        until(lambda: any("times in a row" in line for line in service.lines), limit_s=100.0)
        client.close()
        assert service.exit_code() == 1
        assert not any(map(is_running, pids))
        assert "error: worker" in service.lines[-1]
        assert "no model can be served" in service.lines[-1]
