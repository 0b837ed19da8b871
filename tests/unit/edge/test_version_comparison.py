"""A new version beside the one before: what speaks against it, what does not, and what nobody can tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from tests.faults.scene import until
from tests.unit.edge.agents import busy, edge_model, rows_of
from tests.unit.test_docs import ROOT, prose
from upwell.edge.models import trial_and_rollback as trials
from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.models.trial_and_rollback import Trial
from upwell.edge.updates.model_versions import version_comparison
from upwell.edge.updates.model_versions.version_comparison import Versions
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.tensors import Array

_EVERY_S = version_comparison.EVERY_S
HARD = HardSettings(threshold=0.5)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_comparison, "EVERY_S", 0.0)


class Scene:
    """A version on trial, and requests to it; `reasons` are why it was rejected."""

    def __init__(self, new: EdgeModel, former: EdgeModel, hard: HardSettings | None = HARD) -> None:
        self.new, self.former = new, former
        self.reasons: list[str] = []
        self.proofs = 0
        self.versions = Versions(new, former, (hard, hard))
        self.trial: Trial[EdgeRun] = Trial(former.run_now, self.reasons.append, self._proven, self.versions)
        new.trial, new.versions = self.trial, self.versions

    def _proven(self) -> None:
        self.proofs += 1

    def ask(self, probabilities: Array) -> EdgeRun:
        """One request; when it returns, both versions have answered it."""
        run = self.new.run(rows_of(probabilities.tolist()), np.inf)
        until(lambda: not self.versions._is_busy)
        return run


def pictures(count: int, sure: float = 0.9) -> Iterator[Array]:
    """Requests that all differ, of three classes in turn; the right class has about this probability."""
    draw = np.random.default_rng(0)
    for index in range(count):
        top = sure + 0.05 * draw.random()
        rest = np.full(3, (1.0 - top) / 2)
        rest[index % 3] = top
        yield rest.astype(np.float32)


def constant(given: Array) -> Array:
    """One class for everything, with scores that vary."""
    return np.stack([0.9 + 0.05 * given[:, 0], 0.05 * given[:, 0], 0.1 - 0.1 * given[:, 0]], axis=1)


def unsure(given: Array) -> Array:
    """The right class, and hardly sooner than the others."""
    return (0.3 + 0.1 * given).astype(np.float32)


def broken(given: Array) -> Array:
    return np.full_like(given, np.nan)


def test_a_version_that_is_like_the_one_before_proves_itself() -> None:
    scene = Scene(edge_model(), edge_model())
    for one in pictures(trials.RUNS + 5):
        scene.ask(one)
    assert (scene.reasons, scene.proofs) == ([], 1)


def test_one_answer_to_everything_goes_back() -> None:
    scene = Scene(edge_model(says=constant), edge_model())
    for one in pictures(60):
        scene.ask(one)
    (reason,) = scene.reasons
    assert reason.startswith("it gave the same answer to all ")


def test_one_answer_where_the_version_before_gives_no_other_is_no_fault() -> None:
    scene = Scene(edge_model(says=constant), edge_model(says=constant))
    for one in pictures(100):
        scene.ask(one)
    assert scene.reasons == []


@pytest.mark.slow
def test_what_the_former_version_only_flickers_between_is_no_change() -> None:
    scene = Scene(edge_model(says=constant), edge_model(says=unsure), None)
    for one in pictures(100):
        scene.ask(one)
    assert scene.reasons == []


def test_a_version_that_finds_far_more_requests_hard_goes_back() -> None:
    scene = Scene(edge_model(says=unsure), edge_model())
    for one in pictures(60):
        scene.ask(one)
    (reason,) = scene.reasons
    assert "requests are hard only for it, and 0 only for the previous version" in reason


@pytest.mark.slow
def test_where_requests_become_hard_for_both_no_version_goes_back() -> None:
    scene = Scene(edge_model(), edge_model())
    for one in [*pictures(50), *pictures(100, sure=0.36)]:
        scene.ask(one)
    assert scene.reasons == []


def test_without_a_threshold_of_their_own_hard_cases_are_not_compared() -> None:
    scene = Scene(edge_model(says=unsure), edge_model(), None)
    for one in pictures(100):
        scene.ask(one)
    assert scene.reasons == []


def test_what_is_not_finite_is_answered_by_the_version_before_and_goes_back() -> None:
    scene = Scene(edge_model(says=broken), edge_model())
    runs = [scene.ask(one) for one in pictures(5)]
    assert all(np.isfinite(run.outputs["fp32"]).all() for run in runs[: trials.MIN_FAILURES])
    (reason,) = scene.reasons
    assert reason == "3 of its first 3 runs failed, the last with output 'fp32' contains values that are not finite"


def test_what_is_not_finite_in_both_counts_for_nothing() -> None:
    scene = Scene(edge_model(says=broken), edge_model(says=broken))
    for one in pictures(20):
        assert np.isnan(scene.ask(one).outputs["fp32"]).all()
    assert scene.reasons == []


def test_one_request_again_and_again_says_nothing_more() -> None:
    scene = Scene(edge_model(says=unsure), edge_model())
    (one,) = pictures(1)
    for _ in range(60):
        scene.ask(one)
    assert scene.reasons == []
    assert scene.versions._pairs == 60


@pytest.mark.slow
def test_a_former_version_that_takes_other_inputs_is_not_compared_and_not_waited_for() -> None:
    scene = Scene(edge_model(says=unsure), edge_model(failure="other inputs"))
    for one in pictures(trials.RUNS + 5):
        scene.ask(one)
    assert (scene.reasons, scene.proofs) == ([], 1)


def test_the_former_version_waits_for_the_device_like_everybody() -> None:
    scene = Scene(edge_model(), edge_model())
    (one,) = pictures(1)
    run = scene.new.run_now(rows_of(one.tolist()))
    with busy(scene.new):
        scene.versions.offer(rows_of(one.tolist()), run, lambda: None)
        until(lambda: scene.new.scheduler.queue.ahead == 2)
        assert scene.versions._pairs == 0
    until(lambda: scene.versions._pairs == 1)


def audited(scene: Scene, count: int, cloud: Callable[[Array], Array]) -> int:
    """Audit until the version is rejected; how many there were. The cloud says this of what it is sent."""
    for index, one in enumerate(pictures(count), 1):
        names: list[str] = []
        inputs: Mapping[str, Array] = rows_of(one.tolist())
        assert scene.versions.wants_audit()
        assert scene.versions.audit(scene.new, inputs, names.append)
        until(lambda names=names: names)  # type: ignore[misc]  # a default
        scene.versions.audited(names[0], {"fp32": cloud(inputs["fp32"])})
        scene.trial.judge()
        if scene.reasons:
            return index
    return count


def wrong(given: Array) -> Array:
    """Another class, and as sure of it."""
    return np.roll(given, 1, axis=1)


def test_a_version_that_the_cloud_contradicts_goes_back() -> None:
    scene = Scene(edge_model(says=wrong), edge_model())
    assert audited(scene, 60, lambda given: given) < 20
    (reason,) = scene.reasons
    assert "in audits the cloud agreed 1" in reason


def test_a_version_that_is_better_than_the_one_before_stays() -> None:
    scene = Scene(edge_model(), edge_model(says=wrong))
    assert audited(scene, 60, lambda given: given) == 60
    assert scene.reasons == []


@pytest.mark.slow
def test_where_the_policy_audits_a_version_is_not_proven_before_the_cloud_has_answered() -> None:
    scene = Scene(edge_model(), edge_model())
    assert scene.versions.wants_audit()
    for one in pictures(trials.RUNS + 5):
        scene.ask(one)
    assert scene.proofs == 0
    assert audited(scene, version_comparison.AUDITS, lambda given: given) == version_comparison.AUDITS
    assert scene.proofs == 1
    assert not scene.versions.wants_audit()


def test_an_audit_of_another_trial_counts_for_nothing() -> None:
    scene = Scene(edge_model(says=wrong), edge_model())
    for one in pictures(60):
        scene.versions.audited("", {"fp32": one[None]})
        scene.versions.audited("0" * 16, {"fp32": one[None]})
    assert scene.versions._answered == 0


def test_one_comparison_at_a_time_however_many_ask() -> None:
    scene = Scene(edge_model(), edge_model())
    with busy(scene.new):
        before = threading.active_count()
        run = scene.former.run_now(rows_of((0.9, 0.05, 0.05)))
        for one in pictures(50):
            scene.versions.offer(rows_of(one.tolist()), run, lambda: None)
            scene.versions.audit(scene.new, rows_of(one.tolist()), lambda _: None)
        assert threading.active_count() <= before + 2


def test_between_two_comparisons_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_comparison, "EVERY_S", 3600.0)
    scene = Scene(edge_model(says=unsure), edge_model())
    for one in pictures(60):
        scene.ask(one)
    time.sleep(0.0)
    assert scene.versions._pairs == 1


def test_audits_that_nobody_answers_come_to_an_end() -> None:
    scene = Scene(edge_model(), edge_model())
    asked = sum(scene.versions.wants_audit() for _ in range(2 * version_comparison.MOST_AUDITS))
    assert asked == version_comparison.MOST_AUDITS


def test_an_audit_of_one_request_is_sent_once() -> None:
    scene = Scene(edge_model(), edge_model())
    names: list[str] = []
    for _ in range(2):
        assert scene.versions.audit(scene.new, rows_of((0.9, 0.05, 0.05)), names.append)
        until(lambda: not scene.versions._is_auditing)
    until(lambda: len(names) == 2)
    assert names[0]
    assert not names[1]


def test_the_page_on_updates_has_the_figures() -> None:
    page = " ".join(prose(ROOT / "docs" / "releases.md").split())
    assert "at most ten times a second" in page
    assert _EVERY_S == 0.1
    assert f"at most {version_comparison.ERROR_RATE:.0%} of".replace("%", " %") in page
    assert f"{version_comparison.PAIRS} requests" in page
    assert f"lasts until {version_comparison.AUDITS} audits" in page
    assert f"at most {version_comparison.MOST_AUDITS} audits" in page


def test_an_answer_needs_no_thread_for_the_comparison_which_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstarted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    scene, one = Scene(edge_model(), edge_model()), rows_of((0.9, 0.05, 0.05))
    with monkeypatch.context() as patch:
        patch.setattr(version_comparison, "threading", SimpleNamespace(Thread=Unstarted))
        assert scene.new.run(one, np.inf).outputs
        assert not scene.versions.audit(scene.new, one, lambda _: None)
    scene.new.run(one, np.inf)
    until(lambda: scene.versions._pairs == 1)
    assert scene.versions.audit(scene.new, one, lambda _: None)
