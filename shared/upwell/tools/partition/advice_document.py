"""The advice as in `plan.json`, and the sentences that sum it up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from upwell.shared.partition.bandwidth import BandwidthSweep, LabelledCost, Piece
from upwell.shared.partition.cost_graph import CostGraph
from upwell.shared.partition.objectives import Objective, latency
from upwell.shared.partition.plan_file import (
    AdviceFacts,
    AlternativeFacts,
    BaselineFacts,
    OptionFacts,
    PieceFacts,
    PlanFacts,
    RangeFacts,
    SentFacts,
)
from upwell.shared.partition.split_advice import CLOUD_RAW, EDGE_ONLY, WORTH, Advice, Option, Wins, tier_s
from upwell.shared.partition.tier_profile import CLOUD, EDGE, Profile, cut_name

_ALTERNATIVES = 5


@dataclass(frozen=True)
class AdviceOutcome:
    """All findings. `graph` is in seconds, over the requested link."""

    edge: Profile
    cloud: Profile
    graph: CostGraph
    objective: Objective
    symmetric: bool
    pieces: Sequence[Piece[LabelledCost]]
    plan: Option
    advice: Advice
    picture: str = ""
    stretch: float = 1.0


def document(outcome: AdviceOutcome) -> PlanFacts:
    """The plan for the current bandwidth, the envelope, and the advice."""
    inverse, plan = outcome.advice.inverse, outcome.plan
    totals = {option.name: option.seconds.at(inverse) for option in outcome.advice.options}
    others = {cut_name(outcome.graph, one.placement): one for one in reversed(outcome.advice.options)}
    others.pop(cut_name(outcome.graph, plan.placement), None)
    return PlanFacts(
        total_s=plan.seconds.at(inverse),
        placement=dict(plan.placement),
        sent=tuple(
            SentFacts.model_validate({"tensor": one.tensor, "from": one.source, "to": one.target, "bytes": one.bytes})
            for one in plan.seconds.of.sent
        ),
        baselines=BaselineFacts(edge_only_s=totals.get(EDGE_ONLY), cloud_only_s=totals.get(CLOUD_RAW)),
        alternatives=tuple(
            AlternativeFacts(placement=dict(option.placement), total_s=option.seconds.at(inverse))
            for option in sorted(others.values(), key=lambda one: one.seconds.at(inverse))[:_ALTERNATIVES]
        ),
        model=outcome.edge.model.digest,
        envelope=tuple(_piece(outcome, piece) for piece in outcome.pieces),
        advice=_advice(outcome),
    )


def sentences(outcome: AdviceOutcome) -> tuple[str, ...]:
    """The conclusion in plain words, the verdict first."""
    advice = outcome.advice
    compared = ", ".join(option.name for option in advice.options if option.kind != "cut")
    at_hand = amount(advice.best.value.at(advice.inverse), outcome.objective)
    last = f"At {rate(1 / advice.inverse)}: {advice.best.name}, {at_hand}."
    if advice.cuts_pay:
        verdict = f"Splitting pays: {_where(advice.wins, True)}."
        return verdict, f"At best it is {advice.gain:.2f} times better than the best of {compared}.", last
    verdict = f"Splitting does not pay: no cut beats the best of {compared} by {WORTH:.0%} at any bandwidth."
    best = f"Best: {_where(advice.wins, False)}."
    if advice.raw_gain > 1:
        where = _where(advice.raw_wins, True)
        return (
            verdict,
            best,
            f"Against the raw input alone, a cut would win by up to {advice.raw_gain:.2f} times: {where}.",
            last,
        )
    return verdict, best, last


def _where(wins: Wins, cuts: bool) -> str:
    """`c6 from 36 to 42 Mbps, …`: where cuts win, or where everything else does."""
    return ", ".join(
        f"{piece.line.of.name} {_in_words(piece)}" for piece in wins if (piece.line.of.kind == "cut") == cuts
    )


def notes(outcome: AdviceOutcome) -> tuple[str, ...]:
    """The assumptions behind the figures, and what they leave out."""
    found = [
        f"The {profile.tier} side is simulated: {profile.machine.simulated}."
        for profile in (outcome.edge, outcome.cloud)
        if profile.machine.simulated
    ]
    if outcome.picture:
        slower = f"; encoding times are multiplied by {outcome.stretch:g}" if outcome.stretch != 1 else ""
        found.append(
            f"{outcome.picture} was encoded and decoded on this machine at the size of the model's input{slower}. "
            "JPEG and WebP change what the model sees: check its accuracy."
        )
    else:
        found.append("For the cloud, only the raw input tensor was compared; --picture adds a compressed one.")
    between_points = [option.name for option in outcome.advice.options if not option.is_measured]
    if between_points:
        found.append(f"Interpolated between measured cuts: {', '.join(between_points)}.")
    if outcome.symmetric:
        found.append("The downlink is assumed to be as fast as the uplink; --downlink sets its rate.")
    return tuple(found)


def rate(bps: float) -> str:
    """`8 Mbps`, `350 kbps`."""
    for unit, size in (("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3)):
        if bps >= 0.9995 * size:
            return f"{bps / size:.3g} {unit}"
    return f"{bps:.3g} bps"


def between(piece: Piece[Option]) -> str:
    """`≤ 2 Mbps`, `2 – 9 Mbps`, `≥ 9 Mbps`, `everywhere`."""
    if piece.from_bps > 0 and piece.to_bps < math.inf:
        (slow, unit), fast = rate(piece.from_bps).split(), rate(piece.to_bps)
        return f"{slow} – {fast}" if fast.endswith(f" {unit}") else f"{slow} {unit} – {fast}"
    if piece.from_bps > 0:
        return f"≥ {rate(piece.from_bps)}"
    return f"≤ {rate(piece.to_bps)}" if piece.to_bps < math.inf else "everywhere"


def _in_words(piece: Piece[Option]) -> str:
    if piece.from_bps > 0 and piece.to_bps < math.inf:
        return f"from {rate(piece.from_bps)} to {rate(piece.to_bps)}"
    if piece.from_bps > 0:
        return f"above {rate(piece.from_bps)}"
    return f"below {rate(piece.to_bps)}" if piece.to_bps < math.inf else "at any bandwidth"


def amount(value: float, objective: Objective) -> str:
    """A value of the objective with its unit."""
    if objective.name == "latency":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:.3g} {objective.unit}".rstrip()


def _advice(outcome: AdviceOutcome) -> AdviceFacts:
    advice, objective = outcome.advice, outcome.objective
    verdict, *others = sentences(outcome)
    return AdviceFacts(
        objective=objective.name,
        unit=objective.unit,
        uplink_bps=1 / advice.inverse,
        downlink_bps=None if outcome.symmetric else outcome.graph.links[0].return_bps,
        rtt_s=outcome.graph.links[0].fixed_s,
        options=tuple(_option(advice, option) for option in advice.options),
        best=advice.best.name,
        cuts_pay=advice.cuts_pay,
        gain=advice.gain,
        verdict=verdict,
        notes=(*others, *notes(outcome)),
    )


def _option(advice: Advice, option: Option) -> OptionFacts:
    where = advice.range_of(option)
    return OptionFacts(
        name=option.name,
        kind=option.kind,
        placement=dict(option.placement),
        measured=option.is_measured,
        edge_s=option.edge_s,
        cloud_s=option.cloud_s,
        base_s=option.seconds.base,
        bytes=option.bytes,
        total_s=option.seconds.at(advice.inverse),
        value=option.value.at(advice.inverse),
        wins=None if where is None else RangeFacts(from_bps=where.from_bps or None, to_bps=_bound(where.to_bps)),
    )


def _piece(outcome: AdviceOutcome, piece: Piece[LabelledCost]) -> PieceFacts:
    """A piece in seconds, whatever the objective by which it was found."""
    placement = piece.line.of.placement
    line = BandwidthSweep(outcome.graph, latency(outcome.graph.tiers), symmetric=outcome.symmetric).line(
        placement, outcome.advice.inverse
    )
    return PieceFacts(
        name=cut_name(outcome.graph, placement),
        placement=dict(placement),
        edge_s=tier_s(outcome.graph, placement, EDGE),
        cloud_s=tier_s(outcome.graph, placement, CLOUD),
        base_s=line.base,
        bytes=line.slope / 8,
        from_bps=piece.from_bps or None,
        to_bps=_bound(piece.to_bps),
    )


def _bound(bps: float) -> float | None:
    return bps if bps < math.inf else None
