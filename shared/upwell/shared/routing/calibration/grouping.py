"""Which lines of a log speak of the same models: a calibration holds for one pair of models, on one runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upwell.shared.routing.log import LogLine
from upwell.shared.routing.policy.settings import ModelPair


def by_model_pair(lines: Sequence[LogLine]) -> Mapping[ModelPair, list[LogLine]]:
    """The lines of one model by what they say of its digests and runtime, in the order of time.

    A line that leaves something out (the cloud was not asked, so its digest is unknown) belongs to the last fuller
    one before it that it agrees with, or to the first after it; where there is none it stands for itself.
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
    """Each identity, or in its place the last of `fullest` before it that says the same and more."""
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
    """Whether `whole` says all that `part` says."""
    pairs = (
        (part.edge_digest, whole.edge_digest),
        (part.edge_runtime, whole.edge_runtime),
        (part.cloud_digest, whole.cloud_digest),
    )
    return all(mine in ("", other) for mine, other in pairs)
