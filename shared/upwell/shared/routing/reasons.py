"""Why an answer came from where it came from: the closed list of reason codes and route kinds."""

from __future__ import annotations

from enum import Enum


class _Code(str, Enum):
    def __str__(self) -> str:
        """The code itself, as it stands in answers, logs and metrics."""
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
    """The head runs on the device and what it gives goes up to its tail; the whole on the device stands by."""
    EXIT = "exit"
    """The head answers early; for rows that turn out hard the tensors that it gives besides go up to its tail."""


class Route(_Code):
    """Who answered (`upwell.route`)."""

    EDGE = "edge"
    CLOUD = "cloud"
    SPLIT = "split"
    """The head on the device and the tail in the cloud together."""
    EXIT = "exit"
    """The head's early answer, on the device alone."""
    MIXED = "mixed"
    """Rows of one request were answered by different sides; `upwell.routes` names each."""


class Reason(_Code):
    """Why the answer is what it is (`upwell.reason`)."""

    EASY = "easy"
    """The device answered and was sure enough."""
    HARD = "hard"
    """The device was unsure, so the cloud was asked and answered."""
    DRIFTED = "drifted"
    """The device was unsure by the threshold of `on_drift`, since the model's rows have drifted, so the cloud was asked
    and answered."""
    LARGE = "large"
    """The case is larger than the policy's `large`, so it went up and the cloud answered."""
    RULE = "rule"
    """A rule of the policy set this route."""
    PLACED = "placed"
    """The model is split, and its tail, or the whole in the cloud, was predicted to lower what the objective names."""
    NO_SPLIT = "no_split"
    """A rule wants the model split, and no head of it is ready on the device."""
    NO_EDGE = "no_edge"
    """The model has no edge side; the cloud is its only route."""
    NO_CLOUD = "no_cloud"
    """No cloud is configured for this model."""
    NO_SCORES = "no_scores"
    """The signature names no probabilities or logits, so nobody can say whether a case is hard."""
    UNCALIBRATED = "uncalibrated"
    """The policy names a share or a risk and no calibration fits these models, so a former or plain one decided."""
    RULE_ERROR = "rule_error"
    """A rule of the policy could not be evaluated for this request, so nothing left the device."""
    ALWAYS_EDGE = "always_edge"
    """The policy has neither `hard` nor `large` for this model: nothing is ever a candidate for the cloud."""
    EGRESS_DENIED = "egress_denied"
    """A rule says `egress: deny`: nothing may leave the device."""
    CLOUD_NOT_BETTER = "cloud_not_better"
    """Under `objective: latency`, `energy` or `cost`: the cloud was not predicted to lower it."""
    EDGE_FASTER = "edge_faster"
    """Under `objective: latency` or `energy` the device's answer was there before the cloud's."""
    EDGE_BUSY = "edge_busy"
    """The device could not have answered in time (too many requests wait), so the cloud did."""
    EDGE_FAILED = "edge_failed"
    """The device's runtime failed on this request, so the cloud answered."""
    BUDGET_SPENT = "budget_spent"
    """A budget of the policy is used up until its period ends."""
    FLEET_SHARE = "fleet_share"
    """The device's share of a budget of the whole fleet has no room for it."""
    CLOUD_TOO_SLOW = "cloud_too_slow"
    """Degraded: the cloud was wanted, but its answer was predicted to come after the deadline."""
    BREAKER_OPEN = "breaker_open"
    """Degraded: the cloud was wanted, but it failed repeatedly and is left alone for a moment."""
    CLOUD_DEADLINE = "cloud_deadline"
    """Degraded: the cloud was asked and did not answer in time."""
    CLOUD_UNAVAILABLE = "cloud_unavailable"
    """Degraded: no connection, or the cloud is draining."""
    CLOUD_EXHAUSTED = "cloud_exhausted"
    """Degraded: the cloud refused for lack of room (full queue, quota, too large), or said not to come back yet."""
    CLOUD_INVALID_ARGUMENT = "cloud_invalid_argument"
    """Degraded: the cloud says that the request does not fit its model."""
    CLOUD_MODEL_MISSING = "cloud_model_missing"
    """Degraded: the cloud does not know the model."""
    CLOUD_UNAUTHENTICATED = "cloud_unauthenticated"
    """Degraded: the cloud does not accept the token or certificate."""
    CLOUD_CERTIFICATE = "cloud_certificate"
    """Degraded: the cloud's certificate is not valid (expired, another name, an unknown issuer)."""
    CLOUD_ERROR = "cloud_error"
    """Degraded: the cloud answered with an error of its own."""
    CLOUD_GARBAGE = "cloud_garbage"
    """Degraded: the cloud's answer could not be read or is not what the signature promises."""


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
"""The reasons that say that the cloud was asked and gave no usable answer."""

DEGRADED = CLOUD_FAILURES | {Reason.BREAKER_OPEN, Reason.CLOUD_TOO_SLOW}
"""The reasons under which an edge answer stands in for the cloud's."""

LINK_FAILURES = frozenset({Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_UNAUTHENTICATED, Reason.CLOUD_CERTIFICATE})
"""Failures that speak of the link or the whole service; the others speak of one model there."""

CALLERS_FAULTS = frozenset({Reason.CLOUD_INVALID_ARGUMENT})
"""Failures that speak of the request itself: nobody else's requests suffer for them."""
