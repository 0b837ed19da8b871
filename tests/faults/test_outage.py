"""What the agent does while the cloud is away, beyond answering: it leaves it alone, refuses early, errs as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.examples import sampled
from tests.faults.clouds import ScriptedCloud, good, junk, silent, status
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    ALONE,
    CASCADE,
    DIRECT,
    HARD_ALWAYS,
    IN_TIME_S,
    ONE,
    STALL_S,
    WAITED_S,
    Scene,
    Seen,
    assert_from_cloud,
    assert_from_edge,
    assert_recovers,
    in_process,
    over_oip,
    scene,
    until,
    within,
)
from tests.faults.slow_edge import slow_agent
from upwell.shared.errors import (
    CloudFailed,
    DeadlineExceeded,
    ModelFailed,
    ModelNotFound,
    NoAllowedRoute,
    Refused,
    Unavailable,
    UpwellError,
)
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.routing.decide.router_state import EdgeRan
from upwell.shared.routing.estimators.circuit_breaker import Breaker

FAILURES_UNTIL_OPEN = 3


def fail_until_open(it: Scene) -> None:
    for _ in range(FAILURES_UNTIL_OPEN):
        it.ask(ONE)
    assert_from_edge(it.ask(ONE), ("breaker_open",), times=ALONE)


@pytest.mark.alone
@pytest.mark.parametrize("policy", [CASCADE, DIRECT], ids=["cascade", "direct"])
def test_after_three_failures_the_cloud_is_left_alone_until_a_probe_finds_it_back(
    folder: Path, cloud: ScriptedCloud, policy: dict[str, Any]
) -> None:
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    with scene(folder, within(ALONE.deadline_s, policy), cloud) as it:
        began_s = time.monotonic()
        fail_until_open(it)
        asked = len(cloud.requests)
        while time.monotonic() < began_s + 0.9 * Breaker.FIRST_WAIT_S:  # on a machine that is busy that may be never
            assert_from_edge(it.ask(ONE), ("breaker_open",), times=ALONE)
            assert len(cloud.requests) == asked
        cloud.behaviour = good
        assert_recovers(it.ask, ALONE)
        assert len(cloud.requests) == asked + 1


@pytest.mark.alone
@pytest.mark.parametrize("objective", sampled(["accuracy", "energy", "latency"], 3))
def test_a_silent_cloud_is_left_alone_whatever_the_objective(cloud: ScriptedCloud, objective: str) -> None:
    """Where the first answer counts it is the device's then, and yet each request has waited long for the cloud."""
    wants = {"objective": objective, "deadline": "300ms", "large": {"above": "1B"}, "energy": {"inference": "1J"}}
    with slow_agent(0.02, {"defaults": {**wants, "hard": "off"}}, cloud.address) as (agent, _):
        ask = in_process(agent)
        for took_s in (0.02, 0.02, 0.02, 0.02, 0.12):  # so that the device begins long before the cloud is given up
            agent.router.observe(EdgeRan("digits", 1, took_s))
        assert_from_cloud(ask(ONE))
        cloud.behaviour = silent
        reasons = [ask(ONE).reason for _ in range(16)]
        assert reasons[0] == ("cloud_deadline" if objective == "accuracy" else "edge_faster")
        assert set(reasons[10:]) <= {"breaker_open", "cloud_not_better"}


@pytest.mark.alone
def test_one_probe_at_a_time(folder: Path, cloud: ScriptedCloud) -> None:
    cloud.behaviour = silent
    with scene(folder, within(ALONE.deadline_s, DIRECT), cloud) as it:
        fail_until_open(it)
        asked = len(cloud.requests)
        with ThreadPoolExecutor(8) as callers:
            until(
                lambda: any(seen.reason == "cloud_deadline" for seen in callers.map(lambda _: it.ask(ONE), range(8))),
                ALONE.recovery_s,
            )
        assert len(cloud.requests) == asked + 1


@pytest.mark.alone
@pytest.mark.slow
def test_a_long_outage_ends_within_five_seconds_of_the_return(folder: Path, cloud: ScriptedCloud) -> None:
    """The longest wait between probes is reached first."""
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    with scene(folder, within(ALONE.deadline_s, CASCADE), cloud) as it:
        fail_until_open(it)
        until(lambda: it.agent.router.state.breakers[""].wait_s >= 2.0 or it.ask(ONE) is None, timeout_s=10.0)
        cloud.behaviour = good
        assert_recovers(it.ask, ALONE)


@pytest.mark.alone
def test_a_cloud_that_restarts_on_its_port_is_used_again(folder: Path) -> None:
    with ScriptedCloud() as cloud, scene(folder, within(ALONE.deadline_s, CASCADE), cloud) as it:
        assert_from_cloud(it.ask(ONE))
        cloud.stop()
        fail_until_open(it)
        cloud.start()
        assert_recovers(it.ask, ALONE)


