"""The closed lists of reason codes, plans and routes of an answer."""

from __future__ import annotations

from enum import Enum


class _Code(str, Enum):
    def __str__(self) -> str:
        """The code itself, as used in answers, logs and metrics."""
        return str(self.value)


class Plan(_Code):
    """What was decided before anything ran (`upwell.plan`)."""

    EDGE = "edge"
    """The device answers; nothing goes up."""
    CLOUD = "cloud"
    """Every row goes up at once; the device stands by."""
    CASCADE = "cascade"
    """The device answers first; rows that turn out hard (or are large) go up."""
    SPLIT = "split"
    """The head runs on the device and its tensors go up to the tail; the whole on the device stands by."""
    EXIT = "exit"
    """The head answers early; the tensors of hard rows go up to the tail."""


class Route(_Code):
    """Who answered (`upwell.route`)."""

    EDGE = "edge"
    CLOUD = "cloud"
    SPLIT = "split"
    """The head on the device and the tail in the cloud."""
    EXIT = "exit"
    """The head's early answer, on the device alone."""
    MIXED = "mixed"
    """Different sides answered rows of one request; `upwell.routes` names each."""


class Reason(_Code):
    """Why the answer is what it is (`upwell.reason`)."""

    EASY = "easy"
    """The device answered and was sure enough."""
    HARD = "hard"
    """The device was unsure, so the cloud answered."""
    DRIFTED = "drifted"
    """As `hard`, by the threshold of `on_drift`."""
    LARGE = "large"
    """Larger than the policy's `large`, so the cloud answered."""
    RULE = "rule"
    """A rule set this route."""
    PLACED = "placed"
    """A split, or the whole in the cloud, was predicted to lower what the objective names."""
    NO_SPLIT = "no_split"
    """A rule wants a split, and no head is ready."""
    NO_EDGE = "no_edge"
    """The model has no edge side."""
    NO_CLOUD = "no_cloud"
    """The model has no cloud side."""
    NO_SCORES = "no_scores"
    """The signature names no scores, so no row is hard."""
    UNCALIBRATED = "uncalibrated"
    """No calibration fits the policy's share or risk, so another threshold decided."""
    RULE_ERROR = "rule_error"
    """A rule could not be evaluated, so nothing left the device."""
    ALWAYS_EDGE = "always_edge"
    """The policy has neither `hard` nor `large` for this model."""
    EGRESS_DENIED = "egress_denied"
    """A rule says `egress: deny`."""
    CLOUD_NOT_BETTER = "cloud_not_better"
    """Under `objective: latency`, `energy` or `cost`: the cloud was not predicted to lower it."""
    EDGE_FASTER = "edge_faster"
    """Under `objective: latency` or `energy`: the device answered first."""
    EDGE_BUSY = "edge_busy"
    """The device could not have answered in time, so the cloud did."""
    EDGE_FAILED = "edge_failed"
    """The device's run failed, so the cloud answered."""
    BUDGET_SPENT = "budget_spent"
    """A budget of the policy is used up until its period ends."""
    FLEET_SHARE = "fleet_share"
    """The device's share of a fleet's budget has no room for it."""
    CLOUD_TOO_SLOW = "cloud_too_slow"
    """Degraded: the cloud's answer was predicted to come too late."""
    BREAKER_OPEN = "breaker_open"
    """Degraded: the cloud keeps failing and is not asked for a moment."""
    CLOUD_DEADLINE = "cloud_deadline"
    """Degraded: the cloud did not answer in time."""
    CLOUD_UNAVAILABLE = "cloud_unavailable"
    """Degraded: no connection, or the cloud is draining."""
    CLOUD_EXHAUSTED = "cloud_exhausted"
    """Degraded: the cloud had no room (queue, quota, size), or said when to come back."""
    CLOUD_INVALID_ARGUMENT = "cloud_invalid_argument"
    """Degraded: the request does not fit the cloud's model."""
    CLOUD_MODEL_MISSING = "cloud_model_missing"
    """Degraded: the cloud does not know the model."""
    CLOUD_UNAUTHENTICATED = "cloud_unauthenticated"
    """Degraded: the cloud rejects the token or certificate."""
    CLOUD_CERTIFICATE = "cloud_certificate"
    """Degraded: the cloud's certificate is not valid (expired, another name, unknown issuer)."""
    CLOUD_ERROR = "cloud_error"
    """Degraded: the cloud answered with an error of its own."""
    CLOUD_GARBAGE = "cloud_garbage"
    """Degraded: the cloud's answer could not be read or does not fit the signature."""


CLOUD_FAILURES = frozenset(
    {
        Reason.CLOUD_DEADLINE,
        Reason.CLOUD_UNAVAILABLE,
        Reason.CLOUD_EXHAUSTED,
        Reason.CLOUD_INVALID_ARGUMENT,
        Reason.CLOUD_MODEL_MISSING,
        Reason.CLOUD_UNAUTHENTICATED,
        Reason.CLOUD_CERTIFICATE,
        Reason.CLOUD_ERROR,
        Reason.CLOUD_GARBAGE,
    }
)
"""The reasons that mean that the cloud was asked and gave no usable answer."""

DEGRADED = CLOUD_FAILURES | {Reason.BREAKER_OPEN, Reason.CLOUD_TOO_SLOW}
"""The reasons for which an edge answer replaces the cloud's."""

LINK_FAILURES = frozenset({Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_UNAUTHENTICATED, Reason.CLOUD_CERTIFICATE})
"""Failures of the link or the whole service; the others concern one model there."""

CALLERS_FAULTS = frozenset({Reason.CLOUD_INVALID_ARGUMENT})
"""Failures caused by the request itself, which must not affect other requests."""


def chance_in_words(chance: float, needed: float) -> str:
    """Whether a message pays for its time on the link; one that needs no chance finds out what the link carries."""
    needs = f"{needed:.0%} needed" if needed else "none needed: among the smallest, it tries the idle link"
    return f"in time with {chance:.0%} probability, {needs}"
