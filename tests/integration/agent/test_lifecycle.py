"""The agent from start to end: SIGTERM, two of them, and one as the cloud of another."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE, cloud_scores, edge_scores, pictures
from tests.faults.programs import Program
from tests.faults.scene import write_agent
from tests.in_process import InProcess
from tests.integration.agent.harness import (
    LIMIT_S,
    Running,
    agent_process,
    ask,
    client_of,
    digits_request,
    fact,
    scores,
)
from tests.unit.models_for_tests import slow
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, PendingInfer, RemoteError, RemoteErrorKind

EDGE_ONLY = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}}
PATIENT = {"defaults": {"deadline": "60s"}}
LONG = InferRequest("slow", {"x": np.ones((4000, 512), np.float32)})
SHORT = InferRequest("slow", {"x": np.ones((1, 512), np.float32)})


COUNTS_FROZEN = """
import atexit, gc, sys
from upwell.tools.entry import main
atexit.register(lambda: print("frozen:", gc.get_freeze_count(), file=sys.stderr))
main()
"""


def test_while_it_serves_no_collection_scans_what_was_loaded_at_the_start(folder: Path) -> None:
    config = write_agent(folder, PATIENT, models=EDGE_ONLY)
    with Program(["agent", "-c", str(config)], [sys.executable, "-c", COUNTS_FROZEN]) as program:
        program.address()
        program.send(signal.SIGTERM)
        assert int(program.find(r"frozen: (\d+)")) > 10_000


def accepted(client: OipClient) -> PendingInfer:
    """A long request that is certainly being handled: it leaves no room for another."""
    while True:
        call = client.infer_async(LONG, LIMIT_S)
        while not call.done():
            if is_full(client):
                return call


def is_full(client: OipClient) -> bool:
    try:
        client.infer(SHORT, LIMIT_S)
    except RemoteError as error:
        if "already being handled" not in str(error):
            raise
        return True
    return False


@pytest.fixture
def narrow(folder: Path) -> Path:
    """The agent.yaml of one that handles a single request at a time."""
    section = {"listen": ["127.0.0.1:0", f"unix:{folder / 'a.sock'}"], "max_requests": 1}
    return write_agent(folder, PATIENT, models={"slow": {"edge": {"file": slow(folder).name}}}, agent=section)


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (signal.SIGINT, signal.SIGHUP))],
)
def test_what_was_accepted_is_answered_before_it_ends(narrow: Path, number: signal.Signals) -> None:
    with agent_process(narrow) as running, client_of(running.addresses[0]) as client:
        call = accepted(client)
        running.program.send(number)
        running.program.find("(draining)")
        for address in running.addresses:
            assert_gone(address)
        assert call.result(LIMIT_S).outputs["y"].shape == (4000, 512)
        assert running.program.wait() == 0
        assert not Path(running.addresses[1].removeprefix("unix:")).exists()


def assert_gone(address: str) -> None:
    """A new caller is told to go elsewhere, if not at once: "draining" is said before the door is closed."""
    kind = RemoteErrorKind.RESOURCE_EXHAUSTED
    while kind is RemoteErrorKind.RESOURCE_EXHAUSTED:
        with client_of(address) as late, pytest.raises(RemoteError) as caught:
            late.infer(SHORT, LIMIT_S)
        kind = caught.value.kind
    assert kind is RemoteErrorKind.UNAVAILABLE


def test_what_was_sent_before_it_ends_is_answered_or_told_to_go_elsewhere(folder: Path) -> None:
    section = {"listen": ["127.0.0.1:0"], "max_requests": 200}
    path = write_agent(folder, PATIENT, models={"slow": {"edge": {"file": slow(folder).name}}}, agent=section)
    with agent_process(path) as running, client_of(running.addresses[0]) as client:
        ask_first = client.infer_async(SHORT, LIMIT_S)
        ask_first.result(LIMIT_S)
        calls = [client.infer_async(SHORT, LIMIT_S) for _ in range(150)]
        running.program.send(signal.SIGTERM)
        ended: list[RemoteErrorKind | None] = []
        for call in calls:
            try:
                call.result(LIMIT_S)
            except RemoteError as error:
                ended.append(error.kind)
            else:
                ended.append(None)
        assert set(ended) <= {None, RemoteErrorKind.UNAVAILABLE}, ended
        assert running.program.wait() == 0


def test_an_idle_agent_ends_at_once_and_its_socket_can_be_used_again(folder: Path) -> None:
    section = {"listen": [f"unix:{folder / 'a.sock'}"], "state_dir": "state"}
    path = write_agent(folder, PATIENT, models=EDGE_ONLY, agent=section)
    with agent_process(path) as first:
        first.program.send(signal.SIGTERM)
        assert first.program.wait() == 0
    with agent_process(path) as second:
        second.program.send(signal.SIGKILL)
        second.program.wait()
    assert (folder / "a.sock").is_socket()
    with agent_process(path) as third, client_of(third.addresses[0]) as client:
        assert fact(ask(client, 0), "route") == "edge"


def test_a_second_agent_on_the_same_state_folder_is_refused_and_the_first_lives_on(
    folder: Path, in_process: InProcess
) -> None:
    section = {"listen": ["127.0.0.1:0"], "state_dir": "state"}
    path = write_agent(folder, PATIENT, models=EDGE_ONLY, agent=section)
    with agent_process(path) as first:
        second = in_process("agent", "-c", path)
        assert second.code == 2
        (said,) = (line for line in second.err.splitlines() if line.startswith("error: "))
        wish = "another agent uses it; expected a separate folder for this agent"
        assert said == f"error: {folder / 'state'}: agent.state_dir: {wish}"
        with client_of(first.addresses[0]) as client:
            assert fact(ask(client, 0), "route") == "edge"


def gateway(folder: Path, gateway_of: Running, **policy: Any) -> Path:
    """The agent.yaml of a device whose cloud is that agent."""
    models = {"digits": {**EDGE_ONLY["digits"], "cloud": {"model": "digits"}}}
    rules = [{"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}, *policy.get("rules", [])]
    defaults = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}}
    return write_agent(folder, {"defaults": defaults, "rules": rules}, gateway_of.addresses[0], models)


def test_an_agent_can_be_the_cloud_of_another(folder: Path, agent: Running) -> None:
    """Device to gateway to cloud: the gateway keeps what it is sure of and lifts the rest."""
    images = pictures(range(40))
    with embedded_agent(gateway(folder, agent)) as device:
        answers = [device.infer("digits", {"image": images[index : index + 1]}) for index in range(40)]
        assert {str(answer.route) for answer in answers} == {"cloud"}
        found = np.concatenate([answer.outputs["scores"] for answer in answers])
        from_gateway = np.isclose(found, edge_scores(images), atol=1e-5).all(axis=1)
        from_cloud = np.isclose(found, cloud_scores(images), atol=1e-5).all(axis=1)
        assert (from_gateway | from_cloud).all()
        assert from_gateway.any()
        assert from_cloud.any()
        kept = device.infer("digits", {"image": images[:1]}, tags={"privacy": "device"})
        assert (kept.route, kept.reason) == ("edge", "egress_denied")


def test_a_gateway_that_is_wrongly_asked_leaves_the_device_its_answer(folder: Path, agent: Running) -> None:
    models = {"digits": {**EDGE_ONLY["digits"], "cloud": {"model": "no-such-model"}}}
    policy = {"defaults": {"deadline": "5s"}, "rules": [{"name": "up", "match": {}, "route": "cloud"}]}
    with embedded_agent(write_agent(folder, policy, agent.addresses[0], models)) as device:
        answer = device.infer("digits", {"image": pictures([0])})
        assert (answer.route, answer.reason, answer.degraded) == ("edge", "cloud_model_missing", True)


def test_sixteen_callers_through_a_chain(folder: Path, agent: Running) -> None:
    images = pictures(range(64))
    edge, cloud = edge_scores(images), cloud_scores(images)
    with embedded_agent(gateway(folder, agent)) as device, ThreadPoolExecutor(16) as callers:

        def right(index: int) -> bool:
            found = device.infer("digits", {"image": images[index : index + 1]}).outputs["scores"][0]
            return any(np.allclose(found, one[index], atol=1e-5) for one in (edge, cloud))

        assert all(callers.map(right, range(64)))


def test_more_callers_than_there_is_room_for_are_refused_and_none_is_lost(narrow: Path) -> None:
    with agent_process(narrow) as running, client_of(running.addresses[0]) as client:
        call = accepted(client)
        refused = [client.infer_async(SHORT, LIMIT_S) for _ in range(3)]
        for one in refused:
            with pytest.raises(RemoteError, match="1 requests are already being handled") as caught:
                one.result(LIMIT_S)
            assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
        assert call.result(LIMIT_S).outputs["y"].shape == (4000, 512)
        assert client.infer(SHORT, LIMIT_S).outputs["y"].shape == (1, 512)


def test_the_cloud_model_s_name_is_the_cloud_s(agent: Running) -> None:
    """`digits` here is `digits-large` there: the caller sees only its own name."""
    with client_of(agent.addresses[0]) as client:
        answer = client.infer(digits_request(0, where="up"), LIMIT_S)
    assert answer.model == "digits" != CLOUD_MODEL
    np.testing.assert_allclose(scores(answer), cloud_scores(pictures([0])), atol=1e-5)
