"""Results reach a file, a function and a stream, once or at least once, and start where they were."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.spool.harness import Scene, scene, until
from upwell.edge.server.result_stream import MAX_PER_CLIENT, MAX_STREAMS, add_agent_service
from upwell.edge.spool.result_sinks import CallbackSink, JsonlSink
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.rpc.agent.v1 import agent_pb2, agent_pb2_grpc
from upwell.shared.oip.codec.converters import parse_infer_response
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import RunningServer, start_server


def ids(path: Path) -> list[str]:
    return [json.loads(line)["spool_id"] for line in path.read_text().splitlines()]


def delivered(it: Scene, count: int) -> None:
    until(lambda: it.spool.counts().delivered >= count, f"{it.spool.counts()}")


def test_every_sink_gets_every_result_and_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    seen: list[SpoolResult] = []
    put: list[str] = []
    for _ in range(3):
        with scene(tmp_path, sinks=[JsonlSink(path), CallbackSink(seen.append)]) as it:
            put += [it.put(number) for number in range(10)]
            delivered(it, 20)
    assert ids(path) == put
    assert [result.spool_id for result in seen] == put


def test_a_crash_before_the_cursor_was_written_brings_no_line_twice(tmp_path: Path) -> None:
    """The file itself says what it has."""
    path = tmp_path / "results.jsonl"
    with scene(tmp_path) as it:
        put = [it.put(number) for number in range(5)]
        until(lambda: it.spool.counts().answered == 5)
        results = it.spool.results(0, 10**9)
    JsonlSink(path).take(results[:3])
    with path.open("ab") as file:
        file.write(b'{"sequence": 17')
    with scene(tmp_path, sinks=[JsonlSink(path)]) as it:
        delivered(it, 2)
    assert ids(path) == put


def test_a_file_of_another_database_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"sequence": 99999999999999999, "spool_id": "of old"}\n')
    with scene(tmp_path, sinks=[JsonlSink(path)]) as it:
        put = it.put(1)
        delivered(it, 1)
    assert ids(path) == ["of old", put]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with scene(tmp_path, sinks=[JsonlSink(path)]) as it:
        first = it.put(1)
        delivered(it, 1)
        path.rename(tmp_path / "results.1.jsonl")
        second = it.put(2)
        delivered(it, 2)
    assert ids(tmp_path / "results.1.jsonl") == [first]
    assert ids(path) == [second]


def test_a_sink_that_fails_is_given_the_same_again_and_holds_up_no_other(tmp_path: Path) -> None:
    class Failing:
        name = "failing"
        failures = 1
        taken: list[int]

        def start(self) -> int:
            self.taken = []
            return 0

        def take(self, results: Sequence[SpoolResult]) -> None:
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            self.taken += [result.sequence for result in results]

    failing, path = Failing(), tmp_path / "results.jsonl"
    with scene(tmp_path, sinks=[failing, JsonlSink(path)]) as it:
        it.put(1)
        until(lambda: len(failing.taken) == 1)
        assert it.spool.counts().failed_deliveries == 1
        until(lambda: path.exists() and len(ids(path)) == 1)


@contextmanager
def streaming(tmp_path: Path, **more: Any) -> Iterator[tuple[Scene, RunningServer, agent_pb2_grpc.AgentServiceStub]]:
    with scene(tmp_path) as it:
        server = start_server(
            FakeDataplane(),
            ["127.0.0.1:0"],
            max_workers=2 + MAX_STREAMS,
            extra=[partial(add_agent_service, spool=it.spool, **more)],
        )
        channel = grpc.insecure_channel(server.addresses[0])
        try:
            yield it, server, agent_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        finally:
            channel.close()
            server.stop(0)


def ask(stub: agent_pb2_grpc.AgentServiceStub, since: int = 0) -> Any:
    return stub.Results(agent_pb2.ResultsRequest(since=since), timeout=30)


def test_a_stream_tells_what_there_is_and_follows(tmp_path: Path) -> None:
    with streaming(tmp_path) as (it, _, stub):
        first = it.put(1, tags={"camera": "dock"})
        stream = ask(stub)
        one = next(stream)
        assert (one.spool_id, one.request_id, one.kind) == (first, "request-1", agent_pb2.KIND_SPOOL)
        assert (one.model, one.cloud_model, dict(one.tags)) == ("digits", "echo", {"camera": "dock"})
        assert (one.reason, one.edge_answer) == ("cloud_unavailable", b"")
        assert one.edge_answer_digest.startswith("sha256:")
        assert 0 < one.created_unix_s <= one.answered_unix_s
        assert parse_infer_response(one.answer).outputs["fp32"].tolist() == [[1.0]]
        second = it.put(2)
        two = next(stream)
        assert (two.spool_id, two.sequence > one.sequence) == (second, True)
        assert next(ask(stub, one.sequence)).spool_id == second
        it.put(3, kind="audit")
        three = next(stream)
        assert three.kind == agent_pb2.KIND_AUDIT
        assert parse_infer_response(three.edge_answer).outputs["fp32"].tolist() == [[-3.0]]


def test_streams_are_few_and_leave_room_for_requests(tmp_path: Path) -> None:
    with streaming(tmp_path) as (it, server, stub):
        it.put(1)
        streams = [ask(stub) for _ in range(MAX_PER_CLIENT)]
        for stream in streams:
            next(stream)
        with pytest.raises(grpc.RpcError) as caught:
            next(ask(stub))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        client = OipClient(server.addresses[0])
        try:
            assert client.infer(InferRequest("echo", EXAMPLE), 10.0).outputs
        finally:
            client.close()
        streams[0].cancel()
        again: list[str] = []

        def let_in() -> bool:
            try:
                again.append(next(ask(stub)).spool_id)
            except grpc.RpcError:
                return False
            return True

        until(let_in, "room where a stream was cancelled")


def test_a_quiet_stream_ends(tmp_path: Path) -> None:
    with streaming(tmp_path, idle_s=0.05) as (it, _, stub):
        assert list(ask(stub)) == []
        it.put(1)
        until(lambda: it.spool.counts().answered == 1)
        assert len(list(ask(stub))) == 1


def test_streams_end_when_the_spool_closes(tmp_path: Path) -> None:
    with streaming(tmp_path) as (it, _, stub):
        it.put(1)
        stream = ask(stub)
        next(stream)
        ended: list[Any] = []
        thread = threading.Thread(target=lambda: ended.extend(stream))
        thread.start()
        it.spool.close()
        thread.join(10)
        assert not thread.is_alive()
        assert (ended, stream.code()) == ([], grpc.StatusCode.OK)


@pytest.mark.parametrize("since", [2**63, 2**64 - 1])
def test_a_number_beyond_all_is_no_error(tmp_path: Path, since: int) -> None:
    with streaming(tmp_path, idle_s=0.05) as (it, _, stub):
        it.put(1)
        assert list(ask(stub, since)) == []


def test_an_unreadable_message_is_invalid(tmp_path: Path) -> None:
    with streaming(tmp_path) as (_, server, _):
        channel = grpc.insecure_channel(server.addresses[0])
        try:
            method: Any = channel.unary_stream("/upwell.rpc.agent.v1.AgentService/Results")
            call = method(b"\xff\xff", timeout=10)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            channel.close()
