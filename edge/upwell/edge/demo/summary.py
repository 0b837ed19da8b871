"""From outcomes to the figures of the report, which are also the shape of `upwell demo --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from upwell.edge.demo.runs import Outage, Outcome, Run


@dataclass(frozen=True)
class Summary:
    """Figures of one run.

    `accuracy` is the share of digits read rightly, an unanswered request counting as wrong; `p50_s` and `p95_s` are
    what the caller waited for an answer, None where none came; `cloud_share` is the share of requests of which
    anything was sent up; `bytes_up` counts the whole messages. `reasons` counts requests, `kinds` has the same
    figures for the requests of each kind.
    """

    requests: int
    answered: int
    digits: int
    accuracy: float
    p50_s: float | None
    p95_s: float | None
    cloud_share: float
    bytes_up: int
    degraded: int
    reasons: Mapping[str, int]
    kinds: Mapping[str, Summary]


@dataclass(frozen=True)
class OutageSummary:
    """A run through which the cloud was killed after `killed_after` requests; `late` counts those over the deadline.

    `cloud_after_kill` counts answers of the cloud that came after it was dead.
    """

    requests: int
    answered: int
    late: int
    degraded: int
    deadline_s: float
    slowest_s: float
    killed_after: int
    cloud_after_kill: int
    before: Summary
    after: Summary


def summarize(run: Run) -> Summary:
    """The figures of a run, and those of each kind of request in it."""
    whole = _summary(run.outcomes, sum(run.bytes_up.values()))
    kinds = {model: _summary(run.of(model), sent) for model, sent in run.bytes_up.items()}
    return replace(whole, kinds={model: kind for model, kind in kinds.items() if kind.requests})


def summarize_outage(outage: Outage, deadline_s: float) -> OutageSummary:
    """The figures of a run through an outage, against the deadline of the policy."""
    before, after = summarize(outage.before), summarize(outage.after)
    every = [*outage.before.outcomes, *outage.after.outcomes]
    return OutageSummary(
        requests=before.requests + after.requests,
        answered=before.answered + after.answered,
        late=sum(one.elapsed_s > deadline_s for one in every),
        degraded=before.degraded + after.degraded,
        deadline_s=deadline_s,
        slowest_s=max(one.elapsed_s for one in every),
        killed_after=before.requests,
        cloud_after_kill=sum(one.from_cloud for one in outage.after.outcomes),
        before=before,
        after=after,
    )


def _summary(outcomes: Sequence[Outcome], bytes_up: int) -> Summary:
    correct = [one.correct for one in outcomes]
    digits = sum(len(one) for one in correct)
    times_s = [one.elapsed_s for one in outcomes if one.answer is not None]
    p50_s, p95_s = (float(p) for p in np.percentile(times_s, (50, 95))) if times_s else (None, None)
    return Summary(
        requests=len(outcomes),
        answered=len(times_s),
        digits=digits,
        accuracy=float(sum(one.sum() for one in correct) / max(1, digits)),
        p50_s=p50_s,
        p95_s=p95_s,
        cloud_share=sum(one.went_up for one in outcomes) / max(1, len(outcomes)),
        bytes_up=bytes_up,
        degraded=sum(one.answer is not None and one.answer.degraded for one in outcomes),
        reasons=dict(Counter(one.reason for one in outcomes).most_common()),
        kinds={},
    )
