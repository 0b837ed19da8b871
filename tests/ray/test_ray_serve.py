"""The service as a Ray Serve application: a cluster of two nodes on this machine, one of which dies under load."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("ray")

from tests.integration.cloud.serving import serving
from upwell.cloud.config import CloudConfig
from upwell.cloud.ray import serve
from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.tensors import Array

MODELS = Path(__file__).parents[2] / "shared/upwell/tools/demo/assets/cloud"
EXAMPLE = Path(__file__).parents[2] / "examples/ray"
MODEL = "digits-large"
PORT = 18451
ADDRESS = f"127.0.0.1:{PORT}"
HEAD, SECOND = "127.0.0.2", "127.0.0.3"
STORE_BYTES = 80_000_000
LIMIT_S = 20.0
SETTLED_S = 60.0
MAX_MESSAGE = 100_000
CLIENTS = 6

# Ray's own sockets stay open where its shutdown says that they do, and it uses what Python warns of.
pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


def pictures(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (rows, 28, 28, 1)).astype(np.uint8)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what Ray does in its own time."""
    end_s = time.monotonic() + SETTLED_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.2)


def processes(session: str) -> list[int]:
    """The processes of one Ray session, by what their command lines name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and session in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except (OSError, UnicodeDecodeError):
            continue
    return [pid for pid in found if pid != os.getpid()]


@dataclass
class Nodes:
    """The cluster: its head, where this process is, and a second node."""

    cluster: Any
    second: Any

    def replicas(self) -> int:
        from ray import serve

        deployment = serve.status().applications[serve.NAME].deployments[serve.NAME]
        return sum(count for state, count in deployment.replica_states.items() if state == "RUNNING")

    def lose_second(self) -> None:
        """End all of its processes at once, as a machine that loses power does; Ray's own way lets replicas finish."""
        raylet = self.second.all_processes["raylet"][0].process.pid
        workers = (Path(f"/proc/{raylet}/task/{raylet}/children").read_text()).split()
        for pid in (raylet, *map(int, workers)):
            os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(MODELS / MODEL, folder / MODEL)
    return folder


@pytest.fixture(scope="module")
def nodes(repository: Path) -> Iterator[Nodes]:
    """Two nodes with room for two replicas each; the service on them begins with one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        # Not 127.0.0.1, for which Ray takes the machine's address in its network.
        node = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
        head = {**node, "node_ip_address": HEAD, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        session = Path(cluster.head_node.get_session_dir_path()).name
        try:
            second = cluster.add_node(**node, node_ip_address=SECOND)
            ray.init(address=cluster.address, _node_ip_address=HEAD, log_to_driver=False)
            cluster.wait_for_nodes(SETTLED_S)
            scale = serve.Scale(max_replicas=4, target=1.0, upscale_delay_s=1.0)
            serve.start(config(repository, max_message="100kB"), scale, LIMIT_S)
            yield Nodes(cluster, second)
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()
        until(lambda: not processes(session), f"left behind: {processes(session)}")


def config(repository: Path, **serve: Any) -> CloudConfig:
    section = {"listen": [f"[::]:{PORT}"], "models": str(repository), "insecure": True, **serve}
    return CloudConfig.model_validate({"serve": section})


@pytest.fixture
def client(nodes: Nodes) -> Iterator[OipClient]:
    client = OipClient(ADDRESS)
    yield client
    client.close()


def test_it_answers_as_the_service_does(client: OipClient, repository: Path) -> None:
    requests = [InferRequest(MODEL, {"image": pictures(rows, rows)}, id=f"r{rows}") for rows in (1, 3, 8)]
    with serving("--models", repository) as service:
        ours = OipClient(service.address)
        assert client.server_metadata(LIMIT_S) == ours.server_metadata(LIMIT_S)
        assert client.metadata(MODEL, LIMIT_S) == ours.metadata(MODEL, LIMIT_S)
        assert client.server_live(LIMIT_S)
        assert client.ready(LIMIT_S)
        assert [client.ready(LIMIT_S, name) for name in (MODEL, "none")] == [True, False]
        for request in requests:
            answer, expected = (one.infer(request, LIMIT_S) for one in (client, ours))
            assert (answer.model, answer.version, answer.id) == (expected.model, expected.version, request.id)
            assert answer.parameters["upwell.cloud_digest"] == expected.parameters["upwell.cloud_digest"]
            assert answer.outputs.keys() == expected.outputs.keys()
            for name in expected.outputs:
                np.testing.assert_array_equal(answer.outputs[name], expected.outputs[name])
        for wrong in (InferRequest("none", requests[0].inputs), InferRequest(MODEL, {"x": pictures(1)})):
            said = []
            for one in (client, ours):
                with pytest.raises(RemoteError) as caught:
                    one.infer(wrong, LIMIT_S)
                said.append((caught.value.kind, str(caught.value)))
            assert said[0] == said[1]
        ours.close()


def test_the_builder_takes_what_a_command_line_says(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "cloud.yaml").write_text(f"serve: {{listen: ['[::]:8001'], insecure: true, models: {repository}}}")
    args = {"config": str(tmp_path / "cloud.yaml"), "min_replicas": "2", "max_replicas": "3"}
    deployment: Any = serve.build(args)._bound_deployment
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 3, 1.0)


def test_the_program_of_the_example_runs_as_it_stands_there(
    nodes: Nodes, client: OipClient, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the port and folder of this test, and for connecting to a cluster, which has been done."""
    text = (EXAMPLE / "cloud.yaml").read_text().replace("8001", str(PORT)).replace("/srv/models", str(repository))
    (tmp_path / "cloud.yaml").write_text(f"{text}  max_message: 100kB\n")
    monkeypatch.chdir(tmp_path)
    program = (EXAMPLE / "start.py").read_text()
    connect = 'ray.init(address="auto")\n'
    scale = "serve.Scale(min_replicas=2, max_replicas=8)"
    ours = "serve.Scale(max_replicas=4, target=1.0, upscale_delay_s=1.0)"
    assert connect in program
    assert scale in program
    exec(program.replace(connect, "").replace(scale, ours), {})  # noqa: S102 (a program of our own examples)
    assert client.ready(LIMIT_S, MODEL)


