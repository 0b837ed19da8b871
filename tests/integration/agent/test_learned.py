"""What the agent learns from its own requests: audits, request logs, and a share that is held."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import typer
from prometheus_client import generate_latest
from typer.testing import CliRunner

from tests.faults.clouds import ScriptedCloud, good, status, tampered, true_answer
from tests.faults.oracles import edge_scores, margins, pictures
from tests.faults.scene import until
from tests.integration.agent.kept import EASY, Kept, kept_ids, put, spooling_agent
from tests.unit.edge.test_agent_metrics import read
from upwell.edge.spool.spooled_request import SPOOL_ID
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.request_log_line import LogLine
from upwell.tools.policy.calibrate_cli import calibrate
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.policy.simulate_cli import simulate

LOG = Path("state", "requests.jsonl")
UNDECIDED: Mapping[str, Any] = {"deadline": "5s", "hard": {"measure": "margin", "below": 0.3}}
WAIT_S = 60.0


def gauges(it: Kept) -> dict[str, float]:
    """Every sample of the agent's metrics that has one scope or label at most, by name."""
    found = read(generate_latest(it.agent.metrics.registry).decode())
    return {name: value for (name, _), value in found.items() if name.startswith("upwell_audit")}


def log_counts(it: Kept) -> dict[str, float]:
    found = read(generate_latest(it.agent.metrics.registry).decode())
    return {labels[0][1]: value for (name, labels), value in found.items() if name == "upwell_log_lines_total"}


