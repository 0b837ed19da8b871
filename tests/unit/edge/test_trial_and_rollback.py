"""A new version on trial: who answers, and when it is rejected."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.edge.agents import SURE, edge_model, rows_of
from tests.unit.test_docs import ROOT, prose
from upwell.edge.models import trial_and_rollback as trials
from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.models.trial_and_rollback import Trial
from upwell.edge.updates.model_versions.version_comparison import PAIRS, SignTest, Versions
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


@dataclass
class BusyDevice:
    """A device in virtual time whose requests come `every_s` with a deadline of 100 ms. The former version takes 20 ms,
    the new one `new_s`, and `slowed` times as long while the device is crowded, which it is in spells of some seconds.
    """

    seed: int
    new_s: float = 0.02
    slowed: float = 1.0
    every_s: float = 0.2
    now_s: float = 100.0
    rejected: list[str] = field(default_factory=list)
    proofs: list[float] = field(default_factory=list)

    def requests(self, most: int) -> int:
        """Ask so often, or until the trial is over; how many were asked."""
        spells = random.Random(self.seed)
        new, former = edge_model(), edge_model()
        versions = Versions(new, former, (None, None))
        versions._next_s, versions._pairs = math.inf, PAIRS  # the other questions are not asked here
        is_crowded = False

        def run(edge: EdgeModel, run_s: float) -> Callable[[Mapping[str, Array]], EdgeRun]:
            def answer(inputs: Mapping[str, Array]) -> EdgeRun:
                self.now_s += run_s * (self.slowed if is_crowded else 1.0)
                return edge.run_now(inputs)

            return answer

        trial = Trial(
            run(former, 0.02), self.rejected.append, lambda: self.proofs.append(self.now_s), versions, former_s=0.03
        )
        for asked in range(1, most + 1):
            if spells.random() < 0.03:
                is_crowded = not is_crowded
            trial.run(run(new, self.new_s), rows_of(SURE), self.now_s + 0.1)
            self.now_s += self.every_s
            if trial.is_over:
                return asked
        return most


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BusyDevice]:
    """Makes devices, the time of whose trials is theirs."""

    def made(seed: int, **about: Any) -> BusyDevice:
        it = BusyDevice(seed, **about)
        coin = random.Random(f"coin {seed}")
        monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: it.now_s))
        monkeypatch.setattr(trials, "random", SimpleNamespace(random=coin.random))
        return it

    return made


def test_on_a_crowded_device_no_good_version_is_condemned_for_late_answers(device: Callable[..., BusyDevice]) -> None:
    """Half of its answers are late, of either version; at most .25 % are condemned, which is 1 of 400."""
    made: list[BusyDevice] = []
    for seed in range(200):
        made.append(device(seed, slowed=8.0))
        made[-1].requests(1000)
    assert sum(bool(one.rejected) for one in made) <= 2
    assert sum(bool(one.proofs) for one in made) >= 198


@pytest.mark.parametrize(("slowed", "found"), [(1.0, 50), (8.0, 45)])
def test_a_version_that_is_always_late_where_the_former_one_is_not_goes_back_soon(
    device: Callable[..., BusyDevice], slowed: float, found: int
) -> None:
    """Also where the former one is late in half of the time."""
    asked = []
    for seed in range(50):
        one = device(seed, new_s=0.12, slowed=slowed)
        requests = one.requests(1000)
        if one.rejected:
            assert one.rejected[0].startswith("where a coin chose the version, ")
            asked.append(requests)
    assert len(asked) >= found
    assert sorted(asked)[len(asked) // 2] <= 60
    assert min(asked) > 12  # a dozen late answers of its own


def test_a_late_version_with_little_to_do_is_not_proven_by_time_alone(device: Callable[..., BusyDevice]) -> None:
    one = device(3, new_s=0.12, every_s=60.0)
    assert one.requests(200) > trials.DURATION_S / one.every_s
    assert (len(one.rejected), one.proofs) == (1, [])


def test_one_late_answer_long_ago_keeps_no_version_on_trial(device: Callable[..., BusyDevice]) -> None:
    """Not even where the comparisons never become enough, such as audits without a link."""
    it, new = device(0), edge_model()
    versions = Versions(new, edge_model(), (None, None))
    versions._next_s = math.inf
    trial: Trial[EdgeRun] = Trial(
        edge_model().run_now, it.rejected.append, lambda: it.proofs.append(it.now_s), versions, 0.03
    )

    def slow(inputs: Mapping[str, Array]) -> EdgeRun:
        it.now_s += 0.2
        return new.run_now(inputs)

    def quick_ones() -> None:
        for _ in range(20):
            trial.run(new.run_now, rows_of(SURE), it.now_s + 0.1)

    it.now_s += trials.DURATION_S / 2
    while not versions.is_suspect:
        trial.run(slow, rows_of(SURE), it.now_s + 0.1)
    it.now_s += trials.DURATION_S - 1.0
    quick_ones()
    assert it.proofs == []
    it.now_s += 2.0
    quick_ones()
    assert (it.rejected, len(it.proofs)) == ([], 1)


def test_late_answers_that_the_former_version_could_not_give_in_time_either_count_for_nothing() -> None:
    versions, rejected = Versions(edge_model(), edge_model(), (None, None)), list[str]()
    new = edge_model()
    trial = Trial(new.run_now, rejected.append, nobody, versions, former_s=10.0)
    for _ in range(100):
        trial.run(new.run_now, rows_of(SURE), time.monotonic() + 1e-9)
    assert (rejected, versions._late) == ([], SignTest())


def test_a_former_version_that_takes_other_inputs_leaves_the_request_to_the_new_one(
    device: Callable[..., BusyDevice],
) -> None:
    it, new = device(0), edge_model()
    versions = Versions(new, edge_model(), (None, None))
    trial: Trial[EdgeRun] = Trial(
        edge_model(failure="other inputs").run_now, it.rejected.append, nobody, versions, 0.03
    )

    def late(inputs: Mapping[str, Array]) -> EdgeRun:
        it.now_s += 0.2
        return new.run_now(inputs)

    for _ in range(40):
        assert trial.run(late, rows_of(SURE), it.now_s + 0.1).digest == new.digest
    assert versions._late.better == 0


def test_what_is_under_way_on_a_version_that_was_left_has_the_former_one_behind_it() -> None:
    rejected: list[str] = []
    former, new = edge_model(), edge_model(failure="bad kernel")
    trial = Trial(former.run_now, rejected.append, nobody)
    new.trial = trial
    trial.end()
    for _ in range(2 * trials.RUNS):
        assert new.run(rows_of(SURE), np.inf).digest == former.digest
    assert rejected == []
