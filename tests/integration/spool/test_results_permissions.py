"""Whose results a token may read, and that one which is gone reads nothing."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.integration.spool.harness import ALLOWED, Scene, case, scene, until
from upwell.edge.server.result_stream import MAX_PER_CLIENT, MAX_STREAMS, add_agent_service
from upwell.rpc.agent.v1 import agent_pb2, agent_pb2_grpc
from upwell.shared.config.security import ServerSecurity
from upwell.shared.oip.auth.limit_keys import Limits
from upwell.shared.oip.auth.request_quotas import limited
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections, start_server

ALICE, BOB, BOSS = "alice", "bob", "boss"


class Doors:
    """A tokens.yaml that can be changed, and a server behind it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.yaml"
        self.let_in(ALICE, BOB, BOSS)

    def let_in(self, *names: str) -> None:
        entries = [
            {
                "name": name,
                "sha256": hashlib.sha256(name.encode()).hexdigest(),
                "results": "all" if name == BOSS else "own",
            }
            for name in names
        ]
        draft = self.path.with_name("draft")
        draft.write_text(json.dumps({"version": 1, "tokens": entries}))
        os.replace(draft, self.path)


@contextmanager
def guarded(folder: Path, **more: Any) -> Iterator[tuple[Scene, Doors, Callable[[str], Any], str]]:
    doors = Doors(folder)
    with scene(folder) as it:
        server = start_server(
            FakeDataplane(),
            ["127.0.0.1:0"],
            max_workers=2 + MAX_STREAMS,
            connections=Connections(ServerSecurity(tokens=doors.path)),
            extra=[partial(add_agent_service, spool=it.spool, **more)],
        )
        channel = grpc.insecure_channel(server.addresses[0])
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]  # generated

        def results(name: str) -> Any:
            return stub.Results(agent_pb2.ResultsRequest(), timeout=30, metadata=(("authorization", f"Bearer {name}"),))

        try:
            yield it, doors, results, server.addresses[0]
        finally:
            channel.close()
            server.stop(0)


def keep(it: Scene, number: int, owner: str) -> str:
    key = f"token:{owner}" if owner else ""
    return it.spool.put(replace(case(number), owner=key), ALLOWED, time.monotonic() + 10)


def test_a_token_reads_the_results_of_its_own_cases(tmp_path: Path) -> None:
    with guarded(tmp_path, idle_s=0.3) as (it, _, results, _):
        kept = {name: keep(it, number, name) for number, name in enumerate((ALICE, BOB, ""), 1)}
        until(lambda: it.spool.counts().answered == 3)
        for reader, expected in ((ALICE, {kept[ALICE]}), (BOB, {kept[BOB]}), (BOSS, {*kept.values()})):
            assert {one.spool_id for one in results(reader)} == expected


def test_a_stream_of_a_token_that_is_gone_ends_before_the_next_result(tmp_path: Path) -> None:
    with guarded(tmp_path) as (it, doors, results, _):
        keep(it, 1, ALICE)
        stream = results(ALICE)
        next(stream)
        seen: list[Any] = []

        def read_on() -> None:
            try:
                seen.extend(stream)
            except grpc.RpcError as error:
                seen.append(error.code())

        thread = threading.Thread(target=read_on)
        thread.start()
        doors.let_in(BOB)
        time.sleep(1.5)  # the file is looked at once a second
        keep(it, 2, ALICE)
        thread.join(20)
        assert seen == [grpc.StatusCode.UNAUTHENTICATED]


def test_streams_of_one_client_do_not_shut_out_another(tmp_path: Path) -> None:
    with guarded(tmp_path) as (it, _, results, _):
        keep(it, 1, ALICE)
        keep(it, 2, BOB)
        held = [results(ALICE) for _ in range(MAX_PER_CLIENT)]
        for stream in held:
            next(stream)
        with pytest.raises(grpc.RpcError) as caught:
            next(results(ALICE))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert next(results(BOB)).spool_id


def test_a_stream_ends_of_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upwell.edge.server.result_stream.MAX_AGE_S", 0.5)
    with guarded(tmp_path) as (it, _, results, _):
        keep(it, 1, ALICE)
        assert len([*results(ALICE)]) == 1


def test_a_stream_of_requests_ends_once_its_token_is_gone(tmp_path: Path) -> None:
    with guarded(tmp_path) as (_, doors, _, address):
        asking = threading.Event()
        from upwell.shared.oip.codec.converters import serialize_infer_request

        message = serialize_infer_request(InferRequest("echo", EXAMPLE))

        def requests() -> Iterator[Any]:
            yield message
            asking.wait(20)
            yield message

        channel = grpc.insecure_channel(address)
        method: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        stream = method(requests(), timeout=30, metadata=(("authorization", f"Bearer {ALICE}"),))
        try:
            next(stream)
            doors.let_in(BOB)
            time.sleep(1.5)
            asking.set()
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        finally:
            asking.set()
            channel.close()


def test_two_authorization_entries_are_refused(tmp_path: Path) -> None:
    with guarded(tmp_path) as (_, _, _, address):
        channel = grpc.insecure_channel(address)
        method: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        try:
            for second in ("Bearer alice", "Bearer bob"):
                with pytest.raises(grpc.RpcError) as caught:
                    method(b"", timeout=10, metadata=(("authorization", "Bearer alice"), ("authorization", second)))
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert method(b"", timeout=10, metadata=(("authorization", "Bearer alice"),))
        finally:
            channel.close()


def test_messages_that_cannot_be_read_count_and_then_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from upwell.shared.oip.codec import converters
    from upwell.shared.oip.grpc.server import servicer

    reads: list[int] = []
    read = converters.parse_infer_request

    def counted(data: bytes) -> InferRequest:
        reads.append(len(data))
        return read(data)

    monkeypatch.setattr(servicer, "parse_infer_request", counted)
    limits = Limits.model_validate({"bytes": "1MiB/min"})
    server = start_server(limited(FakeDataplane(), limits, by_token=False), ["127.0.0.1:0"], max_workers=2)
    channel = grpc.insecure_channel(server.addresses[0])
    method: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    garbage = b"\xff" * 2_000_000
    codes = []
    try:
        for _ in range(10):
            with pytest.raises(grpc.RpcError) as caught:
                method(garbage, timeout=10)
            codes.append(caught.value.code())
        assert codes == [grpc.StatusCode.INVALID_ARGUMENT, *[grpc.StatusCode.RESOURCE_EXHAUSTED] * 9]
        assert len(reads) == 1
        client = OipClient(server.addresses[0])
        try:
            with pytest.raises(RemoteError) as refused:
                client.infer(InferRequest("echo", {"fp32": np.zeros((1, 1), np.float32)}), 10.0)
            assert refused.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
        finally:
            client.close()
    finally:
        channel.close()
        server.stop(0)
