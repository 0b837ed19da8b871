"""Finds what does not fit together in a release, before anyone signs it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from upwell.edge.bundle.bundle import Bundle
from upwell.edge.bundle.bundle_calibrations import load_calibrations
from upwell.edge.config import AgentConfig
from upwell.pipelines.config.model_signatures import SignatureFacts, signatures_of
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.shared.config.yaml import read_text
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.dropped_denies import dropped_denies
from upwell.shared.routing.policy.policy import Policy


@dataclass(frozen=True)
class ReleaseParts:
    """The parsed contents of a release. `digests` are those of the model files in each bundle.

    `others` are models that the devices have without it, and `former` is the policy of the previous release.
    """

    bundles: Mapping[str, Bundle]
    digests: Mapping[str, Collection[str]]
    policy: Policy | None = None
    calibrations: Sequence[Calibration] = ()
    pipelines: Path | None = None
    cloud: Mapping[str, str] | None = None
    others: Collection[str] = ()
    former: Policy | None = None


def misfits(parts: ReleaseParts) -> tuple[list[str], list[str]]:
    """What does not fit together, in sentences, and warnings. Raises `ConfigError` for unreadable parts."""
    problems = [*_misfit_calibrations(parts), *_unknown_models(parts), *_dropped(parts)]
    warnings: list[str] = []
    if parts.pipelines is not None:
        try:
            _, found = parse_pipelines(read_text(parts.pipelines), parts.pipelines, _signatures(parts))
            warnings = [str(one) for one in found]
        except ConfigError as error:
            problems += [str(one) for one in error.problems]
    return problems, warnings


def _misfit_calibrations(parts: ReleaseParts) -> Iterator[str]:
    carried = {name: load_calibrations(bundle.folder) for name, bundle in parts.bundles.items()}
    for name, brought in carried.items():
        yield from _misfit(
            f"the bundle of {name!r}", [one.model_copy(update={"model": name}) for one in brought], parts
        )
    written = [*(parts.policy.calibrations if parts.policy else ()), *parts.calibrations]
    yield from _misfit("the policy", written, parts)


def _misfit(where: str, calibrations: Sequence[Calibration], parts: ReleaseParts) -> Iterator[str]:
    """Report each target with calibrations but none for the models of this release."""
    by_target: dict[tuple[object, ...], list[Calibration]] = {}
    for one in calibrations:
        if one.model in parts.bundles:
            by_target.setdefault((one.model, one.measure, one.cloud_share, one.max_risk), []).append(one)
    cloud = set((parts.cloud or {}).values())
    for group in by_target.values():
        if any(_fits(one, parts.digests[one.model], cloud) for one in group):
            continue
        last = group[-1]
        is_edge = bool(last.edge_digest) and last.edge_digest not in parts.digests[last.model]
        made_for, there = (
            (last.edge_digest, f"the bundle has {', '.join(sorted(parts.digests[last.model]))}")
            if is_edge
            else (last.cloud_digest, f"the cloud's models are {', '.join(sorted(cloud))}")
        )
        side = "the device" if is_edge else "the cloud"
        yield (
            f"{where} has a calibration of {last.model!r} by {last.measure} for the model {made_for} on {side}, and "
            f"{there}; calibrate again (`upwell policy calibrate`)"
        )


def _fits(one: Calibration, digests: Collection[str], cloud: Collection[str]) -> bool:
    return (not one.edge_digest or one.edge_digest in digests) and (
        not (one.cloud_digest and cloud) or one.cloud_digest in cloud
    )


def _unknown_models(parts: ReleaseParts) -> Iterator[str]:
    policy = parts.policy
    if policy is None:
        return
    named = set(policy.models)
    for rule in policy.rules:
        named.update(rule.match.models or ())
    known = {*parts.bundles, *parts.others}
    for name in sorted(named - known):
        there = ", ".join(sorted(known)) or "none"
        yield f"the policy names model {name!r}, which the release does not have; it has: {there} (--also NAME)"


def _dropped(parts: ReleaseParts) -> Iterator[str]:
    if parts.former is None or parts.policy is None or parts.policy.replaces == parts.former.digest:
        return
    dropped = dropped_denies(parts.former, parts.policy)
    if dropped:
        yield (
            f"without {', '.join(map(repr, dropped))} data kept on the device by egress: deny could leave it; if "
            f"that is intended, write `replaces: {parts.former.digest}` into the policy"
        )


def _signatures(parts: ReleaseParts) -> Mapping[str, SignatureFacts]:
    if not parts.bundles:
        return {name: SignatureFacts(None, takes_picture=None) for name in parts.others}
    models = {name: {"edge": {"bundle": str(bundle.folder)}} for name, bundle in parts.bundles.items()}
    known = signatures_of(AgentConfig.model_validate({"models": models}))
    return {**{name: SignatureFacts(None, takes_picture=None) for name in parts.others}, **known}
