"""Which lines of a log speak of the same models: a calibration holds for one pair of models, on one runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upwell.shared.routing.log import LogLine
from upwell.shared.routing.settings import Identity


def by_identity(lines: Sequence[LogLine]) -> Mapping[Identity, list[LogLine]]:
    """The lines of one model by what they say of its digests and runtime, in the order of time.

    A line that leaves something out (the cloud was not asked, so its digest is unknown) belongs to the last fuller
    one before it that it agrees with, or to the first after it; where there is none it stands for itself.
    """
    ordered = sorted(lines, key=lambda line: line.t_s)
    identities = [Identity(line.edge_digest, line.edge_runtime, line.cloud_digest) for line in ordered]
    fullest = [one for one in set(identities) if not any(one != other and _fits(one, other) for other in identities)]
    resolved = _carried(identities, fullest)
    rest = _carried(resolved[::-1], fullest)[::-1]
    groups: dict[Identity, list[LogLine]] = {}
    for identity, line in zip(rest, ordered, strict=True):
        groups.setdefault(identity, []).append(line)
    return groups


def _carried(identities: Sequence[Identity], fullest: Sequence[Identity]) -> list[Identity]:
    """Each identity, or in its place the last of `fullest` before it that says the same and more."""
    seen: dict[Identity, None] = {}
    result = []
    for one in identities:
        if one in fullest:
            seen.pop(one, None)
            seen[one] = None
            result.append(one)
        else:
            result.append(next((other for other in reversed(seen) if _fits(one, other)), one))
    return result


def _fits(part: Identity, whole: Identity) -> bool:
    """Whether `whole` says all that `part` says."""
    pairs = (
        (part.edge_digest, whole.edge_digest),
        (part.edge_runtime, whole.edge_runtime),
        (part.cloud_digest, whole.cloud_digest),
    )
    return all(mine in ("", other) for mine, other in pairs)
