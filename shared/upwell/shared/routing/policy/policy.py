"""The routing policy (`policy.yaml`), and its settings for one model and one rule.

Precedence is defaults → model → rule, key by key: a level changes only the keys that it writes. `Policy` is the file as
written; `Settings` is the result, frozen and complete, computed once when the policy is compiled.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from upwell.shared.config.located_errors import Location, located
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.contradictions import Parts, disagreements, joined
from upwell.shared.routing.policy.policy_keys import Section, SettingsPatch, Written
from upwell.shared.routing.policy.rule_keys import Rule, hours_minutes
from upwell.shared.routing.policy.settings import ModelPair, Settings
from upwell.shared.routing.policy.settings_resolution import Resolved

__all__ = ("Policy", "Rule", "hours_minutes")


_DIGEST = "^sha256:[0-9a-f]{64}$"


def _misplaced(value: Any) -> dict[Location, str]:
    """Refuse `replaces` anywhere but at the end, where it proves that the file is complete: a truncated file lacks its
    digest."""
    if isinstance(value, dict) and "replaces" in value and list(value)[-1] != "replaces":
        return {("replaces",): "expected as the last key of the file, so that a truncated file lacks it"}
    return {}


def _known_zone(name: str) -> str:
    try:
        if name != "UTC":  # works without a time zone database, which a small device may lack
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"unknown time zone {name!r}; expected an IANA name such as Europe/Berlin") from None
    return name


class Policy(Section):
    """A routing policy as written in `policy.yaml`."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    timezone: Annotated[str, AfterValidator(_known_zone)] = Field(
        "UTC", description="IANA name, for `hours` and the days of budgets."
    )
    defaults: SettingsPatch = Field(SettingsPatch.model_construct(), description="Settings for every model.")
    rules: list[Rule] = Field([])
    models: dict[str, SettingsPatch] = Field({}, description="Settings by model name.")
    calibrations: list[Calibration] = Field([])
    replaces: Annotated[Annotated[str, Field(pattern=_DIGEST)] | None, Written] = Field(
        None,
        description="The digest of the policy whose `egress: deny` this file may drop; the last key of the file.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _holds_together(cls, value: Any, handler: ModelWrapValidatorHandler[Policy]) -> Policy:
        """Check the file as a whole, also if parts are wrong: then the valid parts."""
        misplaced = _misplaced(value)
        try:
            policy = handler(value)
        except ValidationError as error:
            raise joined(error, {**disagreements(Parts.readable(value)), **misplaced}) from None
        problems = {**disagreements(policy.parts), **misplaced}
        if problems:
            raise located(problems)
        return policy

    @property
    def digest(self) -> str:
        """The digest that identifies this policy; `replaces` is not part of it."""
        text = self.model_dump_json(exclude={"replaces"})
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def parts(self) -> Parts:
        """The levels and calibrations, by their places in the file."""
        return Parts(self.defaults, dict(enumerate(self.rules)), self.models, dict(enumerate(self.calibrations)))

    @property
    def collects(self) -> bool:
        """Whether rows of any model are kept as cases, perhaps only for a rule."""
        levels = [self.defaults, *self.models.values(), *(rule.set for rule in self.rules)]
        return any(one is not None and one.collect not in (None, "off") for one in levels)

    def settings(self, model: str | None, rule: Rule | None, model_pair: ModelPair | None = None) -> Settings:
        """The settings of `model` under `rule` (either may be None), with calibrations that fit `model_pair`."""
        return self.resolved(model, rule, model_pair).settings

    def resolved(self, model: str | None, rule: Rule | None, model_pair: ModelPair | None = None) -> Resolved:
        """The same, with the level that wrote each setting."""
        index = None if rule is None else self.rules.index(rule)
        return self.parts.resolved(model, index, model_pair or ModelPair())
