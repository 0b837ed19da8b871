"""What the agent keeps for later: ids in answers, results under them, and what is never kept."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud, good, silent, status
from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE, cloud_scores, edge_scores, margins, pictures
from tests.faults.scene import until
from tests.faults.stalling import allowed
from tests.integration.agent.kept import EASY, MARK, SPOOLED, Kept, Stream, kept_ids, served, spooling_agent
from upwell.edge.spool.spooled_request import SPOOL_ID, Case
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.routing.reasons import Reason

DENY = {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}
BACK_S = 20.0


def answered(it: Kept, count: int) -> None:
    """Wait until so many cases have been answered and handed on."""
    until(lambda: it.spool.counts().answered >= count, BACK_S)
    until(lambda: len(it.lines()) >= count, BACK_S)
    until(lambda: len(it.called) >= count, BACK_S)


def test_cases_of_an_outage_come_back_under_their_ids_by_every_way(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, SPOOLED, cloud) as it, served(it.agent) as address:
        it.proxy.refuse()
        degraded = {index: it.ask(index, camera="dock") for index in range(6)}
        assert all(answer.degraded for answer in degraded.values())
        assert {answer.reason for answer in degraded.values()} == {Reason.CLOUD_UNAVAILABLE, Reason.BREAKER_OPEN}
        ids = {answer.spool_id: index for index, answer in degraded.items()}
        assert len(ids) == 6
        assert "" not in ids
        it.proxy.restore()
        with closing(Stream(address)) as stream:
            answered(it, 6)  # nobody asks any more: the spool itself finds out that the link is back
            until(lambda: len(stream.results) == 6)
            streamed = stream.scores()
        written = {line["spool_id"]: line for line in it.lines()}
        called = {result.spool_id: result for result in it.called}
        assert set(written) == set(called) == set(streamed) == set(ids)
        for id, index in ids.items():
            want = cloud_scores(pictures([index]))
            np.testing.assert_allclose(streamed[id], want, atol=1e-5)
            np.testing.assert_allclose(called[id].response().outputs["scores"], want, atol=1e-5)
            np.testing.assert_allclose(np.reshape(written[id]["outputs"]["scores"]["data"], (1, 10)), want, atol=1e-5)
            assert written[id]["request_id"] == degraded[index].id
            assert written[id]["tags"] == {"camera": "dock"}
        assert sorted(kept_ids(cloud.requests)) == sorted(ids)  # each was sent once, by its id
        with closing(Stream(address, since=it.called[3].sequence)) as later:
            until(lambda: len(later.results) == 2)
            assert [result.sequence for result in later.results] == [one.sequence for one in it.called[4:]]


def test_what_is_kept_can_be_said_for_each_error(tmp_path: Path, cloud: ScriptedCloud) -> None:
    table = {**SPOOLED, "spool": False, "on_cloud_failure": {"default": "edge", "exhausted": "spool"}}
    with spooling_agent(tmp_path, table, cloud) as it:
        for code, is_kept in (("INTERNAL", False), ("INVALID_ARGUMENT", False), ("RESOURCE_EXHAUSTED", True)):
            cloud.behaviour = status(grpc.StatusCode[code])
            answer = it.ask(1)
            assert (answer.degraded, bool(answer.spool_id)) == (True, is_kept), code
        cloud.behaviour = good
        answered(it, 1)
        assert [line["reason"] for line in it.lines()] == ["cloud_exhausted"]


@pytest.mark.parametrize(
    ("step", "failing"),
    [
        ("making log lines", "outcome_recorder.log_lines"),
        ("making an audit", "audits.AuditSampler.case"),
        ("sending an audit", "audits.AuditSampler.send"),
        ("writing log lines", "outcome_recorder.RequestLog.append"),
        ("collecting a case", "outcome_recorder.CaseCollector.collect"),
        ("watching for drift", "outcome_recorder.DriftWatch.observe"),
    ],
)
def test_a_step_that_fails_costs_no_answer_and_no_spooled_case(
    step: str,
    failing: str,
    tmp_path: Path,
    cloud: ScriptedCloud,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(f"upwell.edge.observe.{failing}", fail)
    monkeypatch.setattr("upwell.edge.observe.outcome_recorder.DriftWatch.sees", lambda *_: True)
    monkeypatch.setattr("upwell.edge.observe.audits.easy_rows", lambda _: [0])
    everything = {"record": {"keep": "1MiB"}, "audit": 1.0, "collect": {"random": 1.0}}
    with spooling_agent(tmp_path, {**SPOOLED, **everything}, cloud) as it:
        it.proxy.refuse()
        answers = [it.ask(index) for index in range(12)]
    assert all(answer.degraded and answer.spool_id and answer.spool_rows == (0,) for answer in answers)
    texts = [record.getMessage() for record in caplog.records if f": {step} " in record.getMessage()]
    assert texts == [
        f"model digits: {step} failed",
        f"model digits: {step} has failed 10 times: OSError: [Errno 24] Too many open files",
    ]


def test_an_answer_whose_recording_fails_as_a_whole_is_given(
    tmp_path: Path, cloud: ScriptedCloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("upwell.edge.observe.outcome_recorder.OutcomeRecorder._keep", fail)
    with spooling_agent(tmp_path, SPOOLED, cloud) as it:
        np.testing.assert_allclose(it.ask(1).outputs["scores"], cloud_scores(pictures([1])), atol=1e-5)
    assert "recording an answer failed" in caplog.text


def test_only_the_rows_that_missed_the_cloud_are_kept(tmp_path: Path, cloud: ScriptedCloud) -> None:
    order = np.argsort(margins(edge_scores(pictures(range(60)))))
    hard, easy = [int(i) for i in order[:3]], [int(i) for i in order[-2:]]
    between = float(np.mean(margins(edge_scores(pictures([int(order[2]), int(order[3])])))))
    with spooling_agent(tmp_path, {**SPOOLED, "hard": {"measure": "margin", "below": between}}, cloud) as it:
        it.proxy.refuse()
        answer = it.ask(easy[0], hard[0], easy[1], hard[1], hard[2])
        assert answer.spool_id
        it.proxy.restore()
        answered(it, 1)
        (line,) = it.lines()
        assert line["spool_id"] == answer.spool_id
        assert line["outputs"]["scores"]["shape"] == [3, 10]
        found = np.reshape(line["outputs"]["scores"]["data"], (3, 10))
        np.testing.assert_allclose(found, cloud_scores(pictures(hard)), atol=1e-5)


def test_nothing_kept_is_sent_while_a_live_request_waits_for_its_answer(tmp_path: Path, cloud: ScriptedCloud) -> None:
    held, wrong = threading.Event(), threading.Event()

    def behave(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        if SPOOL_ID not in request.parameters:
            held.wait(10)
        elif not held.is_set():
            wrong.set()
        return good(request, context)

    cloud.behaviour = behave
    with spooling_agent(tmp_path, SPOOLED, cloud) as it:
        live = threading.Thread(target=lambda: it.ask(0))
        live.start()
        until(lambda: len(cloud.requests) == 1)
        case = Case("spool", "digits", CLOUD_MODEL, "earlier", {"image": pictures([1])}, "cloud_unavailable")
        assert it.spool.put(case, allowed(), time.monotonic() + 5)
        assert not wrong.wait(1.0)
        held.set()
        live.join()
        answered(it, 1)
        assert not wrong.is_set()


@pytest.mark.slow
def test_the_cases_of_a_model_that_the_cloud_lost_wait_and_stop_no_other(tmp_path: Path, cloud: ScriptedCloud) -> None:
    def behave(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        return (status(grpc.StatusCode.NOT_FOUND) if request.model == "lost" else good)(request, context)

    bundle = {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}
    models = {
        "digits": {"edge": bundle, "cloud": {"model": CLOUD_MODEL}},
        "lost": {"edge": bundle, "cloud": {"model": "lost"}},
    }
    with spooling_agent(tmp_path, SPOOLED, cloud, models=models) as it:
        it.proxy.refuse()
        for _ in range(30):
            assert it.agent.infer("lost", {"image": pictures([0])}).spool_id
        ids = [it.ask(index).spool_id for index in range(3)]
        cloud.behaviour = behave
        it.proxy.restore()
        answered(it, 3)
        assert {line["spool_id"] for line in it.lines()} == set(ids)
        counts = it.spool.counts()
        assert (counts.poisoned, it.spool.held().waiting) == (0, 30)
        cloud.behaviour = good  # it was deployed at last
        until(lambda: it.spool.counts().answered == 33, 60)


@pytest.mark.slow
def test_a_case_waits_for_its_budget(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, {**SPOOLED, "budget": {"cloud_requests": "2/day"}}, cloud) as it:
        answers = [it.ask(index) for index in range(4)]
        assert [str(answer.reason) for answer in answers] == ["hard", "hard", "budget_spent", "budget_spent"]
        assert [bool(answer.spool_id) for answer in answers] == [False, False, True, True]
        until(lambda: it.spool.counts().unavailable >= 1)
        assert kept_ids(cloud.requests) == []
        it.write_policy({**SPOOLED, "budget": {"cloud_requests": "1000/s"}})
        answered(it, 2)


def test_what_must_not_leave_is_never_kept(tmp_path: Path, cloud: ScriptedCloud) -> None:
    everything = {**SPOOLED, "audit": 1.0, "explore": 1.0, "record": {"keep": "1MiB"}}
    with spooling_agent(tmp_path, everything, cloud, rules=[DENY]) as it:
        it.ask(0, mark=MARK, privacy="device")
        it.proxy.refuse()
        assert it.ask(1, mark=MARK, privacy="device").spool_id == ""
        it.write_policy({**everything, "hard": EASY["hard"]}, rules=[DENY])
        until(lambda: it.ask(3).reason is Reason.EASY)
        it.ask(2, mark=MARK, privacy="device")
        until(lambda: it.spool.held().waiting >= 1)
        it.proxy.restore()
        until(lambda: it.spool.counts().answered >= 1, BACK_S)
    assert MARK not in bytes(it.proxy.up.record or b"")
    assert not it.holds(MARK)
    assert "privacy" not in (tmp_path / "state" / "requests.jsonl").read_text()


def test_a_policy_that_comes_to_deny_purges_what_waits(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, SPOOLED, cloud) as it:
        it.proxy.refuse()
        for index in range(4):
            assert it.ask(index, mark=MARK, privacy="device").spool_id
        public = it.ask(5).spool_id
        it.write_policy(SPOOLED, rules=[DENY])
        private = 4
        while it.ask(6, privacy="device").reason is not Reason.EGRESS_DENIED:
            private += 1  # the former policy was still in force and kept it
            assert private < 1000
            time.sleep(0.01)
        it.proxy.restore()
        answered(it, 1)
        until(lambda: it.spool.counts().denied == private)
        assert kept_ids(cloud.requests) == [public]
    assert MARK not in bytes(it.proxy.up.record or b"")
    assert not it.holds(MARK)


def test_a_rule_about_size_means_a_row_of_a_kept_case_as_of_a_live_one(tmp_path: Path, cloud: ScriptedCloud) -> None:
    row_bytes = max(len(image) for image in pictures(range(8)))
    rule = {"name": "huge", "if": f"request.size_bytes > {row_bytes + 8}", "egress": "deny"}
    with spooling_agent(tmp_path, SPOOLED, cloud, rules=[rule]) as it:
        it.proxy.refuse()
        ids = {it.ask(*range(8)).spool_id, it.ask(0).spool_id}
        assert "" not in ids
        it.proxy.restore()
        answered(it, 2)
        assert it.spool.counts().denied == 0


def test_a_case_that_the_cloud_cannot_take_is_set_aside_and_the_others_go_up(
    tmp_path: Path, cloud: ScriptedCloud
) -> None:
    with spooling_agent(tmp_path, SPOOLED, cloud) as it:
        it.proxy.refuse()
        ids = [it.ask(index).spool_id for index in range(5)]

        def behave(request: InferRequest, context: grpc.ServicerContext) -> bytes:
            is_bad = request.parameters.get(SPOOL_ID) == ids[0]
            return (status(grpc.StatusCode.INVALID_ARGUMENT) if is_bad else good)(request, context)

        cloud.behaviour = behave
        it.proxy.restore()
        answered(it, 4)
        assert [line["spool_id"] for line in it.lines()] == ids[1:]
        assert (it.spool.counts().poisoned, it.spool.held().poisoned) == (1, 1)


@pytest.mark.parametrize("how", ["silent", "black hole", "refused"])
def test_it_closes_at_once_whatever_the_cloud_does(tmp_path: Path, cloud: ScriptedCloud, how: str) -> None:
    with spooling_agent(tmp_path, {**SPOOLED, "deadline": "50ms"}, cloud) as it, served(it.agent) as address:
        it.proxy.refuse()
        for index in range(8):
            it.ask(index)
        until(lambda: it.spool.held().waiting == 8)
        if how == "silent":
            cloud.behaviour = silent
        if how != "refused":
            it.proxy.restore()
            sent = len(cloud.requests)
            if how == "black hole":
                it.proxy.blackhole()
            else:
                until(lambda: len(cloud.requests) > sent)  # a case is under way
        with closing(Stream(address)) as stream:
            began_s = time.monotonic()
            it.agent.close()
            assert time.monotonic() - began_s < 2.0
            assert stream.ends(2.0)
    cloud.behaviour = good
    with spooling_agent(tmp_path, SPOOLED, cloud) as it:
        until(lambda: it.spool.counts().answered == 8, BACK_S)
