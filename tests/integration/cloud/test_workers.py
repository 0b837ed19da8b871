"""`serve.workers`: several processes on one port, started, restarted, changed and ended together."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.faults.live_fleet import write_crashing
from tests.integration.cloud.processes import children, connections, is_running, until, zombies
from tests.integration.cloud.serving import Service, serve_and_fail, serving
from tests.unit.models_for_tests import fatal, linear
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers share a port on Linux alone")

LIMIT_S = 30.0
ONE = InferRequest("linear", {"x": np.ones((1, 8), np.float32)})


def config(folder: Path, models: Path, serve: str = "", more: str = "") -> Path:
    path = folder / "cloud.yaml"
    serve = f"{{listen: ['127.0.0.1:0'], models: {models}, workers: 2{serve}}}"
    path.write_text(f"version: 1\nserve: {serve}\n{more}")
    return path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository of one's own: `linear` and `other`."""
    root = tmp_path / "models"
    for place, name in enumerate(("linear", "other")):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        linear(folder, seed=place).rename(folder / "model.onnx")
    return root


@pytest.fixture
def service(tmp_path: Path, models: Path) -> Iterator[Service]:
    with serving(
        "-c", config(tmp_path, models, ", repository: {control: true}, listen_http: ['127.0.0.1:0']")
    ) as running:
        yield running


def asked(address: str, model: str = "linear") -> str:
    """Ask over a connection of its own: "" for an answer, else the kind of the error."""
    client = OipClient(address)
    try:
        client.infer(InferRequest(model, ONE.inputs), LIMIT_S)
    except RemoteError as error:
        return error.kind.value
    finally:
        client.close()
    return ""


def port_of(service: Service) -> int:
    return int(service.address.rpartition(":")[2])


def one_client_each(service: Service) -> dict[int, OipClient]:
    """A client connected to each worker."""
    found: dict[int, OipClient] = {}
    for _ in range(200):
        before = {pid: connections(pid, port_of(service)) for pid in children(service.process.pid)}
        client = OipClient(service.address)
        assert client.server_live(LIMIT_S)
        (pid,) = [pid for pid, count in before.items() if connections(pid, port_of(service)) > count]
        if pid in found:
            client.close()
            until(lambda pid=pid, before=before: connections(pid, port_of(service)) <= before[pid])  # type: ignore[misc]  # bound at once
        else:
            found[pid] = client
        if len(found) == len(before):
            return found
    raise AssertionError("some worker gets no connections")


def passed_on(pid: int) -> list[str]:
    """The sockets of a process that its children would get."""
    sockets = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(fd).startswith("socket:")]
    flags = {fd.name: Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split("flags:")[1].split()[0] for fd in sockets}
    return [name for name, octal in flags.items() if not int(octal, 8) & os.O_CLOEXEC]


def test_all_workers_answer_on_one_port_and_end_with_their_supervisor(
    service: Service, tmp_path: Path, models: Path
) -> None:
    workers = children(service.process.pid)
    assert len(workers) == 2
    assert not any(map(passed_on, workers))
    assert len([line for line in service.lines if line.startswith("serving on")]) == 1
    clients = one_client_each(service)
    assert set(clients) == set(workers)
    for client in clients.values():
        client.infer(ONE, LIMIT_S)
        client.close()
    with ExitStack() as stack:
        at = next(line.split()[-1] for line in service.lines if line.startswith("HTTP on"))
        port = int(at.rpartition(":")[2])
        for _ in range(200):
            with urllib.request.urlopen(f"http://{at}/v2/models/linear/ready", timeout=LIMIT_S) as answer:
                assert answer.status == 200
            stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
            if all(connections(pid, port) for pid in workers):
                break
        else:
            raise AssertionError("some worker gets no connections over HTTP")
    code, text = serve_and_fail("-c", config(tmp_path, models), "--listen", service.address)
    assert (code, "in use by another program" in text) == (2, True)
    service.process.kill()
    until(lambda: not any(map(is_running, workers)))


def test_statistics_are_those_of_all_workers_and_never_fall(service: Service) -> None:
    clients = one_client_each(service)

    def counted() -> int:
        with triton.InferenceServerClient(service.address) as client:
            (found,) = client.get_inference_statistics("linear").model_stats
        return int(found.inference_stats.success.count)

    for client in clients.values():
        client.infer(ONE, LIMIT_S)
    assert counted() == len(clients) == 2
    for client in clients.values():
        client.close()
    os.kill(next(iter(clients)), signal.SIGKILL)
    until(lambda: sum("died" in line for line in service.lines) == 1)
    assert counted() == 2


