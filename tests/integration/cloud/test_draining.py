"""SIGTERM: what was accepted is answered, what comes later is refused, and then the process ends."""

import http.client
import json
import os
import queue
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults.raw_http2 import DATA, END_STREAM, SETTINGS, WINDOW_UPDATE, RawConnection, frame, grpc_message
from tests.integration.agent.versions import write_endless
from tests.integration.cloud.processes import children, is_running, until
from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import linear
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, PendingInfer, RemoteError, RemoteErrorKind

LIMIT_S = 30.0
ROWS = 400
ROOM = 8
MANY = 64


def fill(client: OipClient) -> list[PendingInfer]:
    """Requests that certainly have been accepted: all that there is room for, since one more was refused."""
    inputs = {"x": np.ones((ROWS, 512), np.float32)}
    while True:
        done: queue.Queue[PendingInfer] = queue.Queue()
        calls = [client.infer_async(InferRequest("slow", inputs, id=str(place)), LIMIT_S) for place in range(ROOM + 1)]
        for call in calls:
            call.add_done_callback(done.put)
        first = done.get(timeout=LIMIT_S)
        if is_refused(first):
            return [call for call in calls if call is not first]
        for call in calls:  # the first was answered before the last had come; try again
            is_refused(call)


def is_refused(call: PendingInfer) -> bool:
    """Wait for the call; whether the model was too busy to take it."""
    try:
        call.result(LIMIT_S)
    except RemoteError as error:
        if error.kind is not RemoteErrorKind.RESOURCE_EXHAUSTED:
            raise
        return True
    return False


def go_on_asking(client: OipClient) -> None:
    """Ask until it fails: a request that comes just before the draining begins is still answered."""
    while True:
        client.infer(InferRequest("linear", {"x": np.ones((1, 8), np.float32)}), LIMIT_S)


def config(folder: Path, repository: Path, drain: str, max_queue: int) -> Path:
    path = folder / "cloud.yaml"
    path.write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], models: {repository}, drain: {drain}}}\n"
        f"defaults: {{instances: 1, max_queue: {max_queue}}}\n"
    )
    return path


def ended(service: Service) -> int:
    code = service.exit_code()
    assert not any("Traceback" in line for line in service.lines), "".join(service.lines)
    return code


