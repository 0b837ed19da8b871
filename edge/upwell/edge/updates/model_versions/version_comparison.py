"""Comparing a new version with the previous one: confidence, constant answers and accuracy on the same requests, and
late answers where a coin chose the version.

Some requests answered by the new version are also run by the previous one, at the lowest priority and in the
background. So nothing needs to be known from before the update or kept over a restart, and if today's requests are
harder they are harder for both. Audits go to the cloud with the answers of both versions.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from upwell.shared.routing.calibration.binomial import at_most
from upwell.shared.routing.hardness import is_hard
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.tensors import Array

if TYPE_CHECKING:
    from upwell.edge.models.edge_model import EdgeModel, EdgeRun


PAIRS = 100
"""Number of requests that both versions answer before the new one has proven itself."""
AUDITS = 100
"""Number of these that the cloud answers as well, if the policy audits."""
EVERY_S = 0.1
"""Pause between two such requests and between two audits, since consecutive frames are much alike."""
MOST_AUDITS = 2 * AUDITS
"""Maximum number of audits for a trial beyond the policy's share."""
ERROR_RATE = 0.01
"""Maximum probability of rolling back a version that is no worse than the previous one."""

_QUESTIONS = 4  # hard cases, constant answers, audits, late answers: each has its part of the error rate
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Said:
    """One version's result for one request: whether it was hard (None if not measured), the answer, and whether it was
    sure."""

    is_hard: bool | None
    answer: bytes
    is_sure: bool = True


