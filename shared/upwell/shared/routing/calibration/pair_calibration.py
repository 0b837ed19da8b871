"""Calibrates pairs of models on their runtimes: from the log lines of each to the threshold that reaches a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from upwell.shared.routing.calibration.binomial import lower_bound
from upwell.shared.routing.calibration.discrimination import Discrimination, discrimination
from upwell.shared.routing.calibration.logged_hardness import (
    FROM_LOGITS,
    TEMPERED,
    fitted_temperature,
    is_of_chances,
    lacks_supports,
    measured,
)
from upwell.shared.routing.calibration.object_chances import fitted_chances, why_unfitted
from upwell.shared.routing.calibration.threshold_choice import (
    CannotCalibrate,
    Found,
    Sample,
    contradiction,
    cut_for_risk,
    cut_for_share,
    found,
)
from upwell.shared.routing.hardness import RISING, LogitFit, Measure, is_hard
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, RequestFacts
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array

_GOLDEN = (math.sqrt(5) - 1) / 2
_HELD_OUT = 0.2
_FOR_TEMPERATURE = 0.2
_QUALITY_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Target:
    """The target: a share of all requests, or a risk at a confidence; the other one is NaN."""

    cloud_share: float = math.nan
    max_risk: float = math.nan
    confidence: float = 0.95

    @property
    def is_share(self) -> bool:
        """Whether the target is a share rather than a risk."""
        return not math.isnan(self.cloud_share)


@dataclass(frozen=True, slots=True)
class QualityCost:
    """The cost of one picture quality over `requests` with pictures: bytes as a share of those at full quality, the
    share of cloud answers that agree with those at full quality, and its lower bound at 95 % confidence
    (Clopper-Pearson)."""

    quality: int
    requests: int
    bytes_share: float
    agreement: float
    agreement_bound: float


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """A threshold for `model` and `model_pair`, and its results.

    `threshold` is in the measure's own direction. `chosen` has the results on the requests from which it was chosen,
    `held_out` those on the others, `nothing_hard` those of the former if none of them is hard. `sample` has the former,
    for a plot. `discrimination` rates the measure on all of them. `unknown` counts the lines without both known
    answers. `qualities` are the costs of lower picture qualities.
    """

    model: str
    model_pair: ModelPair
    target: Target
    hard: HardSettings
    threshold: float
    requests: int
    unknown: int
    chosen: Found
    held_out: Found
    nothing_hard: Found
    sample: Sample
    discrimination: Discrimination
    warnings: tuple[str, ...]
    qualities: tuple[QualityCost, ...]


def calibration_of(
    lines: Sequence[LogLine], policy: CompiledPolicy, hard: HardSettings, model_pair: ModelPair, target: Target
) -> CalibrationResult:
    """The calibration for `target` from `lines` (one model, one model pair, in order of time).

    `policy` has the target, so that it tells which requests the threshold decides; `hard` are its settings for the
    model. Raises `CannotCalibrate`.

    The lines are split by multiples of the golden ratio, which are not in step with any period of a log: a fifth is
    held out and only checked against, a fifth fits how logits are moved, if that can be fitted, and the rest chooses
    the threshold of a risk. Separate parts keep the guarantee of Learn-then-Test exact: what it tests must not depend
    on its test data. A share, which guarantees nothing, is chosen from all lines that are not held out, which also fit
    the chances of a detector's objects.
    """
    place = np.modf(np.arange(1, len(lines) + 1) * _GOLDEN)[0]
    is_held_out = place < _HELD_OUT
    tempers = (place >= 1 - _FOR_TEMPERATURE) & ~is_held_out
    moves = ~is_held_out if target.is_share else place >= 1 - _FOR_TEMPERATURE

    def fit_of(measure: Measure) -> LogitFit:
        other, _ = _tempered(lines, replace(given, measure=measure), tempers)
        return _moved(lines, other, moves)[0].fit

    given = hard
    hard, is_for_temperature = _tempered(lines, given, tempers)
    hard, is_for_chances = _moved(lines, hard, moves)
    sample = as_sample(lines, policy, hard, target)
    is_chosen_on = ~is_held_out if target.is_share else ~(is_held_out | is_for_temperature | is_for_chances)
    chosen_on, held_out = sample.where(is_chosen_on), sample.where(is_held_out)
    _check_scores(sample, lines, hard)
    cut = _cut(chosen_on, target, max(len(lines), len(chosen_on) / (1 - _HELD_OUT)))  # the first few are all chosen on
    chosen = found(chosen_on, cut, target.confidence)
    against = contradiction(held_out, chosen, target.cloud_share, target.max_risk)
    if against:
        raise CannotCalibrate(f"the check failed: {against}; are the lines of the log independent of each other?")
    worth = discrimination(lines, sample, hard.measure, fit_of)
    return CalibrationResult(
        model=lines[0].model,
        model_pair=model_pair,
        target=target,
        hard=hard,
        threshold=cut if hard.measure in RISING else -cut,
        requests=len(lines),
        unknown=len(sample) - len(sample.known),
        chosen=chosen,
        held_out=found(held_out, cut, target.confidence),
        nothing_hard=found(chosen_on, float(chosen_on.cuts()[-1]), target.confidence),
        sample=chosen_on,
        discrimination=worth,
        warnings=(*worth.warnings(hard.measure), *_warnings(sample, target), *_not_moved(lines, hard.measure, moves)),
        qualities=quality_costs(lines),
    )


def quality_costs(lines: Sequence[LogLine]) -> tuple[QualityCost, ...]:
    """The costs by quality, best first; empty if the log has none."""
    answers = [one for line in lines for one in line.qualities]
    found = []
    for quality in sorted({one.quality for one in answers}, reverse=True):
        mine = [one for one in answers if one.quality == quality]
        agreed = sum(one.agrees for one in mine)
        share = sum(one.up_bytes for one in mine) / max(1, sum(one.whole_bytes for one in mine))
        bound = lower_bound(agreed, len(mine), _QUALITY_CONFIDENCE)
        found.append(QualityCost(quality, len(mine), share, agreed / len(mine), bound))
    return tuple(found)


def _cut(chosen_on: Sample, target: Target, lines: float) -> float:
    try:
        if target.is_share:
            return cut_for_share(chosen_on, target.cloud_share)
        return cut_for_risk(chosen_on, target.max_risk, target.confidence)
    except CannotCalibrate as error:
        if error.growth > 1:
            raise CannotCalibrate(f"{error}: about {math.ceil(lines * error.growth)} lines of such a log") from None
        raise


def as_sample(lines: Sequence[LogLine], policy: CompiledPolicy, hard: HardSettings, target: Target) -> Sample:
    """The lines in the form that a threshold sees. For rules, `t_s` counts as Unix time."""
    values = measured(lines, hard.measure, hard.fit)
    values = np.where(np.isnan(values), np.inf, values if hard.measure in RISING else -values)
    fixed = [_whatever_the_threshold(line, policy, hard, target) for line in lines]
    scores = np.array([value if goes is None else goes for value, goes in zip(values, fixed, strict=True)], np.float64)
    return Sample(scores, np.array([loss_of(line) for line in lines], np.float64))


def _whatever_the_threshold(line: LogLine, policy: CompiledPolicy, hard: HardSettings, target: Target) -> float | None:
    """+∞ for a request that the policy offloads whatever its hardness, −∞ for one that it always keeps, else None."""
    verdict = policy.judge(RequestFacts(line.model, line.tags, line.size_bytes, line.t_s))
    if verdict.egress_rule or verdict.route == "edge":
        return -math.inf
    if verdict.route == "cloud" or line.size_bytes > verdict.settings.large_above_bytes:
        return math.inf
    own = verdict.settings.hard
    if own is None:
        return -math.inf
    named = own.cloud_share if target.is_share else own.max_risk
    if named == (target.cloud_share if target.is_share else target.max_risk) and own.measure == hard.measure:
        return None
    value = float(measured([line], own.measure, own.fit)[0])
    return math.inf if is_hard(value, own.measure, own.threshold) else -math.inf


def loss_of(line: LogLine) -> float:
    """1 if the edge is wrong and the cloud right, 0 if not, NaN if one of the answers is unknown."""
    if line.edge_correct is None or line.cloud_correct is None:
        return math.nan
    return float(line.cloud_correct and not line.edge_correct)


def _tempered(lines: Sequence[LogLine], hard: HardSettings, part: Array) -> tuple[HardSettings, Array]:
    """`hard` with its temperature fitted on `part`, and that part; an empty part if there is nothing to fit."""
    if hard.measure not in TEMPERED or not all(line.logits for line in lines):
        return hard, np.zeros(len(lines), bool)
    fitted = fitted_temperature(_in_part(lines, part), hard.measure, hard.temperature)
    return replace(hard, temperature=fitted), part


def _in_part(lines: Sequence[LogLine], part: Array) -> Sequence[LogLine]:
    return [line for line, is_in in zip(lines, part, strict=True) if is_in]


def _moved(lines: Sequence[LogLine], hard: HardSettings, part: Array) -> tuple[HardSettings, Array]:
    """`hard` with the chances of a detector's objects fitted on `part`, and that part; else unmoved, and an empty part.

    A line with neither chances nor the measure, for which it was NaN, is hard after the fit too. If a line lacks the
    supports of its chances, supports get no weight: the agent would measure such requests otherwise than the log.
    """
    if not _can_move(lines, hard.measure) or _only_logged(lines, hard.measure):
        return replace(hard, **LogitFit(hard.temperature)._asdict()), np.zeros(len(lines), bool)
    has_supports = not any(map(lacks_supports, lines))
    fitted = fitted_chances(_in_part(lines, part), hard.measure, hard.temperature, has_supports=has_supports)
    return replace(hard, **fitted._asdict()), part


def _can_move(lines: Sequence[LogLine], measure: Measure) -> bool:
    """Whether the measure is that of chances, and some lines have them."""
    having = [line for line in lines if line.chances is not None]
    return bool(having) and all(is_of_chances(line, measure) for line in having)


def _only_logged(lines: Sequence[LogLine], measure: Measure) -> int:
    """How many lines have the measure alone, uncalibrated, so that no fit can move it."""
    return sum(line.chances is None and measure in line.hardness for line in lines)


def _not_moved(lines: Sequence[LogLine], measure: Measure, part: Array) -> tuple[str, ...]:
    """Why the chances are not fitted on that part, or the supports get no weight, although some lines have them."""
    if not _can_move(lines, measure):
        return ()
    if count := _only_logged(lines, measure):
        return (f"{count} lines have {measure} without `chances`, so no chances are fitted; leave these lines out",)
    if problem := why_unfitted(_in_part(lines, part), len(lines)):
        return (problem,)
    if (count := sum(map(lacks_supports, lines))) and any(line.supports for line in lines):
        return (f"{count} lines have `chances` without `supports`, so these get no weight; leave these lines out",)
    return ()


def _check_scores(sample: Sample, lines: Sequence[LogLine], hard: HardSettings) -> None:
    if np.isfinite(sample.scores).any():
        return
    logged = sorted({name for line in lines for name in line.hardness})
    if any(line.logits for line in lines):
        logged = sorted({*logged, *FROM_LOGITS})
    if hard.measure not in logged:
        has = f"only {', '.join(logged)}" if logged else "no hardness and no logits"
        raise CannotCalibrate(f"the policy uses the measure {hard.measure}, but the log has {has}")
    raise CannotCalibrate(f"rules, size or missing scores decide every request; {hard.measure} decides none")


def _warnings(sample: Sample, target: Target) -> tuple[str, ...]:
    """Reasons why the result is weaker than it looks."""
    is_known = ~np.isnan(sample.losses)
    if target.is_share or is_known.all() or not is_known.any():
        return ()
    texts = [f"{(~is_known).sum()} lines without known answers of both sides are left out"]
    finite = np.isfinite(sample.scores)
    known, unknown = sample.scores[is_known & finite], sample.scores[~is_known & finite]
    if len(known) and len(unknown) and abs(_rank_z(known, unknown)) > 5:
        texts.append(
            "their hardness differs from the others', so the log is not a random sample and the risk holds only for "
            "requests "
            "like those that are known; log with `explore`, or collect"
        )
    return tuple(texts)


def _rank_z(first: Array, second: Array) -> float:
    """By how many standard errors the ranks of two samples differ (Mann & Whitney 1947)."""
    ordered = np.sort(second)
    below = (np.searchsorted(ordered, first, "left") + np.searchsorted(ordered, first, "right")) / 2
    n, m = len(first), len(second)
    return float((below.sum() - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12))


def by_model_pair(lines: Sequence[LogLine]) -> Mapping[ModelPair, list[LogLine]]:
    """The lines of one model by model pair (digests and runtime), in order of time.

    An incomplete line (if the cloud was not asked, its digest is unknown) belongs to the latest more complete line
    before it that agrees with it, else to the first after it; if there is none it forms its own group.
    """
    ordered = sorted(lines, key=lambda line: line.t_s)
    model_pairs = [ModelPair(line.edge_digest, line.edge_runtime, line.cloud_digest) for line in ordered]
    fullest = [one for one in set(model_pairs) if not any(one != other and _fits(one, other) for other in model_pairs)]
    resolved = _carried(model_pairs, fullest)
    rest = _carried(resolved[::-1], fullest)[::-1]
    groups: dict[ModelPair, list[LogLine]] = {}
    for model_pair, line in zip(rest, ordered, strict=True):
        groups.setdefault(model_pair, []).append(line)
    return groups


def _carried(model_pairs: Sequence[ModelPair], fullest: Sequence[ModelPair]) -> list[ModelPair]:
    """Each model pair, or instead the last of `fullest` before it that agrees and says more."""
    seen: dict[ModelPair, None] = {}
    result = []
    for one in model_pairs:
        if one in fullest:
            seen.pop(one, None)
            seen[one] = None
            result.append(one)
        else:
            result.append(next((other for other in reversed(seen) if _fits(one, other)), one))
    return result


def _fits(part: ModelPair, whole: ModelPair) -> bool:
    """Whether `whole` has everything that `part` has."""
    pairs = (
        (part.edge_digest, whole.edge_digest),
        (part.edge_runtime, whole.edge_runtime),
        (part.cloud_digest, whole.cloud_digest),
    )
    return all(mine in ("", other) for mine, other in pairs)
