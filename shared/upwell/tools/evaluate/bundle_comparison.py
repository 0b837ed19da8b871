"""Compares two bundles: by their quality on the same cases, and by replaying a log over a recorded link.

Means over all requests are estimated from randomly sampled ones with known probabilities.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upwell.shared.routing.calibration.binomial import lower_bound, upper_bound
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.simulation_report import SimulationReport
from upwell.shared.routing.simulation.strategies import Scene, routed
from upwell.shared.tensors import Array
from upwell.tools.evaluate.average_precision import CocoMatches, Floats
from upwell.tools.evaluate.evaluation_run import Answers, Judged, is_right

_ONE_SIDED = 0.975
_Z = 1.959963984540054
FLIPS = 10_000
_FLIPS_AT_ONCE = 500
RESAMPLES = 200


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval, from `n` cases. Without any: NaN and the whole interval."""

    mean: float
    low: float
    high: float
    n: int


def share(right: Floats, inclusion: Floats) -> Estimate:
    """The share of all requests for which `right` is 1, from cases with inclusion probabilities π.

    Horvitz & Thompson 1952 ("A generalization of sampling without replacement from a finite universe"), divided by the
    estimated number of requests (Hájek 1971): p̂ = Σ yᵢ/πᵢ / Σ 1/πᵢ. The interval is Korn & Graubard's (1998): Clopper
    and Pearson's for n* = p̂(1 − p̂)/V̂ independent cases, V̂ = Σ ((yᵢ − p̂)/πᵢ)² / (Σ 1/πᵢ)², where n* is at most
    Kish's (Σ wᵢ)²/Σ wᵢ²; counts are rounded outwards, so that it is wider rather than narrower.
    """
    n = len(right)
    if not n:
        return Estimate(math.nan, 0.0, 1.0, 0)
    weights = 1.0 / inclusion
    mean = float((weights * right).sum() / weights.sum())
    variance = float(((weights * (right - mean)) ** 2).sum() / weights.sum() ** 2)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    if variance > 0:
        effective = min(effective, mean * (1 - mean) / variance)
    trials = max(1, math.floor(effective + 1e-9))
    count = mean * trials
    low = lower_bound(max(0, math.floor(count + 1e-9)), trials, _ONE_SIDED)
    high = upper_bound(min(trials, math.ceil(count - 1e-9)), trials, _ONE_SIDED)
    return Estimate(mean, min(low, mean), max(high, mean), n)


def average(values: Floats, inclusion: Floats) -> Estimate:
    """The mean of a quantity over all requests: the same estimate, with the interval μ̂ ± 1.96 √V̂."""
    n = len(values)
    if not n:
        return Estimate(math.nan, -math.inf, math.inf, 0)
    weights = 1.0 / inclusion
    mean = float((weights * values).sum() / weights.sum())
    error = math.sqrt(float(((weights * (values - mean)) ** 2).sum())) / float(weights.sum())
    # A single case says nothing about their spread.
    reach = _Z * error * math.sqrt(n / (n - 1)) if n > 1 else math.inf
    return Estimate(mean, mean - reach, mean + reach, n)


def paired(differences: Floats, inclusion: Floats) -> Estimate:
    """The mean of paired differences in [−1, 1], with an interval that cases without any difference do not close.

    `average` with two cases more, of mean weight, one for each side: Bonett & Price 2012 ("Adjusted Wald intervals for
    a difference of binomial proportions based on paired data").
    """
    plain = average(differences, inclusion)
    if not plain.n:
        return plain
    typical = plain.n / float((1.0 / inclusion).sum())
    wider = average(np.append(differences, (1.0, -1.0)), np.append(inclusion, (typical, typical)))
    return replace(plain, low=max(-1.0, min(wider.low, plain.mean)), high=min(1.0, max(wider.high, plain.mean)))


