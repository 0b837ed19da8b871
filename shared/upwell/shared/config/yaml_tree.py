"""YAML 1.2 text -> plain values, each with its line and column.

The tree is built from parser events rather than by a YAML constructor: no tag can create an object, nesting and alias
expansion are bounded while reading, keys are always text, and every value keeps its position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from upwell.shared.errors import ConfigError, Problem
from upwell.shared.value_classes import value_class

MAX_DEPTH = 50
"""Maximum nesting depth of a file."""
MAX_NODES = 100_000
"""Maximum number of values in a file after expanding aliases."""

_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
# Longer numbers stay text: converting thousands of digits to an int takes quadratic time.
_INT = r"[-+]?[0-9]{1,40}"
_OCTAL_OR_HEX = r"0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}"
_FLOAT = r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,3})?"


@value_class
class Tree:
    """A value, its position (from 1), its parts, and the position of each key of a mapping."""

    value: Any
    line: int
    column: int
    parts: dict[str | int, Tree] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    size: int = 1

    def find(self, keys: Iterable[str | int]) -> tuple[Tree, bool]:
        """The value under `keys` and True, or the last one on the way to it and False."""
        tree = self
        for key in keys:
            if key not in tree.parts:
                return tree, False
            tree = tree.parts[key]
        return tree, True


def read_tree(text: str, path: Path | None) -> Tree:
    """Parse the single document in `text`. Raises `ConfigError` for bad syntax with its line and column, duplicate
    keys, tags, merge keys, a tree that is too deep or too large after expanding aliases, empty text, or several
    documents."""
    builder = _Builder(path)
    try:
        tree = builder.document(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, path)]) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError.at(path, f"character {error.character!r} is not allowed in YAML", line=line) from None
    except YAMLError as error:
        raise ConfigError.at(path, f"not valid YAML: {' '.join(str(error).split())}") from None
    if builder.problems:
        raise ConfigError(builder.problems)
    return tree


def _syntax_problem(error: MarkedYAMLError, path: Path | None) -> Problem:
    mark = error.problem_mark or error.context_mark
    message = ", ".join(str(part) for part in (error.problem, error.context) if part)
    if r"'\t'" in message:
        message += "; indent with spaces"
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return Problem(path, line, column, "", f"not valid YAML: {message}")


class _Builder:
    """Builds the tree of one document; collects the problems that do not stop the parsing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._anchors: dict[str, Tree] = {}
        self._nodes = 0
        self.problems: list[Problem] = []

    def document(self, events: Iterator[Any]) -> Tree:
        """The tree of the first document; a missing or a second document is an error."""
        tree: Tree | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if tree is not None:
                    raise self._error(event, "a second document starts here; one file holds one document")
                if event.version not in (None, (1, 2)):
                    raise self._error(event, "files are read as YAML 1.2; remove the %YAML line")
            elif isinstance(event, NodeEvent):
                tree = self._node(event, events, ())
        if tree is None or tree.value is None:
            raise ConfigError.at(self._path, "the file is empty; expected keys and values")
        return tree

    def _node(self, event: Any, events: Iterator[Any], keys: tuple[str | int, ...]) -> Tree:
        if len(keys) > MAX_DEPTH:
            raise self._error(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, AliasEvent):
            return self._count(self._alias(event), event)
        if event.tag is not None:
            self._problem(event, f"the tag {event.tag!r} is not allowed; write the plain value", keys)
        if isinstance(event, ScalarEvent):
            plain = event.implicit[0]
            tree = Tree(_plain_value(event.value) if plain else event.value, *_place(event))
        elif isinstance(event, SequenceStartEvent):
            tree = self._sequence(event, events, keys)
        else:
            tree = self._mapping(event, events, keys)
        if event.anchor is not None:
            self._anchors[event.anchor] = tree
        return self._count(tree, event) if not tree.parts else tree

    def _sequence(self, start: SequenceStartEvent, events: Iterator[Any], above: tuple[str | int, ...]) -> Tree:
        parts: dict[str | int, Tree] = {}
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            parts[len(parts)] = self._node(event, events, (*above, len(parts)))
        values = [part.value for part in parts.values()]
        return Tree(values, *_place(start), parts, size=_size(parts))

    def _mapping(self, start: MappingStartEvent, events: Iterator[Any], above: tuple[str | int, ...]) -> Tree:
        parts: dict[str | int, Tree] = {}
        keys: dict[str, tuple[int, int]] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key = self._key(event)
            part = self._node(next(events), events, (*above, key))
            if key in keys:
                self._problem(event, f"the key is repeated; first in line {keys[key][0]}", (*above, key))
            else:
                keys[key], parts[key] = _place(event), part
        values = {key: part.value for key, part in parts.items()}
        return Tree(values, *_place(start), parts, keys, _size(parts))

    def _key(self, event: Any) -> str:
        """A key as text: `1: x` and `on: x` have the keys "1" and "on"."""
        if not isinstance(event, ScalarEvent):
            raise self._error(event, "a key must be plain text")
        if event.value == "<<" and event.implicit[0]:
            self._problem(event, "merge keys ('<<') are not part of YAML 1.2; write out the keys")
        if event.tag is not None:
            self._problem(event, f"the tag {event.tag!r} is not allowed; write the plain key")
        return str(event.value)

    def _alias(self, event: AliasEvent) -> Tree:
        target = self._anchors.get(event.anchor)
        if target is None:  # includes an alias inside its own anchor, which would never end
            raise self._error(event, f"the alias *{event.anchor} refers to no earlier complete anchor")
        return target

    def _count(self, tree: Tree, event: Any) -> Tree:
        self._nodes += tree.size
        if self._nodes > MAX_NODES:
            raise self._error(event, f"the file has more than {MAX_NODES} values after expanding aliases")
        return tree

    def _problem(self, event: Any, message: str, keys: tuple[str | int, ...] = ()) -> None:
        self.problems.append(Problem(self._path, *_place(event), dotted(keys), message))

    def _error(self, event: Any, message: str) -> ConfigError:
        """The error that stops parsing, together with the problems found before it."""
        return ConfigError([*self.problems, Problem(self._path, *_place(event), "", message)])


def dotted(keys: Iterable[str | int]) -> str:
    """The path to a value as text, such as `rules[2].match`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def _size(parts: dict[str | int, Tree]) -> int:
    return 1 + sum(part.size for part in parts.values())


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _plain_value(text: str) -> Any:
    """The value of an unquoted scalar under the YAML 1.2 core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if re.fullmatch(_INT, text):
        return int(text)
    if re.fullmatch(_OCTAL_OR_HEX, text):
        return int(text, 0)
    if re.fullmatch(_FLOAT, text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text