def test_many_callers_may_ask_for_the_statistics_of_many_models_at_once(tmp_path: Path, models: Path) -> None:
    for number in range(60):
        shutil.copytree(models / "other", models / f"other-{number}")
    with serving("-c", config(tmp_path, models)) as service:
        workers = children(service.process.pid)
        with triton.InferenceServerClient(service.address) as client, ThreadPoolExecutor(200) as pool:
            asked = [pool.submit(counts_of_all, client) for _ in range(200)]
            assert {one.result(LIMIT_S) for one in asked} <= {62, "StatusCode.UNAVAILABLE"}
            with pytest.raises(InferenceServerException, match="its name has 1000000 characters"):
                client.load_model("x" * 1_000_000)  # it would go to all workers
        assert children(service.process.pid) == workers
        assert not any("died" in line for line in service.lines)


def counts_of_all(client: triton.InferenceServerClient) -> int | str:
    try:
        return len(client.get_inference_statistics().model_stats)
    except InferenceServerException as error:
        return str(error.status())


def test_a_worker_that_is_killed_is_restarted_while_the_others_answer(service: Service) -> None:
    clients = one_client_each(service)
    (killed, its), (other, others) = clients.items()
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_running(killed))
    others.infer(ONE, LIMIT_S)
    its.close()
    until(lambda: len(children(service.process.pid)) == 2 and zombies(service.process.pid) == [])
    assert other in children(service.process.pid)
    until(lambda: sum("serves" in line for line in service.lines) == 3)
    assert any("died: killed by SIGKILL" in line for line in service.lines)
    for client in one_client_each(service).values():
        client.infer(ONE, LIMIT_S)
        client.close()
    others.close()
    service.terminate()
    assert service.exit_code() == 0


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_for_lack_of_files_is_started_later_and_the_others_answer(
    service: Service,
) -> None:
    clients = one_client_each(service)
    (killed, its), (_, others) = clients.items()
    its.close()
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(killed, signal.SIGKILL)
    until(lambda: any("worker" in line and "cannot be started: Too many open files" in line for line in service.lines))
    others.infer(ONE, LIMIT_S)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: sum("serves" in line for line in service.lines) == 3)
    others.close()
    service.terminate()
    assert service.exit_code() == 0


@pytest.mark.slow
def test_a_version_whose_load_ends_processes_is_left_out_and_the_former_one_answers(
    tmp_path: Path, models: Path
) -> None:
    more = "defaults: {versions: latest}\n"
    with serving("-c", config(tmp_path, models, ", repository: {watch: 100ms}", more)) as service:
        (tmp_path / "made").mkdir()
        write_crashing(tmp_path / "made" / "model.onnx")
        (tmp_path / "made").rename(models / "linear" / "2")
        until(lambda: sum("was loading model linear version 2" in line for line in service.lines) >= 2)
        until(lambda: len(children(service.process.pid)) == 2 and sum("serves" in one for one in service.lines) >= 4)
        for client in one_client_each(service).values():
            assert client.infer(ONE, LIMIT_S).version == "1"
            client.close()
        with triton.InferenceServerClient(service.address) as client:
            (entry,) = [one for one in client.get_model_repository_index().models if one.version == "2"]
            assert (entry.state, "the process ended while it was loaded" in entry.reason) == ("UNAVAILABLE", True)
        linear(tmp_path, seed=2).replace(models / "linear" / "2" / "model.onnx")
        until(lambda: [asked_version(service.address) for _ in range(8)] == ["2"] * 8)
        assert sum("died" in line for line in service.lines) <= 4
        service.terminate()
        assert service.exit_code() == 0


def asked_version(address: str) -> str:
    client = OipClient(address)
    try:
        return client.infer(ONE, LIMIT_S).version
    finally:
        client.close()


@pytest.mark.slow
def test_a_model_whose_runs_end_workers_is_named_and_left_out_and_the_others_answer(
    tmp_path: Path, models: Path
) -> None:
    (models / "bad/1").mkdir(parents=True)
    fatal(models).rename(models / "bad/1/model.onnx")
    with serving("-c", config(tmp_path, models, ", metrics: '127.0.0.1:0'")) as service:
        until(lambda: all("while it was loaded or ran" in killed(service.address) for _ in range(8)))
        deaths = sum("it was running model bad version 1, which is left out after 3" in one for one in service.lines)
        assert 3 <= deaths <= 4, "the second worker may have loaded it before the third death"
        assert sum("died" in one for one in service.lines) == deaths
        assert {asked(service.address) for _ in range(8)} == {""}
        page = next(one.split()[-1] for one in service.lines if one.startswith("metrics on"))
        with urllib.request.urlopen(page, timeout=LIMIT_S) as answer:  # noqa: S310  ours, on loopback
            assert f'upwell_cloud_worker_deaths_total{{model="bad",version="1"}} {deaths}.0' in answer.read().decode()
        service.terminate()
        assert service.exit_code() == 0


