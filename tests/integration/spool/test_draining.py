"""Cases go up when the link is back, in order, once each, and a bad one never stands in the way."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.spool.harness import ALLOWED, DENIED, FAST, WAIT_S, Scene, case, scene, until
from upwell.edge.spool.result_sinks import CallbackSink
from upwell.edge.spool.spooled_request import SPOOL_ID, Later, SpoolLimits, SpoolResult
from upwell.edge.uplink.egress import EgressForbidden
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Unauthenticated, Unavailable
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind


def answered(it: Scene, count: int) -> None:
    until(lambda: it.spool.counts().answered == count, f"{count} answers, {it.spool.counts()}")


def test_what_was_kept_goes_up_in_order_when_the_link_is_back(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        ids = [it.put(number) for number in range(20)]
        assert all(ids)
        assert len(set(ids)) == 20
        assert it.spool.held().waiting == 20
        assert it.cloud.requests == []
        it.gate.set()
        answered(it, 20)
        assert it.cloud.ids == ids
        assert it.cloud.numbers == list(range(20))
        assert [result.spool_id for result in it.spool.results(0, 10**9)] == ids
        result = it.spool.results(0, 1)[0]
        assert result.response().outputs["fp32"].tolist() == [[0.0]]
        assert (result.model, result.cloud_model, result.request_id) == ("digits", "echo", "request-0")


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        ids = [it.put(number) for number in range(5)]
    with scene(tmp_path) as it:
        answered(it, 5)
        assert it.cloud.ids == ids
    with scene(tmp_path) as it:
        assert [result.spool_id for result in it.spool.results(0, 10**9)] == ids
        assert it.cloud.requests == []


def test_what_was_stored_before_the_clock_was_set_is_not_dropped_as_old(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        ids = [it.put(number) for number in range(3)]
    with closing(sqlite3.connect(it.path)) as connection, connection:
        connection.execute("UPDATE items SET kept_s = kept_s - 1.7e9, next_s = next_s - 1.7e9")
    with scene(tmp_path) as it:
        ids.append(it.put(3))
        answered(it, 4)
        assert it.cloud.ids == ids
        assert it.spool.counts().dropped_old == 0


def test_files_are_nobody_else_s(tmp_path: Path) -> None:
    with scene(tmp_path / "new") as it:
        assert it.put(1)
        modes = {path.name: path.stat().st_mode & 0o777 for path in it.path.parent.iterdir()}
        assert modes == {"spool.db": 0o600, "spool.db-wal": 0o600, "spool.db-shm": 0o600}
        assert it.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_verdict_against_egress_keeps_nothing(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        with pytest.raises(EgressForbidden, match="private"):
            it.spool.put(case(1), DENIED, time.monotonic() + WAIT_S)
        assert it.spool.held().waiting == 0


def test_what_the_policy_forbids_by_now_is_dropped_and_not_sent(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        for number in range(6):
            it.put(number, tags={"camera": "street" if number % 2 else "dock"})
        it.allowed["street"] = False
        it.gate.set()
        answered(it, 3)
        until(lambda: it.spool.counts().denied == 3)
        assert it.cloud.numbers == [0, 2, 4]
        assert it.spool.held().waiting == 0


def test_a_case_that_the_cloud_cannot_read_is_set_aside_at_once(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        it.cloud.faults[1] = InvalidRequest("not like this")
        for number in range(4):
            it.put(number)
        it.gate.set()
        answered(it, 3)
        assert it.cloud.numbers == [0, 1, 2, 3]
        assert (it.spool.held().poisoned, it.spool.counts().poisoned) == (1, 1)


def test_a_case_that_breaks_the_cloud_is_set_aside_after_its_attempts_and_blocks_nobody(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        it.cloud.faults[0] = ModelFailed("boom")
        it.put(0)
        it.put(1)
        it.gate.set()
        answered(it, 1)
        number = 2.0
        while it.spool.counts().poisoned == 0:  # it counts only beside others that pass
            assert number < 1000
            it.put(number)
            answered(it, int(number))
            number += 1
        assert it.cloud.numbers.count(0.0) == FAST.attempts
        assert it.spool.held().poisoned == 1


def test_while_nothing_passes_nothing_is_set_aside(tmp_path: Path) -> None:
    """A portal that garbles every answer, or a service that has lost its model, costs no case."""
    with scene(tmp_path) as it:
        it.cloud.failure = ModelFailed("boom")
        for number in range(6):
            assert it.put(number)
        until(lambda: it.spool.counts().errors >= 30)
        assert it.spool.counts().poisoned == 0
        it.cloud.failure = None
        answered(it, 6)


def test_live_answers_tell_a_bad_case_from_a_bad_link(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.cloud.failure = ModelFailed("boom")
        it.put(0)
        for count in range(1, FAST.attempts):
            until(lambda count=count: it.spool.counts().errors >= count)  # type: ignore[misc]
            it.spool.cloud_answered()
        until(lambda: it.spool.held().poisoned == 1)


@pytest.mark.parametrize("failure", [Unavailable("draining"), Unauthenticated("who are you")])
def test_nobody_is_to_blame_for_the_link(tmp_path: Path, failure: Exception) -> None:
    with scene(tmp_path) as it:
        it.cloud.failure = failure
        for number in range(3):
            it.put(number)
        until(lambda: it.spool.counts().unavailable >= 10)
        counts = it.spool.counts()
        assert (counts.errors, counts.poisoned) == (0, 0)
        it.cloud.failure = None
        it.spool.cloud_answered()
        answered(it, 3)


def broken(error: Exception) -> Callable[[InferRequest, float], InferResponse]:
    def send(request: InferRequest, timeout_s: float) -> InferResponse:
        raise error

    return send


def giving(**change: Any) -> Callable[[InferRequest, float], InferResponse]:
    def send(request: InferRequest, timeout_s: float) -> InferResponse:
        fields = {"model": "m", "outputs": request.inputs, "id": request.id, **change}
        return InferResponse(**fields)

    return send


@pytest.mark.parametrize(
    ("send", "count"),
    [
        (broken(ConfigError.at(None, "the token is gone")), "unavailable"),
        (broken(RemoteError(RemoteErrorKind.PERMISSION_DENIED, "no")), "unavailable"),
        (broken(RemoteError(RemoteErrorKind.CANCELLED, "closed")), "unavailable"),
        (giving(parameters={"upwell.degraded": True}), "unavailable"),
        (broken(RemoteError(RemoteErrorKind.NOT_FOUND, "no model")), "unavailable"),
        (broken(Later("a budget is spent")), "unavailable"),
        (broken(RemoteError(RemoteErrorKind.GARBAGE, "?")), "errors"),
        (broken(RemoteError(RemoteErrorKind.DEADLINE, "late")), "errors"),
        (broken(RemoteError(RemoteErrorKind.RESOURCE_EXHAUSTED, "too large")), "errors"),
        (broken(RuntimeError("a bug")), "errors"),
        (giving(outputs={}), "errors"),
        (giving(id="another"), "errors"),
        (giving(outputs={"x": np.zeros(1, np.complex64)}), "poisoned"),
        (broken(RemoteError(RemoteErrorKind.INVALID_ARGUMENT, "no")), "poisoned"),
    ],
)
def test_every_failure_counts_as_what_it_is(tmp_path: Path, send: Any, count: str) -> None:
    with scene(tmp_path, send=send) as it:
        it.put(1)
        until(lambda: getattr(it.spool.counts(), count) >= 1)
        counts = it.spool.counts()
        assert [name for name in ("unavailable", "errors", "poisoned") if getattr(counts, name)] == [count]
        assert counts.answered == 0


def test_live_traffic_goes_first(tmp_path: Path) -> None:
    asked = threading.Event()

    def may_send() -> bool:
        asked.set()
        return False

    with scene(tmp_path, may_send=may_send) as it:
        it.put(1)
        asked.clear()
        assert asked.wait(WAIT_S)
        assert it.cloud.requests == []


def test_one_at_a_time_and_no_more_than_the_rate(tmp_path: Path) -> None:
    inside = threading.Semaphore(1)

    def send(request: InferRequest, timeout_s: float) -> InferResponse:
        assert inside.acquire(blocking=False)
        try:
            return InferResponse("m", request.inputs)
        finally:
            inside.release()

    with scene(tmp_path, is_open=False, send=send, limits=SpoolLimits(rate_per_s=50.0)) as it:
        for number in range(11):
            it.put(number)
        began_s = time.monotonic()
        it.gate.set()
        answered(it, 11)
        assert time.monotonic() - began_s >= 10 / 50
        assert it.spool.counts().errors == 0


def test_audits_come_last_and_are_not_named(tmp_path: Path) -> None:
    results: list[SpoolResult] = []
    with scene(tmp_path, is_open=False, sinks=[CallbackSink(results.append)]) as it:
        assert it.put(1, kind="audit") == ""
        assert it.put(2)
        it.gate.set()
        until(lambda: len(results) == 2)
        assert it.cloud.numbers == [2, 1]
    edge = results[1].edge_response()
    assert edge is not None
    assert (results[1].kind, edge.outputs["fp32"].tolist()) == ("audit", [[-1.0]])
    assert results[0].edge_response() is None


def test_a_caller_without_time_is_told_no_id(tmp_path: Path) -> None:
    with scene(tmp_path, is_open=False) as it:
        assert it.spool.put(case(1), ALLOWED, float("-inf")) == ""
        until(lambda: it.spool.held().waiting == 1)
        assert it.spool.counts().unnamed == 1


@pytest.mark.parametrize("inputs", [{"x": np.zeros(1, np.complex64)}, {"\udcff": np.zeros(1, np.float32)}])
def test_what_the_protocol_cannot_carry_is_counted(tmp_path: Path, inputs: Any) -> None:
    with scene(tmp_path) as it:
        assert it.put(1, inputs=inputs) == ""
        assert it.spool.counts().refused_unfit == 1
        assert it.put(2)


def test_the_request_that_goes_up_is_the_caller_s_and_says_its_spool_id(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        inputs = {"bytes": np.array([b"\x89PNG", b""], dtype=object), "fp32": np.full((1, 1), 5, np.float32)}
        id = it.put(5, inputs=inputs)
        answered(it, 1)
        (request,) = it.cloud.requests
        assert (request.model, request.id, request.parameters) == ("echo", "request-5", {SPOOL_ID: id})
        assert request.inputs["bytes"].tolist() == [b"\x89PNG", b""]


def test_closing_ends_with_the_call_under_way(tmp_path: Path) -> None:
    with scene(tmp_path, limits=SpoolLimits(send_timeout_s=0.5)) as it:
        it.cloud.hold()
        it.put(1)
        assert it.cloud.arrived(1, WAIT_S)
        began_s = time.monotonic()
        it.spool.close()
        assert time.monotonic() - began_s < 3.0
        assert it.spool.put(case(2), ALLOWED, time.monotonic() + 1) == ""
        assert it.spool.counts().failed_writes == 1
    with scene(tmp_path) as it:
        answered(it, 1)  # the case was not lost with the call


def test_many_callers_at_once_share_commits(tmp_path: Path) -> None:
    ids: list[str] = []
    with scene(tmp_path, is_open=False) as it:
        threads = [
            threading.Thread(target=lambda n=n: ids.extend(it.put(n * 100 + i) for i in range(20))) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 160
        assert it.spool.held().waiting == 160
        it.gate.set()
        answered(it, 160)
    assert sorted(it.cloud.ids) == sorted(ids)