def no_difference(differences: Floats, inclusion: Floats, seed: int = 0) -> float:
    """The p-value of "neither is better" for paired differences: a two-sided sign-flip test (Fisher 1935).

    If neither is better, each dᵢ is as likely to be −dᵢ. With # of `FLIPS` random flips giving a weighted sum Σ dᵢ/πᵢ
    at least as large, p = (1 + #)/(1 + FLIPS), which is exact however unequal the weights are. 1 if all differences
    are 0.
    """
    weighted = differences / inclusion
    weighted = weighted[weighted != 0]
    if not len(weighted):
        return 1.0
    rng, seen = np.random.default_rng(seed), 0
    limit = abs(float(weighted.sum())) - 1e-9 * float(np.abs(weighted).sum())
    for _ in range(FLIPS // _FLIPS_AT_ONCE):
        signs = rng.integers(0, 2, (_FLIPS_AT_ONCE, len(weighted))) * 2 - 1
        seen += int((np.abs(signs @ weighted) >= limit).sum())
    return (1 + seen) / (1 + FLIPS)


def share_up(hardness: Floats, is_risky: Floats, inclusion: Floats, max_risk: float) -> float:
    """The least share of all requests that must be offloaded, hardest first, so that at most `max_risk` of all stay
    and are risky. `hardness` grows with how hard a row is; rows of equal hardness are offloaded together.

    An estimate on these cases, without a guarantee: `upwell policy calibrate` finds a threshold with one.
    """
    if not len(hardness):
        return math.nan
    weights = 1.0 / inclusion
    order = np.argsort(hardness, kind="stable")
    kept = np.cumsum(weights[order]) / weights.sum()
    risk = np.cumsum((weights * is_risky)[order]) / weights.sum()
    ordered = hardness[order]
    is_end = np.append(ordered[1:] > ordered[:-1], True)
    allowed = kept[is_end & (risk <= max_risk)]
    return max(0.0, 1.0 - float(allowed.max())) if len(allowed) else 1.0


def weights_of(inclusion: Sequence[float]) -> Floats:
    """The inclusion probabilities as an array. Raises `ValueError` unless each is in (0, 1]."""
    found = np.asarray(inclusion, dtype=np.float64)
    if not ((found > 0) & (found <= 1)).all():
        raise ValueError("expected an inclusion probability of more than 0 and at most 1")
    return found


@dataclass(frozen=True)
class Replay:
    """A log over a link, the compared model, and the policy of each side."""

    scene: Scene
    model: str
    policies: tuple[Policy, Policy]


def replayed(
    replay: Replay, sides: tuple[Answers, Answers], cases: Sequence[Judged], inclusion: Floats
) -> dict[str, Any]:
    """The results of the agent's own router on the log with each side, over the requests of the model.

    Each request keeps its arrival, size, deadline and tags. It gets a case, drawn with probability ∝ 1/π and the same
    for both sides, which determines how hard that side's model found it and who is right. The device's time is the
    log's, for B times the ratio of the medians measured here.

    `late`: answered after the deadline, or not at all, ÷ requests. `right`: right and in time ÷ the requests whose
    cases have both answers known. `sent_up`: requests of which anything left the device ÷ requests. `cost`: by the
    policy's prices.
    """
    lines = [one.line for one in replay.scene.requests]
    rng, weights = np.random.default_rng(0), 1.0 / inclusion
    drawn = rng.choice(len(cases), len(lines), p=weights / weights.sum()).tolist()
    typical_s = [statistics.median(one.run_s) if one.run_s else 0.0 for one in sides]
    found: dict[str, Any] = {}
    for name, side, policy, mine_s in zip("ab", sides, replay.policies, typical_s, strict=True):
        speed = mine_s / typical_s[0] if typical_s[0] > 0 else 1.0
        asked = [
            _asked(line, side, index, cases[index], speed, mine_s) if line.model == replay.model else line
            for line, index in zip(lines, drawn, strict=True)
        ]
        served = routed(policy, replace(replay.scene, requests=prepare(asked)))
        report = SimulationReport.of([one for one in served if one.request.line.model == replay.model])
        found[name] = {
            "requests": report.requests,
            "late": 1.0 - report.deadline_hit_rate,
            "right": report.accuracy,
            "p50_s": report.p50_s,
            "p99_s": report.p99_s,
            "sent_up": report.cloud_share,
            "bytes_up": report.bytes_up,
            "cost": report.cost,
        }
    return found


def _asked(line: LogLine, side: Answers, index: int, case: Judged, speed: float, typical_s: float) -> LogLine:
    """A line of the log as if it had asked for this case, and this side's model had run."""
    is_class = case.truth.label is not None
    return line.model_copy(
        update={
            "edge_s": typical_s if line.edge_s is None else line.edge_s * speed,
            "hardness": side.measures[index],
            **side.scores[index],
            "edge_digest": side.digest,
            "edge_correct": is_right(side.labels[index], case.truth) if is_class else None,
            "cloud_correct": is_right(case.cloud, case.truth) if is_class and case.cloud is not None else None,
        }
    )


def compare(
    a: Answers, b: Answers, cases: Sequence[Judged], names: dict[str, int], group: str, max_risk: float
) -> dict[str, Any]:
    """The comparison as one document: `quality` of each and their `difference` (B − A), by class and by `group`.

    Higher is better throughout: accuracy for classes, COCO's mAP for boxes, and minus the mean absolute error for
    numbers. `share_up` is the share that would go up at the same risk, for classes.
    """
    inclusion = weights_of([case.chance for case in cases])
    truth = cases[0].truth
    compared = average if a.digest == b.digest else paired  # the same model certainly does not differ
    document: dict[str, Any] = {
        "cases": len(cases),
        "a": {"bundle": a.name, "digest": a.digest},
        "b": {"bundle": b.name, "digest": b.digest},
    }
    if truth.boxes is not None:
        return {**document, **_boxes((a, b), cases, names, group, compared)}
    if truth.label is not None:
        sides = [
            np.array([is_right(said, case.truth) for said, case in zip(one.labels, cases, strict=True)], np.float64)
            for one in (a, b)
        ]
        found = _means("accuracy", sides, inclusion, share, compared)
        cloud_right = np.array([case.cloud is None or is_right(case.cloud, case.truth) for case in cases])
        for key, one, right in (("a", a, sides[0]), ("b", b, sides[1])):
            risky = (right == 0) & cloud_right
            document[key]["share_up"] = share_up(np.array(one.hardness), risky.astype(np.float64), inclusion, max_risk)
        document["max_risk"] = max_risk
    else:
        sides = _negative_errors((a, b), cases)
        found = _means("negative mean absolute error", sides, inclusion, average, average)
    kinds: dict[str, Callable[[Judged], str]] = {"groups": lambda case: case.facts.tags.get(group, "")} if group else {}
    if truth.label is not None:
        kinds["classes"] = lambda case: case.truth.label or ""
    return {
        **document,
        **found,
        **{kind: _parts(of, sides, cases, inclusion, found["measure"]) for kind, of in kinds.items()},
    }


def _negative_errors(sides: Sequence[Answers], cases: Sequence[Judged]) -> list[Floats]:
    """Minus the absolute errors. A missing answer is no better than 0, nor than any answer of either side."""
    truth = np.array([case.truth.value or 0.0 for case in cases])
    said = [[math.nan if one is None or one.value is None else one.value for one in side.labels] for side in sides]
    errors = np.abs(np.array(said, np.float64) - truth)
    worst = np.maximum(np.abs(truth), np.max(errors, initial=0.0, where=np.isfinite(errors)))
    return list(-np.where(np.isfinite(errors), errors, worst))


def _means(
    measure: str,
    sides: Sequence[Floats],
    inclusion: Floats,
    estimate: Callable[[Floats, Floats], Estimate],
    compared: Callable[[Floats, Floats], Estimate],
) -> dict[str, Any]:
    difference = sides[1] - sides[0]
    return {
        "measure": measure,
        "quality": [_shown(estimate(side, inclusion)) for side in sides],
        "difference": {**_shown(compared(difference, inclusion)), "p": no_difference(difference, inclusion)},
    }


def _parts(
    of: Callable[[Judged], str], sides: Sequence[Floats], cases: Sequence[Judged], inclusion: Floats, measure: str
) -> dict[str, Any]:
    estimate = share if measure == "accuracy" else average
    keys = np.array([of(case) for case in cases], dtype=object)
    return {
        key: [_shown(estimate(side[keys == key], inclusion[keys == key])) for side in sides]
        for key in sorted(set(keys.tolist()))
    }


def _boxes(
    sides: tuple[Answers, Answers],
    cases: Sequence[Judged],
    names: dict[str, int],
    group: str,
    compared: Callable[[Floats, Floats], Estimate],
) -> dict[str, Any]:
    """mAP with percentile intervals from bootstrap samples of the pictures, of all and by `group`."""
    inclusion = weights_of([case.chance for case in cases])
    truth = [
        np.array([[*box.box, names.setdefault(box.label, len(names))] for box in case.truth.boxes or ()]).reshape(-1, 5)
        for case in cases
    ]
    matches = [CocoMatches(one.boxes, truth) for one in sides]
    means, samples = _precisions(matches, inclusion, np.arange(len(cases)))
    differences = samples[1] - samples[0]
    known = differences[np.isfinite(differences)]
    beyond = min(float((known <= 0).mean()), float((known >= 0).mean())) if len(known) else 1.0
    difference = _spread(means[1] - means[0], known, len(cases))
    if difference.low == difference.high:  # few pictures that are alike prove little
        difference = compared(np.full(len(cases), difference.mean), inclusion)
    document = {
        "measure": "mAP",
        "quality": [_shown(_spread(*one, len(cases))) for one in zip(means, samples, strict=True)],
        "difference": {**_shown(difference), "p": min(1.0, 2 * max(beyond, 1 / RESAMPLES))},
    }
    if not group:
        return document
    keys = np.array([case.facts.tags.get(group, "") for case in cases], dtype=object)
    parts = {key: np.flatnonzero(keys == key) for key in sorted(set(keys.tolist()))}
    precisions = {key: zip(*_precisions(matches, inclusion, rows), strict=True) for key, rows in parts.items()}
    groups = {key: [_shown(_spread(*one, len(parts[key]))) for one in sides] for key, sides in precisions.items()}
    return {**document, "groups": groups}


def _precisions(matches: Sequence[CocoMatches], inclusion: Floats, rows: Array) -> tuple[list[float], Floats]:
    """The mAP of each side on these cases, and on `RESAMPLES` samples of them, drawn with probabilities ∝ 1/π."""
    chances = inclusion[rows]
    rng, shares = np.random.default_rng(0), (1 / chances) / (1 / chances).sum()
    picked = [rows[rng.choice(len(rows), len(rows), p=shares)].tolist() for _ in range(RESAMPLES)]
    samples = np.array([[one.mean_average_precision(sample) for sample in picked] for one in matches])
    if bool((chances == chances[0]).all()):
        return [one.mean_average_precision(rows.tolist()) for one in matches], samples
    return [_known_mean(row) for row in samples], samples


def _known_mean(samples: Floats) -> float:
    known = samples[np.isfinite(samples)]
    return float(known.mean()) if len(known) else math.nan  # without an object in any picture


def _spread(mean: float, samples: Floats, n: int) -> Estimate:
    known = samples[np.isfinite(samples)]
    low, high = np.quantile(known, [0.025, 0.975]).tolist() if len(known) else (-math.inf, math.inf)
    return Estimate(mean, min(low, mean), max(high, mean), n)


def _shown(estimate: Estimate) -> dict[str, float | None]:
    values: Mapping[str, float] = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