def killed(address: str) -> str:
    """What the caller of a run that ends the worker is told."""
    client = OipClient(address)
    with pytest.raises(RemoteError) as caught:
        client.infer(InferRequest("bad", {"x": np.full((1, 2), -2, np.float32)}), LIMIT_S)
    client.close()
    return str(caught.value)


@pytest.mark.slow
def test_a_model_whose_load_ends_processes_at_the_start_is_left_out_and_the_others_are_served(
    tmp_path: Path, models: Path
) -> None:
    (models / "bad/1").mkdir(parents=True)
    write_crashing(models / "bad/1/model.onnx")
    with serving("-c", config(tmp_path, models)) as service:
        assert any("it was loading model bad version 1" in line for line in service.lines)
        assert {asked(service.address) for _ in range(8)} == {""}
        assert {asked(service.address, "bad") for _ in range(8)} == {RemoteErrorKind.UNAVAILABLE.value}
    code, text = serve_and_fail("--models", models, "--listen", "127.0.0.1:0")
    assert code == -signal.SIGFPE
    assert "in model bad version 1" in text


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_restarted_and_a_load_waits_no_longer_for_it(service: Service) -> None:
    with triton.InferenceServerClient(service.address) as operator:
        assert operator.is_server_live()
        workers = children(service.process.pid)
        (asked_one,) = [pid for pid in workers if connections(pid, port_of(service))]
        (hanging,) = [pid for pid in workers if pid != asked_one]
        os.kill(hanging, signal.SIGSTOP)
        operator.unload_model("other")
    until(lambda: not is_running(hanging))
    until(lambda: sum("serves" in line for line in service.lines) == 3)
    assert sum("hangs and is killed: no sign of life for 30 s" in line for line in service.lines) == 1
    clients = one_client_each(service)
    assert asked_one in clients
    for client in clients.values():
        client.infer(ONE, LIMIT_S)
        assert client.ready(LIMIT_S, "other") is False
        client.close()


@pytest.mark.slow
def test_a_worker_that_comes_later_answers_as_the_others_where_a_newer_version_is_broken(
    tmp_path: Path, models: Path
) -> None:
    with serving("-c", config(tmp_path, models, ", repository: {watch: 50ms}")) as running:
        (models / "linear" / "2").mkdir()
        (models / "linear" / "2" / "model.onnx").write_bytes(b"no model")
        for number in (1, 2):
            running.program.find(rf"(worker {number}) upwell.cloud: model linear: version 1 is the default", LIMIT_S)
        os.kill(children(running.process.pid)[0], signal.SIGKILL)
        until(lambda: sum("serves" in line for line in running.lines) == 3)
        for client in one_client_each(running).values():
            assert client.infer(ONE, LIMIT_S).version == "1"
            client.close()


@pytest.mark.slow
def test_what_has_come_to_or_gone_from_the_folders_does_not_keep_a_worker_from_coming_back(
    tmp_path: Path, models: Path
) -> None:
    with serving("-c", config(tmp_path, models, more="models: {other: {max_batch: 2}}")) as running:
        shutil.copytree(models / "linear", models / "linear (copy)")
        shutil.rmtree(models / "other")
        os.kill(children(running.process.pid)[0], signal.SIGKILL)
        until(lambda: sum("serves" in line for line in running.lines) == 3)
        for client in one_client_each(running).values():
            client.infer(ONE, LIMIT_S)
            client.close()
        assert any("'linear (copy)' is not served: a model's name has" in line for line in running.lines)
        running.terminate()
        assert running.exit_code() == 0
    code, text = serve_and_fail("-c", tmp_path / "cloud.yaml")  # to a service that begins it is still a mistake
    assert (code, "linear (copy)" in text) == (2, True)


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(tmp_path: Path, repository: Path) -> None:
    with serving("-c", config(tmp_path, repository, more="defaults: {instances: 1}")) as running:
        workers = children(running.process.pid)
        client = OipClient(running.address)
        slow = client.infer_async(InferRequest("slow", {"x": np.ones((4000, 512), np.float32)}), LIMIT_S)
        until(lambda: sum(connections(pid, port_of(running)) for pid in workers) == 1)
        running.terminate()
        until(lambda: any(line.startswith("draining") for line in running.lines))
        running.terminate()
        assert running.exit_code() == -signal.SIGTERM
        assert not any(map(is_running, workers))
        with pytest.raises(RemoteError):
            slow.result(LIMIT_S)
        client.close()


