"""Tags of a request, by which rules match; whatever is doubtful fails closed.

Names of tags are case-insensitive, as HTTP headers are: `Privacy` in a rule, `privacy` in a header and `PRIVACY` in a
call must be one tag, or a rule that keeps requests on the device would miss. Values are case-sensitive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator

_Value = TypeVar("_Value")

NO_TAGS: Mapping[str, str] = {}

MOST_CHARACTERS = 1 << 16
"""Most characters of the tags of one request, which logs and cases hold in full: a caller may send megabytes."""

LONGEST_KEY = 64


def lowered(tags: Mapping[str, _Value]) -> dict[str, _Value]:
    """The same with names in lower case. Raises `ValueError` if two names differ only in case."""
    found: dict[str, _Value] = {}
    for name, value in tags.items():
        key = name.lower()
        if key in found:
            raise ValueError(f"tag {key!r} is repeated; the case of a tag's name is ignored")
        found[key] = value
    return found


def tag_key(value: str) -> str:
    """A tag's value as a key to be remembered: its SHA-256 if it is longer than `LONGEST_KEY`."""
    return value if len(value) <= LONGEST_KEY else hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text. For a byte of another code, a name of a file has half a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_tags(tags: Mapping[Any, Any]) -> Mapping[str, str]:
    """The tags of a request as rules see them: a copy with names in lower case. Raises `ValueError`.

    Names and values must be plain strings, not subclasses and nothing to be converted: `true` as a bool, a number or
    another string type would not be the same to a rule. They must be Unicode text, which a log can hold.
    """
    if not tags:
        return NO_TAGS
    if not isinstance(tags, Mapping):
        raise ValueError(f"tags: expected a mapping of strings, got {type(tags).__name__}")
    characters = 0
    for name, value in tags.items():
        if type(name) is not str:
            raise ValueError(f"tags: expected strings as names, got {type(name).__name__}")
        if type(value) is not str:
            raise ValueError(f"tag {name!r}: expected a string, got {type(value).__name__}")
        if not (is_unicode(name) and is_unicode(value)):
            raise ValueError(f"tag {name!r}: expected Unicode text, got {value!r}")
        characters += len(name) + len(value)
    if characters > MOST_CHARACTERS:
        raise ValueError(f"tags: expected at most {MOST_CHARACTERS} characters together, got {characters}")
    return lowered(tags)


Tags: TypeAlias = Annotated[dict[str, str], AfterValidator(lowered)]
"""Tags in a configuration file."""
