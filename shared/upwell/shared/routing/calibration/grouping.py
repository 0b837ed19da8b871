"""Groups log lines by model pair: a calibration holds for one pair of models on one runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upwell.shared.routing.log import LogLine
from upwell.shared.routing.policy.settings import ModelPair


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
