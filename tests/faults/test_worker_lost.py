"""Workers killed under load: each request is answered or told to be lost, and memory stays as it was."""

from __future__ import annotations

import os
import queue
import re
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.integration.cloud.processes import LIMIT_S, children, connections, until, zombies
from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import linear
from upwell.rpc.oip.v2 import model_stream_pb2
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError
from upwell.shared.oip.http.client.client import HttpClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers share a port on Linux alone")

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
AT_ONCE = 4
"""Requests of a stream that wait for their answers."""
PAUSE_S = 0.01
"""Between two requests of a caller; without one they would take the machine from the service."""


def request(name: str) -> InferRequest:
    return InferRequest("linear", {"x": np.ones((1, 8), np.float32)}, id=name)


class Caller(ABC):
    """Asks until `end`; counts what was sent, answered with its own id, and told to have failed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent = self.answered = 0
        self.failed = 0
        self.errors: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.ask_until(self._ending)
            time.sleep(PAUSE_S)

    @abstractmethod
    def ask_until(self, ending: threading.Event) -> None:
        """Connect, and ask until something fails, or the end."""


class Single(Caller):
    """One request after the other."""

    def ask_until(self, ending: threading.Event) -> None:
        client = (HttpClient if self.address.startswith("http:") else OipClient)(self.address)
        try:
            while not ending.is_set():
                time.sleep(PAUSE_S)
                self.sent += 1
                self.answered += client.infer(request(str(self.sent)), LIMIT_S).id == str(self.sent)
        except RemoteError as error:
            self.failed += 1
            self.errors.add(error.kind.name)
        finally:
            client.close()


class Streaming(Caller):
    """Several at a time over one stream. The end of a stream tells of all that it has not answered."""

    def ask_until(self, ending: threading.Event) -> None:
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        waiting: list[str] = []

        def ask() -> None:
            self.sent += 1
            waiting.append(str(self.sent))
            requests.put(converters.serialize_infer_request(request(str(self.sent))))

        with grpc.insecure_channel(self.address) as channel:
            call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(STREAM)
            for _ in range(AT_ONCE):
                ask()
            try:
                for data in call(iter(requests.get, None), timeout=LIMIT_S):
                    found = model_stream_pb2.ModelStreamInferResponse.FromString(data)
                    assert not found.error_message, found.error_message
                    assert found.infer_response.id == waiting.pop(0)
                    self.answered += 1
                    time.sleep(PAUSE_S)
                    if not ending.is_set():
                        ask()
                    elif not waiting:
                        requests.put(None)
                assert not waiting, "a stream that ends well has answered all"
            except grpc.RpcError as error:
                self.failed += len(waiting)
                self.errors.add(error.code().name)
                requests.put(None)


def resident_bytes(service: Service) -> list[int]:
    """Of the supervisor and each worker, once it has stopped falling: what was freed is given back with a delay."""

    def now() -> list[int]:
        pids = [service.process.pid, *children(service.process.pid)]
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return [1024 * int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) for text in texts]

    least, since_s = now(), time.monotonic()
    while time.monotonic() < since_s + 1.0:
        time.sleep(0.05)
        found = now()
        if sum(found) < 0.99 * sum(least):
            least, since_s = found, time.monotonic()
    return least


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    folder = tmp_path / "models/linear/1"
    folder.mkdir(parents=True)
    linear(folder).rename(folder / "model.onnx")
    (tmp_path / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models, workers: 2}\n"
        "defaults: {instances: 1}\n"
    )
    with serving("-c", tmp_path / "cloud.yaml") as running:
        yield running


@pytest.mark.slow
def test_workers_killed_under_load_lose_nothing_silently_and_leave_no_memory_behind(service: Service) -> None:
    http = next(line.split()[-1] for line in service.lines if line.startswith("HTTP on"))
    ports = [int(address.rpartition(":")[2]) for address in (service.address, http)]
    callers: list[Caller] = []

    def all_go_on() -> None:
        before = [one.answered for one in callers]
        until(lambda: all(one.answered >= then + 20 for one, then in zip(callers, before, strict=True)))

    def kill_one(place: int) -> None:
        """The one with the most connections, and then the other one."""
        pids = sorted(children(service.process.pid), key=lambda pid: sum(connections(pid, port) for port in ports))
        os.kill(pids[-1 - place], signal.SIGKILL)
        count = sum("serves" in line for line in service.lines)
        until(lambda: sum("serves" in line for line in service.lines) == count + 1)
        until(lambda: zombies(service.process.pid) == [])
        all_go_on()

    callers += [Single(service.address) for _ in range(3)]
    callers += [Single(f"http://{http}") for _ in range(3)]
    callers += [Streaming(service.address) for _ in range(2)]
    try:
        all_go_on()
        kill_one(0)  # so that the former ones and those after it have been through the same
        before = resident_bytes(service)
        for place in (0, 1, 0):
            kill_one(place)
        after = resident_bytes(service)
    finally:
        for caller in callers:
            caller.end()
    assert len(after) == len(before) == 3
    assert sum(after) < 1.1 * sum(before), (before, after)
    for caller in callers:
        assert caller.sent == caller.answered + caller.failed
        assert caller.errors <= {"UNAVAILABLE"}
        assert caller.failed <= 4 * AT_ONCE * 2, "what was in hand, and a few that met the restart"
    service.terminate()
    assert service.exit_code() == 0
