"""The promise: whatever the cloud does, the device answers in time and says why; then the cloud is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.examples import grid
from tests.faults.clouds import GARBAGE, Behaviour, ScriptedCloud, good, silent, slow, status
from tests.faults.raw_servers import BROKEN_FRAMING, RawServer
from tests.faults.scene import (
    ALONE,
    BESIDE_OTHERS,
    CASCADE,
    DIRECT,
    LARGE,
    ONE,
    PLANS,
    WAITED_S,
    Scene,
    Times,
    assert_from_cloud,
    assert_from_edge,
    assert_recovers,
    scene,
    within,
)

STATUSES = {
    grpc.StatusCode.CANCELLED: "cloud_unavailable",
    grpc.StatusCode.UNKNOWN: "cloud_error",
    grpc.StatusCode.INVALID_ARGUMENT: "cloud_invalid_argument",
    grpc.StatusCode.DEADLINE_EXCEEDED: "cloud_deadline",
    grpc.StatusCode.NOT_FOUND: "cloud_model_missing",
    grpc.StatusCode.ALREADY_EXISTS: "cloud_error",
    grpc.StatusCode.PERMISSION_DENIED: "cloud_unauthenticated",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "cloud_exhausted",
    grpc.StatusCode.FAILED_PRECONDITION: "cloud_error",
    grpc.StatusCode.ABORTED: "cloud_error",
    grpc.StatusCode.OUT_OF_RANGE: "cloud_invalid_argument",
    grpc.StatusCode.UNIMPLEMENTED: "cloud_error",
    grpc.StatusCode.INTERNAL: "cloud_error",
    grpc.StatusCode.UNAVAILABLE: "cloud_unavailable",
    grpc.StatusCode.DATA_LOSS: "cloud_garbage",
    grpc.StatusCode.UNAUTHENTICATED: "cloud_unauthenticated",
}
LATE = ("cloud_deadline",)
GONE = ("cloud_unavailable",)
BROKEN_LINK: Mapping[str, Callable[[Scene], object]] = {
    "refused": lambda s: s.proxy.refuse(),
    "gone behind an open door": lambda s: s.proxy.retarget("127.0.0.1:1"),
    "reset at the first byte of the reply": lambda s: s.proxy.down.reset_after(1),
    "reset mid-reply": lambda s: s.proxy.down.reset_after(100),
    "reset mid-request": lambda s: s.proxy.up.reset_after(60),
    "cut mid-request": lambda s: s.proxy.up.cut_after(60),
    "cut mid-reply": lambda s: s.proxy.down.cut_after(100),
}
LATE_LINK: Mapping[str, Callable[[Scene], object]] = {
    "silent link": lambda s: s.proxy.blackhole(),
    "silent on the way back": lambda s: s.proxy.down.blackhole(),
    "slow link": lambda s: s.proxy.down.delay(1.0),
    "narrow link": lambda s: s.proxy.up.throttle(100),
}
UNREADABLE = ("cloud_garbage", "cloud_error", "cloud_unavailable", "cloud_exhausted", "cloud_deadline")
"""Below its messages gRPC does not always tell a server that garbles from one that fails, says so or is silent."""


def under_every_plan(faults: Iterable[Any], *plans: str) -> list[Any]:
    """Each fault with each of the plans; with one of them in `make test`."""
    return grid(
        {getattr(fault, "name", str(fault)): fault for fault in faults}, {plan: PLANS[plan] for plan in plans or PLANS}
    )


def breaks_and_heals(
    scene: Scene,
    break_it: Callable[[], object],
    reasons: tuple[str, ...],
    heal: Callable[[], object],
    times: Times = BESIDE_OTHERS,
) -> None:
    """With each way to ask: the cloud's answer, then the device's while it is broken, then the cloud's again."""
    for ask in scene.asks.values():
        assert_from_cloud(ask(ONE))
    break_it()
    for ask in scene.asks.values():
        assert_from_edge(ask(ONE), reasons, times=times)
    heal()
    for ask in scene.asks.values():
        assert_recovers(ask, times)


@pytest.mark.parametrize(("code", "policy"), under_every_plan(STATUSES))
def test_an_error_from_the_cloud(
    folder: Path, cloud: ScriptedCloud, policy: Mapping[str, Any], code: grpc.StatusCode
) -> None:
    with scene(folder, policy, cloud) as it:
        breaks_and_heals(
            it,
            lambda: setattr(cloud, "behaviour", status(code)),
            (STATUSES[code],),
            lambda: setattr(cloud, "behaviour", good),
        )


@pytest.mark.parametrize(("kind", "policy"), under_every_plan(GARBAGE))
def test_an_answer_that_nobody_can_use(
    folder: Path, cloud: ScriptedCloud, policy: Mapping[str, Any], kind: str
) -> None:
    with scene(folder, policy, cloud) as it:
        breaks_and_heals(
            it,
            lambda: setattr(cloud, "behaviour", GARBAGE[kind]),
            ("cloud_garbage",),
            lambda: setattr(cloud, "behaviour", good),
        )


@pytest.mark.alone
@pytest.mark.parametrize(
    ("policy", "behaviour"),
    [(CASCADE, slow(1.0)), (DIRECT, silent), (LARGE, status(grpc.StatusCode.DEADLINE_EXCEEDED))],
    ids=["slow", "silent", "says so"],
)
def test_a_cloud_that_answers_late_or_never(
    folder: Path, cloud: ScriptedCloud, policy: Mapping[str, Any], behaviour: Behaviour
) -> None:
    with scene(folder, within(ALONE.deadline_s, policy), cloud) as it:
        breaks_and_heals(
            it,
            lambda: setattr(cloud, "behaviour", behaviour),
            LATE,
            lambda: setattr(cloud, "behaviour", good),
            ALONE,
        )


@pytest.mark.parametrize(("fault", "policy"), under_every_plan(BROKEN_LINK, "direct", "cascade"))
def test_a_broken_link(folder: Path, cloud: ScriptedCloud, policy: Mapping[str, Any], fault: str) -> None:
    def heal() -> None:
        it.proxy.restore()
        it.proxy.retarget(cloud.address)

    with scene(folder, policy, cloud) as it:
        breaks_and_heals(it, lambda: BROKEN_LINK[fault](it), GONE, heal)


@pytest.mark.alone
@pytest.mark.parametrize(("fault", "policy"), under_every_plan(LATE_LINK, "direct", "cascade"))
def test_a_late_link(folder: Path, cloud: ScriptedCloud, policy: Mapping[str, Any], fault: str) -> None:
    with scene(folder, within(ALONE.deadline_s, policy), cloud) as it:
        breaks_and_heals(it, lambda: LATE_LINK[fault](it), LATE, it.proxy.restore, ALONE)


@pytest.mark.parametrize(("kind", "policy"), under_every_plan(BROKEN_FRAMING))
def test_a_server_that_breaks_the_framing(
    folder: Path, cloud: ScriptedCloud, policy: Mapping[str, Any], kind: str
) -> None:
    with scene(folder, within(WAITED_S, policy), cloud) as it, RawServer(BROKEN_FRAMING[kind]) as raw:
        breaks_and_heals(
            it, lambda: it.proxy.retarget(raw.address), UNREADABLE, lambda: it.proxy.retarget(cloud.address)
        )
