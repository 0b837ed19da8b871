"""The agent as its callers see it: over TCP and a unix socket, with tags, several models and many at once."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE, cloud_scores, edge_scores, margins, pictures
from tests.faults.scene import write_agent
from tests.integration.agent.harness import LIMIT_S, Running, ask, client_of, digits_request, fact, scores
from tests.unit.models_for_tests import linear_weights
from upwell.edge import Agent
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.tensors import TensorSpec
from upwell.tools.demo.digit_data import heldout

MARGINS = margins(edge_scores(pictures(range(300))))
HARD, EASY = int(MARGINS.argmin()), int(MARGINS.argmax())
"""A digit that the device is unsure of, and one that it is not."""


def test_easy_cases_stay_and_hard_ones_go_up(anyhow: OipClient) -> None:
    easy = ask(anyhow, EASY)
    assert (fact(easy, "route"), fact(easy, "reason"), fact(easy, "degraded")) == ("edge", "easy", False)
    np.testing.assert_allclose(scores(easy), edge_scores(pictures([EASY])), atol=1e-5)
    hard = ask(anyhow, HARD)
    assert (fact(hard, "route"), fact(hard, "reason"), fact(hard, "degraded")) == ("cloud", "hard", False)
    np.testing.assert_allclose(scores(hard), cloud_scores(pictures([HARD])), atol=1e-5)
    assert fact(hard, "uplink_ms") >= fact(hard, "cloud_compute_ms") > 0
    assert fact(hard, "cloud_digest").startswith("sha256:")
    assert "upwell.edge_digest" not in hard.parameters


def test_rows_of_both_kinds_are_put_together(anyhow: OipClient) -> None:
    mixed = ask(anyhow, HARD, EASY)
    assert (fact(mixed, "route"), fact(mixed, "routes")) == ("mixed", "cloud,edge")
    assert fact(mixed, "edge_digest") != fact(mixed, "cloud_digest")


def test_metadata_is_the_signature_and_not_the_model_s_tensors(anyhow: OipClient) -> None:
    found = anyhow.metadata("digits", LIMIT_S)
    assert (found.name, found.versions, found.platform) == ("digits", ("1",), "upwell_onnx")
    assert found.inputs == (TensorSpec("image", "BYTES", (-1,)),)
    assert found.outputs == (TensorSpec("scores", "FP32", (-1, 10)),)


def test_metadata_of_a_bare_file_is_its_own_tensors(anyhow: OipClient) -> None:
    found = anyhow.metadata("linear", LIMIT_S)
    assert found.inputs == (TensorSpec("x", "FP32", (-1, 8)),)
    assert found.outputs == (TensorSpec("scores", "FP32", (-1, 3)),)


def test_metadata_of_a_model_in_the_cloud_is_what_the_cloud_says(anyhow: OipClient) -> None:
    found = anyhow.metadata("remote", LIMIT_S)
    assert (found.name, [one.name for one in found.inputs]) == ("remote", ["image"])


def test_the_server_says_who_it_is_and_is_ready(anyhow: OipClient) -> None:
    found = anyhow.server_metadata(LIMIT_S)
    assert (found.name, found.version) == ("dock-7", version("upwell"))
    assert anyhow.server_live(LIMIT_S)
    assert anyhow.ready(LIMIT_S)
    assert [anyhow.ready(LIMIT_S, name) for name in ("digits", "lite", "remote", "missing")] == [True] * 3 + [False]


def test_a_bare_file_answers_and_the_log_says_that_nothing_verifies_it(agent: Running, anyhow: OipClient) -> None:
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    answer = anyhow.infer(InferRequest("linear", {"x": x}, id="mine"), LIMIT_S)
    weights, bias = linear_weights()
    np.testing.assert_allclose(answer.outputs["scores"], x @ weights + bias, rtol=1e-4)
    assert (answer.id, fact(answer, "reason")) == ("mine", "no_cloud")
    assert "is a bare file without a bundle: nothing tests or verifies it" in agent.said


def test_the_socket_is_a_socket(agent: Running) -> None:
    path = Path(agent.addresses[1].removeprefix("unix:"))
    assert stat.S_ISSOCK(path.stat().st_mode)


TAGGED: list[tuple[dict[str, str], int, str, str]] = [
    ({"privacy": "device"}, HARD, "edge", "egress_denied"),
    ({"where": "here"}, HARD, "edge", "rule"),
    ({"where": "home"}, HARD, "edge", "rule"),
    ({"where": "elsewhere"}, HARD, "cloud", "hard"),
    ({"where": "up"}, EASY, "cloud", "rule"),
    ({"where": "up", "privacy": "device"}, EASY, "edge", "egress_denied"),
    ({"care": "none"}, HARD, "edge", "always_edge"),
    ({"where": "up", "care": "none"}, EASY, "cloud", "rule"),
]


@pytest.mark.parametrize(("tags", "digit", "route", "reason"), TAGGED)
def test_tags_choose_the_rule(client: OipClient, tags: dict[str, str], digit: int, route: str, reason: str) -> None:
    answer = ask(client, digit, **tags)
    assert (fact(answer, "route"), fact(answer, "reason"), fact(answer, "degraded")) == (route, reason, False)


def test_a_rule_for_one_model_leaves_the_others(client: OipClient) -> None:
    assert fact(ask(client, HARD, model="lite", care="none"), "reason") in ("hard", "easy")


@pytest.mark.parametrize(("starts_in_h", "route"), [(-1, "cloud"), (2, "edge")])
@pytest.mark.parametrize("zone_h", [0, 9])
def test_hours_are_those_of_the_policy_s_time_zone(
    folder: Path, cloud: ScriptedCloud, starts_in_h: int, route: str, zone_h: int
) -> None:
    """A span of two hours, around now or after it."""
    # The sign of these names is the other way round than one would think.
    zone = f"Etc/GMT-{zone_h}" if zone_h else "UTC"
    start = datetime.now(timezone(timedelta(hours=zone_h))) + timedelta(hours=starts_in_h)
    span = f"{start:%H:%M}-{start + timedelta(hours=2):%H:%M}"
    rules = [{"name": "shift", "match": {"hours": span}, "route": "cloud"}]
    policy = {"timezone": zone, "defaults": {"deadline": "5s", "hard": "off"}, "rules": rules}
    with Agent.from_config(write_agent(folder, policy, cloud.address)) as agent:
        assert agent.infer("digits", {"image": pictures([EASY])}).route == route


def test_sixteen_callers_at_once_each_get_their_own_answer(agent: Running) -> None:
    truth = {"edge": edge_scores(pictures(range(160))), "cloud": cloud_scores(pictures(range(160)))}
    start = threading.Barrier(16)

    def caller(number: int) -> set[str]:
        routes = set()
        with client_of(agent.addresses[number % 2]) as client:
            start.wait()
            for index in range(number * 10, number * 10 + 10):
                request = InferRequest("digits", digits_request(index).inputs, id=f"digit-{index}")
                answer = client.infer(request, LIMIT_S)
                assert answer.id == f"digit-{index}"
                np.testing.assert_allclose(scores(answer)[0], truth[fact(answer, "route")][index], atol=1e-5)
                routes.add(fact(answer, "route"))
        return routes

    with ThreadPoolExecutor(16) as callers:
        assert set().union(*callers.map(caller, range(16))) == {"edge", "cloud"}


def test_one_bundle_runs_in_either_runtime(client: OipClient) -> None:
    assert client.metadata("lite", LIMIT_S).platform == "upwell_tflite"
    assert client.metadata("digits", LIMIT_S).platform == "upwell_onnx"
    answers = {model: ask(client, *range(50), model=model, where="here") for model in ("digits", "lite")}
    found = {model: scores(answer).argmax(1) for model, answer in answers.items()}
    labels = heldout().labels[:50]
    assert all((best == labels).mean() > 0.8 for best in found.values())
    assert (found["digits"] == found["lite"]).mean() > 0.9
    assert len({fact(answer, "edge_digest") for answer in answers.values()}) == 2


@pytest.mark.parametrize(
    ("side", "runtime"),
    [
        ({"bundle": str(EDGE_BUNDLE)}, "onnx"),
        ({"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}, "onnx"),
        ({"bundle": str(EDGE_BUNDLE), "runtime": "tflite", "package": "ai_edge_litert"}, "tflite"),
        pytest.param(
            {"bundle": str(EDGE_BUNDLE), "runtime": "tflite", "package": "tflite_runtime"},
            "tflite",
            marks=pytest.mark.tflite_runtime,
        ),
        ({"file": str(EDGE_BUNDLE / "model.tflite")}, "tflite"),
        ({"file": str(EDGE_BUNDLE / "model.onnx"), "threads": 1}, "onnx"),
    ],
    ids=["bundle", "bundle onnx", "bundle litert", "bundle tflite_runtime", "file tflite", "file onnx"],
)
def test_what_agent_yaml_says_chooses_the_runtime(folder: Path, side: dict[str, Any], runtime: str) -> None:
    path = write_agent(folder, {"defaults": {"deadline": "5s"}}, models={"digits": {"edge": side}})
    with Agent.from_config(path) as agent:
        edge = agent.core.model("digits").edge
        assert edge is not None
        assert edge.runtime.name == runtime
        answer = agent.infer("digits", {"image": pictures(range(20))})
        assert (answer.outputs["scores"].argmax(1) == heldout().labels[:20]).mean() > 0.8


def test_the_picture_sent_up_is_the_caller_s_own_bytes(folder: Path, cloud: ScriptedCloud) -> None:
    policy = {"defaults": {"deadline": "5s"}, "rules": [{"name": "up", "match": {}, "route": "cloud"}]}
    with Agent.from_config(write_agent(folder, policy, cloud.address)) as agent:
        agent.infer("digits", {"image": pictures([3])})
    assert [list(request.inputs["image"]) for request in cloud.requests] == [list(pictures([3]))]
    assert cloud.requests[0].model == CLOUD_MODEL
