"""A new version on trial: who answers, and when it is rejected."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.edge.agents import SURE, edge_model, rows_of
from tests.unit.test_docs import ROOT, prose
from upwell.edge.models import trial_and_rollback as trials
from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.models.trial_and_rollback import Trial
from upwell.shared.errors import DeadlineExceeded, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array

NOTHING: Mapping[str, Array] = {}


def nobody() -> None:
    """Hears that a version has proven itself."""


class Version:
    """Answers with its name, or fails."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.name = name
        self.failure = failure

    def __call__(self, inputs: Mapping[str, Array]) -> str:
        if self.failure is not None:
            raise self.failure
        return self.name


def test_where_the_new_version_fails_the_former_one_answers() -> None:
    new, rejected = Version("new"), list[str]()
    trial = Trial(Version("former"), rejected.append, nobody)
    assert trial.run(new, NOTHING) == "new"
    new.failure = ModelFailed("bad kernel")
    assert trial.run(new, NOTHING) == "former"
    new.failure = None
    assert trial.run(new, NOTHING) == "new"
    assert rejected == []


def test_a_version_that_fails_too_often_is_condemned_once_and_still_stood_in_for() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former"), rejected.append, nobody)
    new = Version("new", ModelFailed("bad kernel"))
    answers = [trial.run(new, NOTHING) for _ in range(trials.MIN_FAILURES + 5)]
    assert answers == ["former"] * len(answers)
    assert rejected == ["3 of its first 3 runs failed, the last with ModelFailed"]
    assert not trial.is_proven


def test_failures_below_the_allowed_share_do_not_condemn() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former"), rejected.append, nobody)
    good, bad = Version("new"), Version("new", ModelFailed("now and then"))
    for index in range(1, trials.RUNS + 1):
        is_bad = index % 25 == 0  # 4 %, and the first three failures stand among enough runs
        trial.run(bad if is_bad else good, NOTHING)
    assert rejected == []
    assert trial.is_proven


def test_a_bad_request_counts_for_nothing() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former", InvalidRequest("no picture")), rejected.append, nobody)
    for _ in range(trials.RUNS * 2):
        with pytest.raises(InvalidRequest):
            trial.run(Version("new", InvalidRequest("no picture")), NOTHING)
    assert rejected == []
    assert not trial.is_proven


def test_a_picture_that_took_too_long_to_prepare_is_not_prepared_once_more() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former"), rejected.append, nobody)
    for _ in range(trials.RUNS * 2):
        with pytest.raises(DeadlineExceeded):
            trial.run(Version("new", DeadlineExceeded("the pictures took 2000 ms")), NOTHING)
    assert rejected == []
    assert not trial.is_proven


def test_what_the_former_version_can_answer_was_no_bad_request() -> None:
    """Kernels report values that they cannot take as invalid arguments."""
    rejected: list[str] = []
    trial = Trial(Version("former"), rejected.append, nobody)
    for failure in (InvalidRequest("index out of bounds"), ModelFailed("bad kernel"), IndexError("in a step of ours")):
        assert trial.run(Version("new", failure), NOTHING) == "former"
    assert rejected == ["3 of its first 3 runs failed, the last with IndexError"]


def test_what_neither_version_can_answer_counts_for_nothing() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former", ModelFailed("the device is gone")), rejected.append, nobody)
    for _ in range(trials.RUNS):
        with pytest.raises(ModelFailed, match="also"):
            trial.run(Version("new", ModelFailed("also gone")), NOTHING)
    assert rejected == []
    assert not trial.is_proven


def test_where_the_former_version_takes_other_inputs_the_new_ones_error_stands_and_counts() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former", InvalidRequest("unknown input")), rejected.append, nobody)
    for _ in range(trials.MIN_FAILURES):
        with pytest.raises(ModelFailed, match="bad kernel"):
            trial.run(Version("new", ModelFailed("bad kernel")), NOTHING)
    assert len(rejected) == 1


def test_who_waits_for_it_hears_once_that_a_version_has_proven_itself() -> None:
    proofs: list[bool] = []
    trial = Trial(Version("former"), lambda _: None, lambda: proofs.append(trial.is_proven))
    for _ in range(2 * trials.RUNS):
        trial.run(Version("new"), NOTHING)
    assert proofs == [True]


def test_it_is_condemned_once_whatever_threads_fail_at_once() -> None:
    rejected: list[str] = []
    trial = Trial(Version("former"), rejected.append, nobody)
    together = threading.Barrier(8)

    def fail() -> None:
        together.wait()
        for _ in range(50):
            trial.run(Version("new", ModelFailed("bad kernel")), NOTHING)

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rejected) == 1


def served_on_trial(former: EdgeModel, new: EdgeModel, rejected: list[str]) -> EdgeModel:
    new.trial = Trial(former.run_now, rejected.append, nobody)
    return new


def test_an_edge_model_on_trial_says_which_version_answered() -> None:
    former, new = edge_model(), edge_model(failure="bad kernel")
    new.digest = "sha256:of-the-new-model"
    served_on_trial(former, new, [])
    run: EdgeRun = new.run(rows_of(SURE), np.inf)
    assert run.digest == former.digest
    assert new.scheduler.queue.ahead == 0


def test_a_version_that_has_proven_itself_lets_the_former_one_go() -> None:
    former, new = edge_model(), edge_model()
    served_on_trial(former, new, [])
    for _ in range(trials.RUNS + 1):
        new.run(rows_of(SURE), np.inf)
    assert new.trial is None


def test_the_page_on_updates_has_the_figures() -> None:
    page = " ".join(prose(ROOT / "docs" / "releases.md").split())
    assert f"for its first {trials.RUNS} runs and" in page
    assert "or ten minutes if there are fewer" in page
    assert trials.DURATION_S == 600.0
    assert f"once three runs, and more than {trials.MAX_FAILED_SHARE:.0%}".replace("%", " %") in page
    assert trials.MIN_FAILURES == 3


@pytest.mark.parametrize(("former_s", "is_rejected"), [(0.01, True), (0.2, False)])
def test_answers_that_only_the_new_version_gives_too_late_count_as_failures(
    monkeypatch: pytest.MonkeyPatch, former_s: float, is_rejected: bool
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    rejected: list[str] = []
    trial = Trial(Version("former"), rejected.append, nobody, former_s=former_s)

    def slow(_: Mapping[str, Array]) -> str:
        now_s[0] += 0.3
        return "new"

    for _ in range(trials.MIN_FAILURES):
        assert trial.run(slow, NOTHING, now_s[0] + 0.1) == "new"
    assert bool(rejected) is is_rejected
    if is_rejected:
        assert rejected[0].endswith("a late answer, where the previous version was in time")


def test_what_is_under_way_on_a_version_that_was_left_has_the_former_one_behind_it() -> None:
    rejected: list[str] = []
    former, new = edge_model(), edge_model(failure="bad kernel")
    trial = Trial(former.run_now, rejected.append, nobody)
    new.trial = trial
    trial.end()
    for _ in range(2 * trials.RUNS):
        assert new.run(rows_of(SURE), np.inf).digest == former.digest
    assert rejected == []