def test_audits_are_asked_about_later_and_their_disagreement_is_a_metric(tmp_path: Path, cloud: ScriptedCloud) -> None:
    wrong = tampered(lambda scores: {"scores": np.roll(scores, 1, axis=1)})

    def behave(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        """Every fourth audit is disagreed with, whatever the device says."""
        count = len(cloud.requests)
        return (wrong if count % 4 == 0 else good)(request, context)

    cloud.behaviour = behave
    with spooling_agent(tmp_path, {**EASY, "audit": 1.0}, cloud) as it:
        agreeing = [i for i in range(80) if _agree(i)][:40]
        for index in agreeing:
            answer = it.ask(index)
            assert (answer.reason, answer.spool_id, answer.degraded) == (Reason.EASY, "", False)
        until(lambda: gauges(it).get("upwell_audit_count") == 40, WAIT_S)
        found = gauges(it)
        assert found["upwell_audit_disagreement"] == 0.25
        assert found["upwell_audit_disagreement_low"] < 0.25 < found["upwell_audit_disagreement_high"]
        assert found["upwell_audit_alarm"] == 0
        assert {line["kind"] for line in it.lines()} == {"audit"}
        assert all("edge_outputs" in line for line in it.lines())


def _agree(index: int) -> bool:
    request = InferRequest("m", {"image": pictures([index])})
    return bool(true_answer(request).outputs["scores"].argmax() == edge_scores(pictures([index])).argmax())


def test_an_alarm_is_raised_where_the_promised_risk_no_longer_holds(
    tmp_path: Path, cloud: ScriptedCloud, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.behaviour = tampered(lambda scores: {"scores": np.roll(scores, 1, axis=1)})
    risk = {**EASY, "hard": {**EASY["hard"], "max_risk": "2%"}, "audit": 1.0}
    with spooling_agent(tmp_path, risk, cloud) as it:
        for index in range(20):
            it.ask(index)
        until(lambda: gauges(it).get("upwell_audit_alarm") == 1, WAIT_S)
        until(lambda: "no longer holds" in caplog.text)


def test_an_answer_to_an_audit_that_nobody_can_compare_counts_for_nothing(
    tmp_path: Path, cloud: ScriptedCloud, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.behaviour = tampered(lambda scores: {"other": scores})
    with spooling_agent(tmp_path, {**EASY, "audit": 1.0}, cloud) as it:
        it.ask(0)
        until(lambda: "cannot be compared" in caplog.text)
        cloud.behaviour = good
        it.ask(1)
        until(lambda: gauges(it).get("upwell_audit_count") == 1)


def test_audits_go_after_the_cases_of_an_outage(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, {**UNDECIDED, "audit": 1.0, "spool": True}, cloud) as it:
        by_margin = np.argsort(margins(edge_scores(pictures(range(60)))))
        it.proxy.refuse()
        for index in (*by_margin[-3:], *by_margin[:3]):
            it.ask(int(index))
        until(lambda: it.spool.held().waiting == 6)
        it.proxy.restore()
        until(lambda: len(it.called) == 6, WAIT_S)
        assert [result.kind for result in it.called] == ["spool"] * 3 + ["audit"] * 3


@pytest.mark.slow
def test_recorded_lines_are_a_log_and_explored_ones_know_both_sides(tmp_path: Path, cloud: ScriptedCloud) -> None:
    settings = {**UNDECIDED, "record": {"keep": "1MiB"}, "explore": 0.5}
    with spooling_agent(tmp_path, settings, cloud) as it:
        answers = [it.ask(index, camera="dock") for index in range(60)]
        easy = sum(answer.reason is Reason.EASY for answer in answers)
        until(lambda: log_counts(it)["written"] == 60, WAIT_S)
        explored = len(kept_ids(cloud.requests))
        assert 0 < explored < easy
        assert log_counts(it) == {"written": 60, "dropped": 0, "failed": 0}
        lines = read_log(tmp_path / LOG)
    known = [line for line in lines if line.cloud_correct is not None]
    assert len(lines) == 60
    assert len(known) == (60 - easy) + explored
    for line in known:
        assert (line.cloud_correct, line.cloud_digest, line.reply_bytes > 0) == (True, answers_digest(cloud), True)
        assert line.edge_correct is not None
        assert line.cloud_s == pytest.approx(1e-4)
    for line in lines:
        assert (line.model, dict(line.tags), line.edge_runtime) == ("digits", {"camera": "dock"}, "onnx")
        assert line.size_bytes > 100
        assert line.deadline_s == pytest.approx(5.0, abs=0.01)
        assert set(line.hardness) >= {"margin", "max_prob", "entropy"}
        assert line.logits is not None
    assert (tmp_path / LOG).stat().st_mode & 0o777 == 0o600


def answers_digest(cloud: ScriptedCloud) -> str:
    return str(true_answer(cloud.requests[0]).parameters["upwell.cloud_digest"])


def test_what_nobody_can_send_is_recorded_all_the_same(tmp_path: Path, cloud: ScriptedCloud) -> None:
    settings = {**UNDECIDED, "record": {"keep": "1MiB"}, "explore": 1.0}
    with spooling_agent(tmp_path, settings, None, {"state_dir": "state"}) as it:
        for index in range(10):
            it.ask(index, index + 1)
        until(lambda: log_counts(it)["written"] == 20)
        assert {line.cloud_correct for line in read_log(tmp_path / LOG)} == {None}
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    with spooling_agent(tmp_path, {**settings, "hard": {"measure": "max_prob", "below": 1.0}}, cloud) as it:
        for index in range(10):
            it.ask(index)
        until(lambda: log_counts(it)["written"] == 10)


@pytest.mark.slow
def test_a_log_of_the_agent_s_own_can_be_simulated_and_calibrated(tmp_path: Path, cloud: ScriptedCloud) -> None:
    settings = {**UNDECIDED, "record": {"keep": "4MiB"}, "explore": 0.2}
    with spooling_agent(tmp_path, settings, cloud) as it:
        for start in range(0, 400, 4):
            it.ask(*(index % 360 for index in range(start, start + 4)))
        until(lambda: log_counts(it)["written"] == 400, WAIT_S)
    policy, log, out = tmp_path / "policy.yaml", tmp_path / LOG, tmp_path / "calibrated.yaml"
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(simulate)
    app.command()(calibrate)
    link = ["--uplink", "20Mbps", "--rtt", "40ms", "--json"]
    done = CliRunner().invoke(app, ["simulate", str(policy), "--requests", str(log), *link])
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    assert report["policy"]["requests"] == report["policy"]["answered"] == 400
    where = ["--log", str(log), "--out", str(out), "--cloud-share", "20%", "--json"]
    done = CliRunner().invoke(app, ["calibrate", str(policy), *where])
    assert done.exit_code == 0, (done.exception, done.output)
    (found,) = json.loads(done.stdout)["calibrations"]
    assert found["model"] == "digits"
    folder = tmp_path / "next"
    folder.mkdir()
    with spooling_agent(folder, EASY, cloud) as it:
        put(it.folder / "policy.yaml", out.read_text().replace("explore: 0.2", "explore: 0"))
        until(lambda: it.agent.router.settings("digits").hard is not None)
        until(lambda: it.ask(0).reason in (Reason.EASY, Reason.HARD) and _is_calibrated(it))


def test_after_a_new_version_in_the_cloud_the_agent_says_so_and_sends_the_same_share(
    tmp_path: Path, cloud: ScriptedCloud, caplog: pytest.LogCaptureFixture
) -> None:
    found = margins(edge_scores(pictures(range(200))))
    below = float(np.quantile(found, 0.05))
    hardest, *others = np.argsort(found[:60]).tolist()
    rows = others[:19]  # with 20 scores the controller cuts by rank
    expected = {row for row in rows if found[row] < below}
    assert expected != {row for row in rows if found[row] < 0.75}, "the plain threshold would send others"
    share = {"measure": "margin", "cloud_share": "5%"}
    calibration = {"model": "digits", **share, "below": below, "cloud_digest": "sha256:the-version-before"}
    defaults = {"deadline": "5s", "hard": share}
    with spooling_agent(tmp_path, defaults, cloud, calibrations=[calibration]) as it:
        assert it.ask(hardest).reason is Reason.HARD
        assert {row for row in rows if "cloud" in it.ask(row).route} == expected
        assert it.ask(hardest).reason is Reason.UNCALIBRATED
        (health,) = it.agent.health()
        text = generate_latest(it.agent.metrics.registry).decode()
    assert f"cloud_digest sha256:the-version-before, not {answers_digest(cloud)}" in health.uncalibrated
    assert 'upwell_model_uncalibrated{model="digits"} 1.0' in text
    assert caplog.text.count("uncalibrated") == 1


def _is_calibrated(it: Kept) -> bool:
    hard = it.agent.router.settings("digits").hard
    return hard is not None and hard.calibrated and not math.isnan(hard.cloud_share)


def test_a_line_with_the_whole_answer_of_a_dead_process_is_readable(tmp_path: Path) -> None:
    """A line cut short by a crash is removed by the next agent, before anything is written after it."""
    path = tmp_path / LOG
    path.parent.mkdir()
    path.write_text(LogLine(t_s=1.0, model="digits", size_bytes=10).model_dump_json() + '\n{"t_s": 2.0, "mod')
    with spooling_agent(tmp_path, {**UNDECIDED, "record": {"keep": "1MiB"}}, None, {"state_dir": "state"}) as it:
        it.ask(0)
        until(lambda: log_counts(it)["written"] == 1)
        assert len(read_log(path)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("large_share", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.1])
def test_a_share_is_held_large_requests_and_batches_included(
    tmp_path: Path, cloud: ScriptedCloud, large_share: float
) -> None:
    padding = bytes(4096)
    settings = {
        "deadline": "5s",
        "hard": {"measure": "margin", "below": 0.05, "cloud_share": "20%"},
        "large": {"above": "4KiB"},
    }
    dice = np.random.default_rng(5)
    with spooling_agent(tmp_path, settings, cloud) as it:
        sent = rows = 0
        while rows < 700:
            indexes = [int(i) for i in dice.integers(0, 360, size=int(dice.choice([1, 1, 3])))]
            answer = it.ask(*indexes, mark=padding if dice.random() < large_share else b"")
            rows += len(indexes)
            if rows > 150:  # so long it has learnt the scores
                sent += sum(str(route) == "cloud" for route in answer.routes)
        assert cloud.requests[0].model == "digits-large"
        assert abs(sent / (rows - 150) - 0.2) < 0.04, sent / (rows - 150)
    assert not any(SPOOL_ID in request.parameters for request in cloud.requests)
