"""A rule as written in `policy.yaml`: what it matches, and what it does."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from upwell.shared.routing.policy.policy_keys import Section, SettingsPatch, Size, Written
from upwell.shared.routing.request_tags import lowered

_HOURS = r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)"


def _hours_span(text: str) -> str:
    if not re.fullmatch(_HOURS, text):
        raise ValueError(f'expected a span such as "22:00-06:00", got {text!r}')
    return text


def hours_minutes(span: str) -> tuple[int, int]:
    """The two ends of a checked `HH:MM-HH:MM` span, in minutes after midnight."""
    start_h, start_m, end_h, end_m = (int(part) for part in re.split("[:-]", span))
    return start_h * 60 + start_m, end_h * 60 + end_m


OneOrMore = str | Annotated[list[str], Field(min_length=1)]
_TagValues = Annotated[dict[str, OneOrMore], AfterValidator(lowered)]


class Match(Section):
    """What the rule applies to: every key must hold; `{}` matches every request."""

    tags: _TagValues = Field({}, description="Tag to the value, or values, that it may have.")
    unless_tags: _TagValues = Field({}, description="The reverse: one of these tags is missing or has another value.")
    model: Annotated[OneOrMore | None, Written] = Field(None, description="The model, or one of these.")
    hours: Annotated[
        Annotated[str, AfterValidator(_hours_span), Field(json_schema_extra={"pattern": f"^{_HOURS}$"})] | None,
        Written,
    ] = Field(None, description='Time of day in `timezone`, such as "22:00-06:00", its end excluded.')
    size: Annotated[Size | None, Written] = Field(None, description="A row has more bytes than this.")

    @property
    def models(self) -> frozenset[str] | None:
        """The models that it names; None for any."""
        return None if self.model is None else frozenset([self.model] if isinstance(self.model, str) else self.model)


def _checked_condition(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError("expected an expression as text, such as 'request.size_bytes > 1000'")
    try:
        from upwell.shared.routing.policy.cel_conditions import check
    except ImportError:
        raise ValueError(
            "`if` needs the package cel-expr-python: pip install 'upwell[cel]' (Python 3.11 or later); or use `match`"
        ) from None
    check(text)
    return text


class Rule(Section):
    """The first rule that matches and says `route` or `set` decides those; every `egress` and `collect` counts."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"anyOf": [{"required": ["match"]}, {"required": ["if"]}]},
                {
                    "anyOf": [
                        {"required": ["egress"]},
                        {"required": ["route"]},
                        {"required": ["set"]},
                        {"required": ["collect"]},
                    ]
                },
            ]
        }
    )

    name: str = Field(min_length=1, description="Shown in explanations and logs.")
    match: Match = Match.model_construct()
    condition: Annotated[str | None, BeforeValidator(_checked_condition)] = Field(
        None, alias="if", description="A CEL expression that must also hold; needs the extra `cel`."
    )
    egress: Annotated[Literal["deny"] | None, Written] = Field(
        None, description="deny: nothing of it leaves the device."
    )
    route: Annotated[Literal["edge", "cloud", "split"] | None, Written] = Field(
        None,
        description="edge: on the device. cloud: every row is a candidate. split: by the best cut.",
    )
    collect: Annotated[Literal[False] | None, Written] = Field(
        None, description="false: nothing of it is kept as a case."
    )
    set: Annotated[SettingsPatch | None, Written] = Field(None, description="Settings for matching requests.")

    @model_validator(mode="after")
    def _applies_and_does_something(self) -> Rule:
        problems: list[str] = []
        if not {"match", "condition"} & self.model_fields_set:
            problems.append("the rule applies to nothing; expected `match` or `if` ({} matches every request)")
        if not any(one is not None for one in (self.egress, self.route, self.set, self.collect)):
            problems.append("the rule does nothing; expected `egress`, `route`, `set` or `collect`")
        if problems:
            raise ValueError("; ".join(problems))
        return self
