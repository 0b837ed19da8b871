"""Every row of `on_cloud_failure`: each way in which the cloud can fail, with each thing that a policy can ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.examples import grid
from tests.faults.certificates import Authority
from tests.faults.clouds import Behaviour, ScriptedCloud, good, junk, silent, status
from tests.faults.oracles import edge_scores, pictures
from tests.faults.scene import (
    CASCADE,
    DIRECT,
    HARD_ALWAYS,
    IN_TIME_S,
    ONE,
    WAITED_S,
    Scene,
    assert_from_cloud,
    scene,
    within,
)
from upwell.edge import Answer
from upwell.shared.errors import CloudFailed
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind

FAILURES: Mapping[str, Behaviour] = {
    "unavailable": status(grpc.StatusCode.UNAVAILABLE),
    "deadline": silent,
    "exhausted": status(grpc.StatusCode.RESOURCE_EXHAUSTED),
    "invalid_argument": status(grpc.StatusCode.INVALID_ARGUMENT),
    "model_missing": status(grpc.StatusCode.NOT_FOUND),
    "unauthenticated": status(grpc.StatusCode.UNAUTHENTICATED),
    "certificate": good,  # behind a certificate that has expired
    "error": status(grpc.StatusCode.INTERNAL),
    "garbage": junk(b"\xff" * 40),
}
ASKED = dict.fromkeys(FAILURES, 1) | {"certificate": 0}
ASKED_AGAIN = dict.fromkeys(FAILURES, 2) | {"certificate": 0, "deadline": 1, "invalid_argument": 1}
"""How often the request reaches a cloud that fails so, where the policy says `retry`."""

each = pytest.mark.parametrize(("failure", "plan"), grid(list(FAILURES), {"cascade": CASCADE, "direct": DIRECT}))


@contextmanager
def failing(
    folder: Path, cloud: ScriptedCloud, authority: Authority, plan: Mapping[str, Any], failure: str, action: str
) -> Iterator[Scene]:
    """A scene whose cloud fails so; the policy asks for `action` then, and for something else in every other case."""
    other = "edge" if action == "error" else "error"
    defaults = {**plan["defaults"], "on_cloud_failure": {"default": other, failure: action}}
    policy = {**plan, "defaults": defaults}
    if failure == "deadline":
        policy = within(WAITED_S, policy)
    agent = {"state_dir": str(folder / "state")}
    if failure != "certificate":
        cloud.behaviour = FAILURES[failure]
        with scene(folder, policy, cloud, agent=agent) as it:
            yield it
        return
    pair = authority.sign("stale", starts_in=timedelta(days=-3))
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    section = lambda address: {"endpoint": address, "tls": {"ca": str(authority.ca)}}  # noqa: E731  as scene takes it
    with ScriptedCloud(credentials) as stale, scene(folder, policy, stale, agent=agent, cloud_section=section) as it:
        yield it


def answered(it: Scene) -> Answer:
    """One answer, in time."""
    started_s = time.monotonic()
    answer = it.agent.infer("digits", {"image": ONE})
    assert time.monotonic() - started_s <= IN_TIME_S
    return answer


def assert_stands_in(answer: Answer, failure: str) -> None:
    np.testing.assert_allclose(answer.outputs["scores"], edge_scores(ONE), atol=1e-5)
    assert (str(answer.route), str(answer.reason), answer.degraded) == ("edge", f"cloud_{failure}", True)


@each
def test_edge(folder: Path, cloud: ScriptedCloud, authority: Authority, plan: Mapping[str, Any], failure: str) -> None:
    with failing(folder, cloud, authority, plan, failure, "edge") as it:
        answer = answered(it)
        assert_stands_in(answer, failure)
        assert answer.spool_id == ""
        assert len(it.cloud.requests) == ASKED[failure]


@each
def test_error(folder: Path, cloud: ScriptedCloud, authority: Authority, plan: Mapping[str, Any], failure: str) -> None:
    with failing(folder, cloud, authority, plan, failure, "error") as it:
        started_s = time.monotonic()
        with pytest.raises(CloudFailed, match=f"^cloud_{failure}: "):
            it.ask(ONE)
        with pytest.raises(RemoteError, match=f"cloud_{failure}: ") as caught:
            it.asks["over OIP"](ONE)
        assert caught.value.kind is RemoteErrorKind.UNAVAILABLE
        assert time.monotonic() - started_s <= 2 * IN_TIME_S


@each
def test_spool(folder: Path, cloud: ScriptedCloud, authority: Authority, plan: Mapping[str, Any], failure: str) -> None:
    with failing(folder, cloud, authority, plan, failure, "spool") as it:
        answer = answered(it)
        assert_stands_in(answer, failure)
        spool = it.agent.spool
        assert spool is not None
        if failure == "deadline":  # where the disk is slower than what is left then, the case is kept without a name
            assert answer.spool_id or spool.counts().unnamed == 1
            assert spool.held().waiting == 1  # asked of the disk behind the case itself, so it is written by then
        else:
            assert answer.spool_id


@each
def test_retry(folder: Path, cloud: ScriptedCloud, authority: Authority, plan: Mapping[str, Any], failure: str) -> None:
    with failing(folder, cloud, authority, plan, failure, "retry") as it:
        assert_stands_in(answered(it), failure)
        assert len(it.cloud.requests) == ASKED_AGAIN[failure]


@pytest.mark.parametrize("failure", [name for name, count in ASKED_AGAIN.items() if count == 2])
def test_retry_takes_the_answer_of_another_endpoint(folder: Path, cloud: ScriptedCloud, failure: str) -> None:
    cloud.behaviour = FAILURES[failure]
    policy = {"defaults": {**CASCADE["defaults"], "on_cloud_failure": "retry"}}
    with ScriptedCloud() as other:
        section = lambda address: {"endpoint": address, "fallbacks": [other.address]}  # noqa: E731  as scene takes it
        with scene(folder, policy, cloud, cloud_section=section) as it:
            assert_from_cloud(it.ask(ONE))
        assert (len(cloud.requests), len(other.requests)) == (1, 1)


def test_each_part_of_a_request_that_fails_has_its_say(folder: Path, cloud: ScriptedCloud) -> None:
    """Large rows go up before the device runs and hard ones after it: here the two fail in different ways."""
    rows = pictures([0, 1])
    rows[1] += bytes(5000)  # readers of PNG pass over what comes behind its end
    defaults = {
        **HARD_ALWAYS,
        "large": {"above": "4KiB"},
        "on_cloud_failure": {"default": "edge", "exhausted": "error"},
    }
    with scene(folder, {"defaults": defaults}, cloud) as it:
        cloud.behaviour = lambda request, context: FAILURES[
            "unavailable" if len(request.inputs["image"][0]) > 4096 else "exhausted"
        ](request, context)
        with pytest.raises(CloudFailed, match=r"^cloud_exhausted: "):
            it.ask(rows)
        assert len(cloud.requests) == 2


@pytest.mark.parametrize("allowed", [1, 2])
def test_asking_once_more_is_paid_for(folder: Path, cloud: ScriptedCloud, allowed: int) -> None:
    cloud.behaviour = FAILURES["error"]
    defaults = {**HARD_ALWAYS, "on_cloud_failure": "retry", "budget": {"cloud_requests": f"{allowed}/week"}}
    with scene(folder, {"defaults": defaults}, cloud) as it:
        assert [it.ask(ONE).reason for _ in range(2)] == ["cloud_error", "budget_spent"]
    assert len(cloud.requests) == allowed
