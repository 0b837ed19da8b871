"""What the parts of `pipelines.yaml` share: names, and mappings with one key."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from upwell.shared.config.located_errors import located
from upwell.shared.config.yaml import FilePart

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


def _check_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} is not a name; expected up to 64 letters, digits, - and _, starting with a letter or digit"
        )
    return text


_PATTERN: JsonDict = {"pattern": f"^{_NAME.pattern}$"}

Name: TypeAlias = Annotated[str, AfterValidator(_check_name), Field(json_schema_extra=_PATTERN)]
"""A pydantic field for a name that is safe in a topic, in a file name and in an event's `on`."""


NAMES: JsonDict = {"propertyNames": _PATTERN}
"""For the JSON Schema of a mapping whose keys are names, which pydantic leaves out."""


def _check_one_key(section: type[BaseModel], value: object, word: str) -> object:
    """`value` unchanged if it has exactly one key of the section, with a value. Raises `ValueError`.

    `word` is what messages call one element of the list. Unknown keys are left to pydantic.
    """
    known = list(section.model_fields)
    if isinstance(value, str) and value in known:
        raise ValueError(f"expected keys and values; write {{{value}: {{}}}}")
    if not isinstance(value, dict) or set(value) - set(known):
        return value
    if len(value) != 1:
        got = " and ".join(value) if value else "none"
        raise ValueError(f"expected one key for each {word}, one of {', '.join(known)}; got {got}")
    ((key, inner),) = value.items()
    if inner is None:
        raise located({(key,): "expected keys and values, or {} for none; got nothing"})
    return value


class OneKeySection(FilePart):
    """A section with exactly one of its keys set. `WORD` is what messages call one element of the list."""

    WORD: ClassVar[str]

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @property
    def kind(self) -> str:
        """The key that is set."""
        return next(iter(self.model_fields_set))

    @model_validator(mode="before")
    @classmethod
    def _one_key(cls, value: object) -> object:
        return _check_one_key(cls, value, cls.WORD)