class Versions:
    """`Comparison` of `new` with `former`. Thread-safe.

    `hards` are the hardness settings of both; None if hardness is not compared. There are four questions, each with a
    `SignTest`, the first three over requests on which the versions differ, one row of each:

    - hard cases: which version finds a request hard that the other is sure of;
    - constant answers: while the new version has given only one answer, each change of the previous version's confident
      answer counts against the new one;
    - audits: which version the cloud agrees with, if only with one;
    - late answers: which version gave them, where a coin had chosen it (see `Trial`).

    Each gets a quarter of `ERROR_RATE`. If one version is never late, 12 late answers of the other decide.
    """

    def __init__(
        self, new: EdgeModel, former: EdgeModel, hards: tuple[HardSettings | None, HardSettings | None]
    ) -> None:
        self._new, self._former = new, former
        can_compare = all(
            hard is not None and edge.scorer.can(hard) for hard, edge in zip(hards, (new, former), strict=True)
        )
        self._hards = hards if can_compare else (None, None)
        self._judges = tuple(edge.judge(hard) for edge, hard in zip((new, former), hards, strict=True))
        self._lock = threading.Lock()
        self._seen: set[bytes] = set()
        self._next_s = self._next_audit_s = -math.inf
        self._is_busy = self._is_auditing = False
        self._complaint = ""
        self._pairs = 0
        self._hard, self._constant, self._audit, self._late = SignTest(), SignTest(), SignTest(), SignTest()
        self._last: tuple[bytes, bytes] | None = None
        self._has_varied = False
        self._has_audits = False
        self._asked = self._answered = 0
        self._open: dict[str, tuple[Mapping[str, Array], Mapping[str, Array]]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether there are enough comparisons, and enough audits if the policy audits."""
        with self._lock:
            return self._pairs >= PAIRS and (not self._has_audits or self._answered >= AUDITS)

    @property
    def is_suspect(self) -> bool:
        """Whether more late answers came from the new version than from the previous one."""
        with self._lock:
            return self._late.worse > self._late.better

    def late(self, *, is_new: bool) -> None:
        """Count a late answer; `is_new` says which version gave it."""
        with self._lock:
            self._late = self._late.add(is_worse=is_new)
            self._complaint = self._found()

    def flaw(self, answer: EdgeRun) -> str:
        """Scores and boxes that are not finite make an answer invalid."""
        name = self._new.not_finite(answer.outputs)
        return f"output {name!r} contains values that are not finite" if name else ""

    def complaint(self) -> str:
        """The result of the question that rejects the new version; empty if none does."""
        return self._complaint

    def offer(self, inputs: Mapping[str, Array], answer: EdgeRun, judge: Callable[[], None]) -> None:
        """Run the previous version on this request, on its own thread, if the last one was long enough ago."""
        now_s = time.monotonic()
        with self._lock:
            if self._is_busy or now_s < self._next_s:
                return
            self._is_busy, self._next_s = True, now_s + EVERY_S
        said, kept = self._said(0, answer), self._first_row(inputs)

        def compare() -> None:
            try:
                former = self._new.run_aside(self._former, kept, answer.duration_s)
                self._vote(_digest(kept), said, None if former is None else self._said(1, former))
            finally:
                with self._lock:
                    self._is_busy = False
            judge()

        if not _began(compare):
            with self._lock:
                self._is_busy = False

    def wants_audit(self) -> bool:
        """Whether an audit beyond the policy's share would help; if so, it is counted."""
        with self._lock:
            self._has_audits = True
            is_enough = self._answered >= AUDITS or self._asked >= MOST_AUDITS
            if is_enough or self._is_auditing or time.monotonic() < self._next_audit_s:
                return False
            self._asked += 1
        return True

    def audit(self, edge: EdgeModel, inputs: Mapping[str, Array], send: Callable[[str], None]) -> bool:
        """Have both versions answer the audit, then `send` it under the name that `audited` will get.

        `edge` is the new version as served now. It runs on its own thread; the name is empty if a version has no
        answer. Returns False, doing nothing, if the last audit was too recent or no thread is left.
        """
        now_s = time.monotonic()
        with self._lock:
            if self._is_auditing or now_s < self._next_audit_s:
                return False
            self._is_auditing, self._next_audit_s = True, now_s + EVERY_S

        def answer() -> None:
            try:
                name = self._named(edge, inputs)
            finally:
                with self._lock:
                    self._is_auditing = False
            send(name)

        if _began(answer):
            return True
        with self._lock:
            self._is_auditing = False
        return False

    def audited(self, name: str, cloud: Mapping[str, Array]) -> None:
        """Process the cloud's answer to an audit; one of another trial is ignored."""
        judge = self._judges[0]
        with self._lock:
            answers = self._open.pop(name, None)
            if answers is None or judge is None:
                return
            self._answered += 1
            new, former = (judge.agrees(outputs, cloud) for outputs in answers)
            if new != former:
                self._audit = self._audit.add(is_worse=former)
                self._complaint = self._found()

    def _named(self, edge: EdgeModel, inputs: Mapping[str, Array]) -> str:
        """The name of an audit that both versions answered; empty if one did not, or it was sent before."""
        new = self._new.run_aside(edge, inputs, math.nan)
        former = None if new is None else self._new.run_aside(self._former, inputs, new.duration_s)
        if new is None or former is None:
            return ""
        digest, name = b"audit" + _digest(inputs), secrets.token_hex(8)
        with self._lock:
            if digest in self._seen:
                return ""
            self._seen.add(digest)
            self._open[name] = new.outputs, former.outputs
        return name

    def _found(self) -> str:
        rate = ERROR_RATE / _QUESTIONS
        hard, constant, audit, late = self._hard, self._constant, self._audit, self._late
        if audit.rejects(rate):
            return (
                f"in audits the cloud agreed {audit.worse} times only with the previous version, and {audit.better} "
                "times only with this one"
            )
        if constant.rejects(rate):
            return (
                f"it gave the same answer to all {self._pairs} requests, while the previous version "
                f"changed its own {constant.worse} times"
            )
        if hard.rejects(rate):
            return f"{hard.worse} requests are hard only for it, and {hard.better} only for the previous version"
        if late.rejects(rate):
            return f"where a coin chose the version, {late.worse} late answers were its own, and {late.better} not"
        return ""

    def _first_row(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """A copy of the first row, since the caller may change the inputs."""
        signature = self._new.signature
        row = signature.select_rows(inputs, (0,)) if signature.has_rows else inputs
        return {name: array.copy() for name, array in row.items()}

    def _said(self, which: int, run: EdgeRun) -> _Said:
        edge, hard, judge = (self._new, self._former)[which], self._hards[which], self._judges[which]
        outputs = run.outputs
        row = edge.signature.row(outputs, 0)
        measured = hard or HardSettings()
        is_unsure = False
        if edge.scorer.can(measured):
            (value,) = edge.scorer.score(row, measured, 1, run.candidates)
            is_unsure = is_hard(value, measured.measure, measured.threshold)
        answer = _digest(row) if judge is None else judge.answer(row)
        return _Said(None if hard is None else is_unsure, answer, not is_unsure)

    def _vote(self, digest: bytes, new: _Said, former: _Said | None) -> None:
        with self._lock:
            self._pairs += 1
            if former is None or digest in self._seen:
                return
            self._seen.add(digest)
            if new.is_hard is not None and new.is_hard != former.is_hard:
                self._hard = self._hard.add(is_worse=new.is_hard)
            self._vote_on_change(new, former)
            self._complaint = self._found()

    def _vote_on_change(self, new: _Said, former: _Said) -> None:
        last, sure = self._last, former.answer
        if not former.is_sure and last is not None:
            sure = last[1]  # flickering between two answers is not a change
        self._last = new.answer, sure
        if last is None or self._has_varied:
            return
        if new.answer != last[0]:
            self._has_varied, self._constant = True, SignTest()
        elif sure != last[1]:
            self._constant = self._constant.add(is_worse=True)


def _began(work: Callable[[], None]) -> bool:
    """Start a thread for it, if one is left: an answer does not wait for a comparison, much less fail for it."""
    try:
        threading.Thread(target=work, name="trial", daemon=True).start()
    except RuntimeError as error:
        _log.warning("a version on trial is not compared now: %s", error)
        return False
    return True


def _digest(arrays: Mapping[str, Array]) -> bytes:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        data = b"".join(bytes(one) for one in array.flat) if array.dtype.hasobject else array.tobytes()
        digest.update(f"{name} {array.dtype} {array.shape} {len(data)} ".encode() + data)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class SignTest:
    """Counts of requests on which two versions differ: `worse` if the new one was worse, `better` if it was better.

    If the new version is no worse, each of these is a `worse` with a probability p of at most 1/2, whatever came
    before. Against all p above 1/2 with equal weight, the n = worse + better of them have the likelihood ratio

        E_n = 2 ∫_{1/2}^{1} p^worse (1 − p)^better dp / (1/2)^n = 2^{n+1} B(worse + 1, better + 1) P(X ≤ worse),

    B the beta function, X ~ Binomial(n + 1, 1/2). E_n is a nonnegative supermartingale that starts at 1, so by Ville's
    inequality (1939) the probability that it ever reaches 1/δ is at most δ, however often it is checked (Robbins 1970,
    "Statistical methods related to the law of the iterated logarithm"; pairs alone that differ: McNemar 1947).
    """

    worse: int = 0
    better: int = 0

    def add(self, *, is_worse: bool) -> SignTest:
        """The test after another request on which the versions differ."""
        if is_worse:
            return replace(self, worse=self.worse + 1)
        return replace(self, better=self.better + 1)

    @property
    def evidence(self) -> float:
        """ln E_n, the evidence against the new version; 0 without a request."""
        count = self.worse + self.better
        beta = math.lgamma(self.worse + 1) + math.lgamma(self.better + 1) - math.lgamma(count + 2)
        tail = at_most(self.worse, count + 1, 0.5)
        return (count + 1) * math.log(2.0) + beta + math.log(tail) if tail > 0.0 else -math.inf

    def rejects(self, error_rate: float) -> bool:
        """Whether the new version is worse; one that is not is ever rejected with probability `error_rate` at most."""
        return self.evidence >= -math.log(error_rate)