def test_a_cloud_that_is_not_there_at_the_start_is_found_later(folder: Path) -> None:
    with ScriptedCloud() as cloud:
        cloud.stop()
        with scene(folder, CASCADE, cloud) as it:
            assert_from_edge(it.ask(ONE), ("cloud_unavailable",))
            cloud.start()
            assert_recovers(it.ask)


ERROR_MODE = {**HARD_ALWAYS, "on_cloud_failure": "error"}
REMOTE = {"digits": {"cloud": {"model": "digits-large"}}}


@pytest.mark.parametrize(
    ("behaviour", "rules"),
    [(status(grpc.StatusCode.INTERNAL), []), (junk(b"\xff"), DIRECT["rules"]), (silent, [])],
    ids=["error-cascade", "garbage-direct", "silent-cascade"],
)
def test_where_the_policy_asks_for_an_error_it_comes_in_time(
    folder: Path, cloud: ScriptedCloud, rules: list[Any], behaviour: Any
) -> None:
    with scene(folder, within(WAITED_S, {"defaults": ERROR_MODE, "rules": rules}), cloud) as it:
        assert_from_cloud(it.ask(ONE))
        cloud.behaviour = behaviour
        for _ in range(FAILURES_UNTIL_OPEN + 1):
            assert raised(lambda: it.ask(ONE), (CloudFailed, DeadlineExceeded)) <= IN_TIME_S
        cloud.behaviour = good
        until(lambda: succeeds(lambda: assert_from_cloud(it.ask(ONE)), CloudFailed))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (status(grpc.StatusCode.UNAVAILABLE), Unavailable),
        (status(grpc.StatusCode.NOT_FOUND), ModelNotFound),
        (status(grpc.StatusCode.RESOURCE_EXHAUSTED), Refused),
        (status(grpc.StatusCode.INTERNAL), CloudFailed),
        (junk(b"\xff"), CloudFailed),
        (silent, DeadlineExceeded),
    ],
    ids=["unavailable", "not found", "exhausted", "internal", "garbage", "silent"],
)
def test_a_model_that_only_the_cloud_has(
    folder: Path, cloud: ScriptedCloud, behaviour: Any, error: type[UpwellError]
) -> None:
    with scene(folder, within(ALONE.deadline_s, CASCADE), cloud, models=REMOTE) as it:
        assert_from_cloud(it.ask(ONE))
        cloud.behaviour = behaviour
        for _ in range(FAILURES_UNTIL_OPEN):
            assert raised(lambda: it.ask(ONE), error) <= ALONE.in_time_s
        assert raised(lambda: it.ask(ONE), Unavailable) < ALONE.in_time_s
        asked = len(cloud.requests)
        raised(lambda: it.ask(ONE), Unavailable)
        assert len(cloud.requests) == asked


def test_a_model_that_only_the_cloud_has_is_served_again_when_the_cloud_is_back(
    folder: Path, cloud: ScriptedCloud
) -> None:
    with scene(folder, CASCADE, cloud, models=REMOTE) as it:
        cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
        for _ in range(FAILURES_UNTIL_OPEN):
            raised(lambda: it.ask(ONE), Unavailable)
        cloud.behaviour = good
        until(lambda: succeeds(lambda: assert_from_cloud(it.ask(ONE)), (Unavailable, DeadlineExceeded)))


@pytest.mark.alone
def test_a_deadline_that_the_device_cannot_meet_is_refused_at_once(cloud: ScriptedCloud) -> None:
    with slow_agent(0.08, {"defaults": {"deadline": "1s"}}) as (agent, runtime), over_oip(agent) as remote:
        assert in_process(agent)(ONE).took_s >= 0.08
        runs = runtime.runs
        assert raised(lambda: in_process(agent)(ONE, deadline_s=0.04), Refused) < 0.04
        assert refused_over_oip(lambda: remote(ONE, deadline_s=0.04)) < 0.08
        assert runtime.runs == runs
        assert remote(ONE, deadline_s=0.5).route == "edge"


@pytest.mark.alone
def test_a_deadline_that_only_the_cloud_can_meet_goes_up(cloud: ScriptedCloud) -> None:
    policy = {"defaults": {"deadline": "1s", "hard": "off"}, "rules": [
        {"name": "warm", "match": {"tags": {"warm": "yes"}}, "route": "cloud"}]}  # fmt: skip
    with Proxy(cloud.address) as proxy, slow_agent(0.2, policy, proxy.address) as (agent, _):
        ask = in_process(agent)
        for _ in range(12):
            assert ask(ONE, tags={"warm": "yes"}).route == "cloud"
        assert ask(ONE).route == "edge"
        seen = ask(ONE, deadline_s=0.1)
        assert (seen.route, seen.reason, seen.degraded) == ("cloud", "edge_busy", False)
        proxy.refuse()
        for _ in range(FAILURES_UNTIL_OPEN):
            ask(ONE, tags={"warm": "yes"})
        assert raised(lambda: ask(ONE, deadline_s=0.1), Refused) < 0.05


