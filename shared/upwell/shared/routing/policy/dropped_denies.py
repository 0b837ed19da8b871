"""Whether a new policy keeps on the device whatever the old one kept, so that an agent never loses that by accident."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from upwell.shared.routing.policy.policy import Policy, Rule

MOST_CASES = 4096
"""Maximum combinations of values in a rule; a rule with more is compared as a whole."""

_Values = Mapping[str, frozenset[str]]


def dropped_denies(before: Policy, after: Policy) -> Sequence[str]:
    """The names of rules of `before` with `egress: deny` for which `after` has no rule that denies at least as much.

    A rule is kept if, for each combination of the values that it names (tags and models), one rule of `after` denies
    all that it denies. This is sufficient, not necessary: what only several rules deny together, each for a part of the
    hours or sizes, counts as dropped. It is sound: if nothing is dropped, `after` keeps whatever `before` kept.
    """
    denies = [rule for rule in after.rules if rule.egress is not None]
    same_zone = before.timezone == after.timezone
    return [
        rule.name
        for rule in before.rules
        if rule.egress is not None and not all(
            any(_covers(new, case, same_zone) for new in denies) for case in _cases(rule)
        )
    ]  # fmt: skip


class _Case:
    """A rule for one value of each of its tags, and one model (None: any)."""

    def __init__(self, rule: Rule, tags: _Values, models: frozenset[str] | None) -> None:
        self.rule = rule
        self.tags = tags
        self.models = models


def _cases(rule: Rule) -> Iterator[_Case]:
    tags, models = _sets(rule.match.tags), rule.match.models
    if math.prod(map(len, tags.values())) * len(models or [0]) > MOST_CASES:
        yield _Case(rule, tags, models)
        return
    for values in itertools.product(*tags.values()):
        chosen = {name: frozenset([value]) for name, value in zip(tags, values, strict=True)}
        for model in [None] if models is None else [frozenset([name]) for name in models]:
            yield _Case(rule, chosen, model)


def _covers(new: Rule, case: _Case, same_zone: bool) -> bool:
    """Whether `new` matches every request of the case."""
    old = case.rule
    models, tags = new.match.models, _sets(new.match.tags)
    if models is not None and (case.models is None or not case.models <= models):
        return False
    if any(name not in case.tags or not case.tags[name] <= values for name, values in tags.items()):
        return False
    if new.match.hours is not None and not (same_zone and new.match.hours == old.match.hours):
        return False
    if new.match.size is not None and (old.match.size is None or old.match.size.above < new.match.size.above):
        return False
    if new.condition is not None and not (same_zone and new.condition == old.condition):
        return False
    return not new.match.unless_tags or _unless_covers(_sets(new.match.unless_tags), case)


def _unless_covers(new: _Values, case: _Case) -> bool:
    """Whether the case's requests lack one of the tags, or have a value of it that is not among those of `new`."""
    if any(name in case.tags and not case.tags[name] & known for name, known in new.items()):
        return True
    old = _sets(case.rule.match.unless_tags)
    return bool(old) and all(name in new and new[name] <= known for name, known in old.items())


def _sets(tags: Mapping[str, str | list[str]]) -> _Values:
    return {name: frozenset([values] if isinstance(values, str) else values) for name, values in tags.items()}