def test_what_was_accepted_is_answered_and_the_rest_is_told_to_go_elsewhere(tmp_path: Path, repository: Path) -> None:
    with (
        serving("-c", config(tmp_path, repository, "30s", max_queue=ROOM - 1)) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        client = OipClient(running.address)
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        accepted = fill(client)
        running.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(RemoteError) as caught:
            go_on_asking(client)
        assert caught.value.kind is RemoteErrorKind.UNAVAILABLE
        answers = [call.result() for call in accepted]
        assert len({answer.id for answer in answers}) == ROOM
        assert all(answer.outputs["y"].shape == (ROWS, 512) for answer in answers)
        assert ended(running) == 0
        assert "draining\n" in running.lines
        client.close()


def test_all_who_go_on_asking_are_told_to_go_elsewhere(tmp_path: Path, repository: Path) -> None:
    inputs = {"x": np.ones((1, 8), np.float32)}
    told: queue.Queue[RemoteErrorKind] = queue.Queue()
    busy = threading.Semaphore(0)

    with serving("-c", config(tmp_path, repository, "30s", max_queue=MANY)) as running:
        client = OipClient(running.address)

        def ask() -> None:
            client.infer_async(InferRequest("linear", inputs), LIMIT_S).add_done_callback(ask_again)

        def ask_again(call: PendingInfer) -> None:
            try:
                call.result()
            except RemoteError as error:
                told.put(error.kind)
            else:
                busy.release()
                ask()

        for _ in range(MANY):
            ask()
        for _ in range(2 * MANY):
            assert busy.acquire(timeout=LIMIT_S)
        running.terminate()
        assert {told.get(timeout=LIMIT_S) for _ in range(MANY)} == {RemoteErrorKind.UNAVAILABLE}
        assert ended(running) == 0
        client.close()


def ask_to_the_end(address: str, until: threading.Event) -> list[str]:
    """Ask over kept connections for as long as there is somebody; how those requests ended that were sent and lost."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1] * 8}]})
    lost: list[str] = []
    with suppress(ConnectionRefusedError), closing(http.client.HTTPConnection(address, timeout=LIMIT_S)) as connection:
        while not until.is_set():
            try:
                connection.request("POST", "/v2/models/linear/infer", body)
                answer = connection.getresponse()
                assert answer.status in (200, 503), answer.read()
                answer.read()
            except ConnectionRefusedError:
                raise
            except (OSError, http.client.HTTPException) as error:
                lost.append(repr(error))
                connection.close()
    return lost


def test_no_request_over_a_kept_connection_of_http_is_lost(tmp_path: Path, repository: Path) -> None:
    path = config(tmp_path, repository, "30s", max_queue=ROOM)
    path.write_text(path.read_text().replace("models: /", "listen_http: ['127.0.0.1:0'], models: /"))
    with serving("-c", path) as running, ThreadPoolExecutor(ROOM) as pool:
        address = running.program.find(r"HTTP on (\S+)", LIMIT_S)
        until = threading.Event()
        asking = [pool.submit(ask_to_the_end, address, until) for _ in range(ROOM)]
        client = OipClient(running.address)
        for _ in range(50):  # the others are at it by then
            client.infer(InferRequest("linear", {"x": np.ones((1, 8), np.float32)}), LIMIT_S)
        client.close()
        running.terminate()
        assert ended(running) == 0
        until.set()
        assert [one.result(LIMIT_S) for one in asking] == [[]] * ROOM


def occupy(client: OipClient) -> PendingInfer:
    """A request that certainly runs now, with seconds of work before it; a drained call gets one more to end."""
    small = InferRequest("slow", {"x": np.ones((1, 512), np.float32)})
    while True:
        call = client.infer_async(InferRequest("slow", {"x": np.ones((25_000, 512), np.float32)}), LIMIT_S)
        while not call.done():  # done at once where it came while a small one was running
            if is_refused(client.infer_async(small, LIMIT_S)):
                return call


@pytest.mark.slow
def test_draining_ends_when_its_time_is_up(tmp_path: Path, repository: Path) -> None:
    with serving("-c", config(tmp_path, repository, "1ms", max_queue=0)) as running:
        client = OipClient(running.address)
        call = occupy(client)
        running.terminate()
        assert ended(running) == 1
        assert "error: some requests took longer than the drain time and were cut off\n" in running.lines
        with pytest.raises(RemoteError):
            call.result()
        client.close()


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGTERM, 2),
        (signal.SIGINT, 1),
        pytest.param(signal.SIGHUP, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 2, marks=pytest.mark.slow),
    ],
)
def test_an_idle_service_ends_at_once_and_in_good_order(
    tmp_path: Path, repository: Path, number: signal.Signals, workers: int
) -> None:
    serve = {"listen": ["127.0.0.1:0"], "models": str(repository), "workers": workers}
    path = tmp_path / "cloud.yaml"
    path.write_text(json.dumps({"version": 1, "serve": serve, "models": {"slow": {"versions": "latest"}}}))
    with serving("-c", path) as running:
        pids = [running.process.pid, *(children(running.process.pid) if workers > 1 else [])]
        for pid in pids[1:]:
            os.kill(pid, number)  # a terminal's signal reaches them all
        os.kill(pids[0], number)
        assert ended(running) == 0
        assert "draining\n" in running.lines


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_it_ends_in_good_order_while_a_model_is_being_loaded(tmp_path: Path, workers: int) -> None:
    root = tmp_path / "models"
    made = root / "linear" / "1"
    made.mkdir(parents=True)
    linear(made).rename(made / "model.onnx")
    serve = {"listen": ["127.0.0.1:0"], "models": str(root), "workers": workers, "repository": {"watch": "100ms"}}
    path = tmp_path / "cloud.yaml"
    path.write_text(json.dumps({"version": 1, "serve": serve}))
    with serving("-c", path) as running, triton.InferenceServerClient(running.address) as client:
        (root / "endless" / "1").mkdir(parents=True)
        write_endless(root / "endless" / "1" / "model.onnx")
        until(lambda: "LOADING" in [one.state for one in client.get_model_repository_index().models])
        running.terminate()
        assert ended(running) == 0


@pytest.mark.slow
def test_a_service_that_nohup_started_outlives_its_terminal(repository: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as a child has it from its parent
    try:
        with serving("--models", repository) as running:
            os.kill(running.process.pid, signal.SIGHUP)
            client = OipClient(running.address)
            assert client.ready(LIMIT_S)
            client.close()
            running.terminate()
            assert ended(running) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


WIDE = 1 << 22
"""Numbers of an answer: more than the system keeps for a connection."""


@contextmanager
def asked_over_grpc(service: Service) -> Iterator[Callable[[], int]]:
    """A request whose answer is not read until the function is called, which returns its size."""
    message = converters.serialize_infer_request(InferRequest("wide", {"x": np.ones((1, 1), np.float32)}))
    with RawConnection(service.address) as connection:
        connection.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        connection.begin_call(1)
        connection.send(frame(DATA, END_STREAM, 1, grpc_message(message)))

        def read() -> int:
            most = 2**31 - 1
            connection.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, most)))
            connection.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", most - 65_535)))
            return connection.received_bytes(1)

        yield read


@contextmanager
def asked_over_http(service: Service) -> Iterator[Callable[[], int]]:
    """The same."""
    host, _, port = next(line.split()[-1] for line in service.lines if line.startswith("HTTP on")).rpartition(":")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    with closing(http.client.HTTPConnection(host, int(port), LIMIT_S)) as connection:
        connection.request("POST", "/v2/models/wide/infer", body)
        yield lambda: len(connection.getresponse().read())


@pytest.mark.parametrize("asked", [asked_over_grpc, asked_over_http])
def test_an_answer_that_is_still_on_its_way_over_a_slow_link_is_not_cut_off(
    tmp_path: Path, asked: Callable[[Service], AbstractContextManager[Callable[[], int]]]
) -> None:
    made = tmp_path / "models/wide/1"
    made.mkdir(parents=True)
    linear(made, features=1, classes=WIDE).rename(made / "model.onnx")
    path = tmp_path / "cloud.yaml"
    listen = "listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0']"
    path.write_text(f"version: 1\nserve: {{{listen}, models: models}}\n")
    with serving("-c", path) as running, asked(running) as read:
        with triton.InferenceServerClient(running.address) as client:
            until(lambda: client.get_inference_statistics("wide").model_stats[0].inference_stats.success.count == 1)
        running.terminate()
        until(lambda: "draining\n" in running.lines)
        time.sleep(2.5)  # more than an answer gets that nobody waits for
        assert is_running(running.process.pid)
        assert read() > 4 * WIDE
        assert ended(running) == 0