@pytest.mark.alone
def test_a_deadline_that_has_passed(folder: Path, cloud: ScriptedCloud) -> None:
    with scene(folder, CASCADE, cloud) as it:
        assert raised(lambda: it.ask(ONE, deadline_s=-0.001), DeadlineExceeded) < 0.05


@pytest.mark.alone
def test_a_queue_at_the_device_is_refused_at_once_when_it_is_too_long() -> None:
    """Of many at once, each is answered in time or refused early; none is late.

    One that was admitted and then held up by the machine, not by the queue, is told so before its deadline.
    """
    with slow_agent(0.05, {"defaults": {"deadline": "1s"}}) as (agent, _):
        ask = in_process(agent)
        ask(ONE)
        took_s: list[float] = []
        refused_s: list[float] = []

        def caller() -> None:
            started_s = time.monotonic()
            try:
                took_s.append(ask(ONE, deadline_s=0.4).took_s)
            except (Refused, DeadlineExceeded):
                refused_s.append(time.monotonic() - started_s)

        together(caller, 20)
        assert len(took_s) + len(refused_s) == 20
        assert 3 <= len(took_s) <= 8
        assert max(took_s) <= 0.4 + STALL_S
        assert max(refused_s) < 0.4


@pytest.mark.alone
def test_many_that_wait_for_a_silent_cloud_fall_back_in_time_one_after_the_other(cloud: ScriptedCloud) -> None:
    """The device runs one at a time: those who wait for the cloud must begin to fall back in time for the last."""
    cloud.behaviour = silent
    policy = {"defaults": {"deadline": "400ms"}, "rules": DIRECT["rules"]}
    with slow_agent(0.02, policy, cloud.address) as (agent, _):
        ask = in_process(agent)
        ask(ONE)
        answers: list[Seen] = []
        together(lambda: answers.append(ask(ONE)), 8)
        assert [(seen.route, seen.reason) for seen in answers] == [("edge", "cloud_deadline")] * 8
        assert max(seen.took_s for seen in answers) <= 0.4 + STALL_S


@pytest.mark.parametrize("policy", [CASCADE, DIRECT], ids=["cascade", "direct"])
def test_a_device_that_fails_is_stood_in_for_by_the_cloud(cloud: ScriptedCloud, policy: dict[str, Any]) -> None:
    with slow_agent(0.0, {**policy}, cloud.address) as (agent, runtime):
        runtime.behaviour.failure = "the fake model is broken"
        assert_from_cloud(in_process(agent)(ONE))
        cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
        raised(lambda: in_process(agent)(ONE), (Unavailable, ModelFailed))


def test_a_device_that_fails_gives_an_error_where_nothing_may_leave(cloud: ScriptedCloud) -> None:
    rules = [{"name": "private", "match": {}, "egress": "deny"}]
    with slow_agent(0.0, {"defaults": HARD_ALWAYS, "rules": rules}, cloud.address) as (agent, runtime):
        runtime.behaviour.failure = "the fake model is broken"
        raised(lambda: in_process(agent)(ONE), (ModelFailed, NoAllowedRoute))
    assert cloud.requests == []


def test_an_answer_larger_than_the_limit_is_refused(folder: Path, cloud: ScriptedCloud) -> None:
    with scene(folder, CASCADE, cloud, agent={"max_message": "4KiB"}) as it:
        assert_from_cloud(it.ask(ONE))
        cloud.behaviour = junk(b"\0" * 8192)
        assert_from_edge(it.ask(ONE), ("cloud_exhausted",))


def raised(action: Callable[[], object], error: type[UpwellError] | tuple[type[UpwellError], ...]) -> float:
    """How long it took to raise that error."""
    started_s = time.monotonic()
    with pytest.raises(error):
        action()
    return time.monotonic() - started_s


def refused_over_oip(action: Callable[[], object]) -> float:
    started_s = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        action()
    assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
    return time.monotonic() - started_s


def succeeds(action: Callable[[], object], error: type[UpwellError] | tuple[type[UpwellError], ...]) -> bool:
    try:
        action()
    except error:
        return False
    return True


def together(action: Callable[[], object], count: int) -> None:
    """Run it in `count` threads at once."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def one() -> None:
        barrier.wait()
        try:
            action()
        except BaseException as error:  # noqa: BLE001 (a thread of a test hands everything to the test)
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