def test_a_message_over_the_limit_is_refused(client: OipClient) -> None:
    with pytest.raises(RemoteError, match=f"{MAX_MESSAGE} are allowed") as caught:
        client.infer(InferRequest(MODEL, {"image": pictures(MAX_MESSAGE // 784 + 1)}), LIMIT_S)
    assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED


def test_a_stream_is_answered_in_order_and_outlives_an_error(nodes: Nodes) -> None:
    messages = [serialize_infer_request(InferRequest(MODEL, {"image": pictures(1)}, id=str(n))) for n in range(40)]
    messages.insert(20, b"no message")
    with grpc.insecure_channel(ADDRESS) as channel:
        stream: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [stream_pb.ModelStreamInferResponse.FromString(one) for one in stream(iter(messages), LIMIT_S)]
    assert "damaged" in answers.pop(20).error_message
    assert [answer.infer_response.id for answer in answers] == [str(n) for n in range(40)]
    assert not any(answer.error_message for answer in answers)


@dataclass
class Load:
    """Clients that ask all the time, each its own way: once more until there is an answer, at most `tries` times."""

    tries: int = 30
    stop: threading.Event = field(default_factory=threading.Event)
    answered: int = 0
    failed_tries: list[RemoteError] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, expected: Array) -> None:
        client = OipClient(ADDRESS)
        while not self.stop.is_set():
            self._ask(client, expected)
        client.close()

    def _ask(self, client: OipClient, expected: Array) -> None:
        for _ in range(self.tries):
            try:
                answer = client.infer(InferRequest(MODEL, {"image": pictures(1)}), LIMIT_S)
            except RemoteError as error:
                with self.lock:
                    self.failed_tries.append(error)
                time.sleep(0.2)
                continue
            with self.lock:
                self.answered += 1
                if not np.array_equal(answer.outputs["scores"], expected):
                    self.wrong.append("another answer than before")
            return
        with self.lock:
            self.wrong.append(f"no answer after {self.tries} tries")


def test_it_grows_under_load_and_goes_on_when_a_node_dies(nodes: Nodes, client: OipClient) -> None:
    assert nodes.replicas() == 1
    expected = client.infer(InferRequest(MODEL, {"image": pictures(1)}), LIMIT_S).outputs["scores"]
    load = Load()
    threads = [threading.Thread(target=load.run, args=(expected,)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: nodes.replicas() == 4, "it never had four replicas")
        nodes.lose_second()
        until(lambda: nodes.replicas() == 2, "the lost replicas are still counted")
        before = load.answered
        until(lambda: load.answered > before + 200, "the service does not go on")
        settled = len(load.failed_tries)
        until(lambda: load.answered > before + 400, "the service does not go on")
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(LIMIT_S * 2)
    kinds = Counter(error.kind for error in load.failed_tries)
    print(f"answered {load.answered}, tries that failed: {dict(kinds)}")
    assert not any(thread.is_alive() for thread in threads), "a request hangs"
    assert load.wrong == []
    assert len(load.failed_tries) == settled, "requests still fail after the loss was noticed"
    assert set(kinds) <= {RemoteErrorKind.UNAVAILABLE, RemoteErrorKind.INTERNAL, RemoteErrorKind.DEADLINE}, kinds


def test_a_service_without_a_model_that_works_says_why(nodes: Nodes, tmp_path: Path) -> None:
    """The last test: it takes the place of the service of the others."""
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    scale = serve.Scale(max_replicas=1)
    with pytest.raises(
        ModelFailed, match=r"^no model can be served: bad version 1: bad/1/model\.onnx: not an ONNX file"
    ):
        serve.start(config(tmp_path), scale, LIMIT_S)
