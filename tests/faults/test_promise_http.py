"""The promise over HTTP/1.1: what `test_promise` breaks over gRPC, and what only HTTP can get wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.faults.clouds import GARBAGE, Behaviour, ScriptedCloud, good, silent, slow, status
from tests.faults.http_clouds import ScriptedHttpCloud
from tests.faults.raw_http import BROKEN_HTTP
from tests.faults.raw_servers import RawServer
from tests.faults.scene import (
    ALONE,
    BESIDE_OTHERS,
    CASCADE,
    DIRECT,
    ONE,
    Scene,
    Times,
    assert_from_cloud,
    assert_from_edge,
    assert_recovers,
    scene,
    until,
    within,
)
from tests.faults.test_promise import (
    BROKEN_LINK,
    GONE,
    LATE,
    LATE_LINK,
    STATUSES,
    breaks_and_heals,
)
from upwell.edge.uplink.cloud_call import REASON_OF
from upwell.shared.routing.reasons import Reason


@pytest.fixture(scope="module")
def _one_http_cloud() -> Iterator[ScriptedHttpCloud]:
    with ScriptedHttpCloud() as cloud:
        yield cloud


@pytest.fixture
def http_cloud(_one_http_cloud: ScriptedHttpCloud) -> ScriptedHttpCloud:
    _one_http_cloud.behaviour = good
    _one_http_cloud.requests.clear()
    _one_http_cloud.callers.clear()
    _one_http_cloud.connections = _one_http_cloud.answered_gets = 0
    return _one_http_cloud


def behaves_and_recovers(
    it: Scene, cloud: ScriptedHttpCloud, behaviour: Behaviour, reasons: tuple[str, ...], times: Times = BESIDE_OTHERS
) -> None:
    breaks_and_heals(
        it,
        lambda: setattr(cloud, "behaviour", behaviour),
        reasons,
        lambda: setattr(cloud, "behaviour", good),
        times,
    )


@pytest.mark.slow
@pytest.mark.parametrize("code", STATUSES)
def test_an_error_from_the_cloud(folder: Path, http_cloud: ScriptedHttpCloud, code: grpc.StatusCode) -> None:
    with scene(folder, DIRECT, http_cloud) as it:
        behaves_and_recovers(it, http_cloud, status(code), (STATUSES[code],))


@pytest.mark.slow
@pytest.mark.parametrize("kind", GARBAGE)
def test_an_answer_that_nobody_can_use(folder: Path, http_cloud: ScriptedHttpCloud, kind: str) -> None:
    with scene(folder, CASCADE, http_cloud) as it:
        behaves_and_recovers(it, http_cloud, GARBAGE[kind], ("cloud_garbage",))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("policy", "behaviour"), [(CASCADE, slow(1.0)), (DIRECT, silent)], ids=["slow cascade", "silent direct"]
)
def test_a_cloud_that_answers_late_or_never(
    folder: Path, http_cloud: ScriptedHttpCloud, policy: Mapping[str, Any], behaviour: Behaviour
) -> None:
    with scene(folder, within(ALONE.deadline_s, policy), http_cloud) as it:
        behaves_and_recovers(it, http_cloud, behaviour, LATE, ALONE)


@pytest.mark.parametrize("fault", BROKEN_LINK)
def test_a_broken_link(folder: Path, http_cloud: ScriptedHttpCloud, fault: str) -> None:
    def heal() -> None:
        it.proxy.restore()
        it.proxy.retarget(http_cloud.address)

    with scene(folder, DIRECT, http_cloud) as it:
        breaks_and_heals(it, lambda: BROKEN_LINK[fault](it), GONE, heal)


@pytest.mark.alone
@pytest.mark.parametrize("fault", LATE_LINK)
def test_a_late_link(folder: Path, http_cloud: ScriptedHttpCloud, fault: str) -> None:
    with scene(folder, within(ALONE.deadline_s, DIRECT), http_cloud) as it:
        breaks_and_heals(it, lambda: LATE_LINK[fault](it), LATE, it.proxy.restore, ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN_HTTP)
def test_a_server_that_is_none(folder: Path, http_cloud: ScriptedHttpCloud, kind: str) -> None:
    speech, error = BROKEN_HTTP[kind]
    with scene(folder, DIRECT, http_cloud, agent={"max_message": "1MiB"}) as it, RawServer(speech) as raw:
        assert_from_cloud(it.ask(ONE))
        it.proxy.retarget(raw.address)
        assert_from_edge(it.ask(ONE), (REASON_OF.get(error, Reason.CLOUD_ERROR),))
        it.proxy.retarget(http_cloud.address)
        assert_recovers(it.ask)


def test_a_cloud_that_restarts_on_its_port_is_used_again(folder: Path) -> None:
    with ScriptedHttpCloud() as cloud, scene(folder, CASCADE, cloud) as it:
        assert_from_cloud(it.ask(ONE))
        cloud.stop()
        assert_from_edge(it.ask(ONE), GONE)
        cloud.start()
        assert_recovers(it.ask)


def test_requests_share_a_connection(folder: Path, http_cloud: ScriptedHttpCloud) -> None:
    with scene(folder, DIRECT, http_cloud) as it:
        until(lambda: http_cloud.answered_gets > 0)
        for _ in range(20):
            assert_from_cloud(it.ask(ONE))
    assert len(http_cloud.requests) == 20
    assert http_cloud.connections <= 2  # the agent's own question, what the model takes, may still hold the other


def test_a_hedge_goes_over_a_connection_of_its_own_and_the_other_is_given_up(
    folder: Path, http_cloud: ScriptedHttpCloud
) -> None:
    calls = iter([silent])
    defaults = {"deadline": "5s", "hedge": {"after": "50ms", "at_most": "100%"}}
    http_cloud.behaviour = lambda request, context: next(calls, good)(request, context)
    with scene(folder, {**DIRECT, "defaults": defaults}, http_cloud) as it:
        assert_from_cloud(it.ask(ONE))
    assert (len(http_cloud.requests), len(set(http_cloud.callers))) == (2, 2)


def test_what_https_cannot_do_a_fallback_over_grpc_does(folder: Path, http_cloud: ScriptedHttpCloud) -> None:
    with ScriptedCloud() as other:
        section = lambda address: {"endpoint": f"http://{address}", "fallbacks": [other.address]}  # noqa: E731
        with scene(folder, DIRECT, http_cloud, cloud_section=section) as it:
            assert_from_cloud(it.ask(ONE))
            it.proxy.refuse()
            assert_from_edge(it.ask(ONE), GONE)
            assert_from_cloud(it.ask(ONE))
        assert len(other.requests) == 1