@pytest.mark.slow
def test_a_load_or_unload_reaches_every_worker_and_one_that_comes_later_and_all_drain(
    service: Service, models: Path
) -> None:
    clients = one_client_each(service)
    operator = triton.InferenceServerClient(service.address)
    operator.unload_model("other")
    for client in clients.values():
        with pytest.raises(RemoteError) as caught:
            client.infer(InferRequest("other", ONE.inputs), LIMIT_S)
        assert caught.value.kind is RemoteErrorKind.UNAVAILABLE
        client.infer(ONE, LIMIT_S)
    linear(models, seed=7).rename(models / "linear/1/model.onnx")
    (models / "linear/2").mkdir()
    linear(models, seed=8).rename(models / "linear/2/model.onnx")
    operator.load_model("linear")
    digests = {client.infer(ONE, LIMIT_S).parameters["upwell.cloud_digest"] for client in clients.values()}
    assert len(digests) == 1
    (models / "linear/3").mkdir()  # nobody has asked for it
    linear(models, seed=9).rename(models / "linear/3/model.onnx")
    killed = next(iter(clients))
    os.kill(killed, signal.SIGKILL)
    until(lambda: sum("serves" in line for line in service.lines) == 3)
    for client in clients.values():
        client.close()
    for client in one_client_each(service).values():
        answer = client.infer(ONE, LIMIT_S)
        assert (answer.version, answer.parameters["upwell.cloud_digest"]) == ("2", *digests)
        assert client.ready(LIMIT_S, "other") is False
        client.close()
    index = operator.get_model_repository_index().models
    assert [(one.version, one.state, one.reason) for one in index if one.name == "other"] == [
        ("1", "UNAVAILABLE", "unloaded")
    ]
    operator.load_model("other")
    assert {asked(service.address, "other") for _ in range(20)} == {""}
    with pytest.raises(InferenceServerException, match="no model 'nothing' in the repository") as refused:
        operator.load_model("nothing")
    assert refused.value.status() == "StatusCode.NOT_FOUND"
    operator.close()
    workers = children(service.process.pid)
    for pid in (*workers, service.process.pid):  # as a terminal and a service manager do
        os.kill(pid, signal.SIGINT)
    assert service.exit_code() == 0
    assert not any(map(is_running, workers))
    assert not any("Traceback" in line for line in service.lines)


@pytest.mark.slow
def test_what_keeps_one_worker_from_serving_is_said_once(tmp_path: Path, models: Path) -> None:
    for name in ("linear", "other"):
        (models / name / "1/model.onnx").write_bytes(b"no model")
    code, text = serve_and_fail("-c", config(tmp_path, models))
    assert code == 1
    assert text.count("error: no model can be served") == 1
    assert "Traceback" not in text


@pytest.mark.slow
def test_what_workers_cannot_listen_on_is_refused_before_anything_is_loaded(tmp_path: Path, models: Path) -> None:
    path = config(tmp_path, models)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = serve_and_fail("-c", path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (code, "in use by another program" in text) == (2, True)
    code, text = serve_and_fail("-c", path, "--listen", f"unix:{tmp_path}/s")
    assert (code, "cannot share unix:" in text) == (2, True)


@pytest.mark.slow
def test_a_long_connection_comes_by_every_worker(tmp_path: Path, models: Path) -> None:
    """One client, one connection at a time; no request is lost when the service has it connect anew."""
    with serving("-c", config(tmp_path, models, ", max_connection_age: 300ms")) as running:
        workers = set(children(running.process.pid))
        seen: set[int] = set()
        client = OipClient(running.address)
        stop = threading.Event()
        failed: list[RemoteError] = []

        def ask() -> None:
            while not stop.is_set():
                try:
                    client.infer(ONE, LIMIT_S)
                except RemoteError as error:
                    failed.append(error)

        def all_seen() -> bool:
            seen.update(pid for pid in workers if connections(pid, port_of(running)))
            return seen == workers

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            until(all_seen)
        finally:
            stop.set()
            thread.join()
            client.close()
        assert failed == []
