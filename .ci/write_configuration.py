"""Write docs/configuration.md, and the tables of docs/pipelines.md, from the models of the configuration files.

    python .ci/write_configuration.py [--check]

With `--check` nothing is written, and the exit code is 1 if a committed file differs from what the models give.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from upwell.cloud.config import CloudConfig
from upwell.edge.config import AgentConfig
from upwell.fleet.config import FleetConfig
from upwell.pipelines.config.pipelines_config import EventTrigger, PipelinesConfig
from upwell.pipelines.frame import Point
from upwell.shared.oip.auth.bearer_tokens import TokensConfig
from upwell.shared.routing.estimators.token_bucket import Refill
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_keys import Rate
from upwell.shared.units import DURATION_UNITS, ENERGY_UNITS, SIZE_UNITS, parse_bytes, parse_joules, parse_seconds

DOCS = Path(__file__).resolve().parent.parent / "docs"
CONFIGURATION, PIPELINES = DOCS / "configuration.md", DOCS / "pipelines.md"

START = "<!-- keys: written by .ci/write_configuration.py; do not edit -->\n"
END = "<!-- end of keys -->\n"
"""The end mark of the tables on a page with other text."""

INTRODUCTION = """\
# Configuration reference

<!-- Written by .ci/write_configuration.py from the models that read these files; do not edit. -->

Every key of the files that you write; [model.yaml](model-yaml.md) and [pipelines.yaml](pipelines.md) have their own
pages.

- Durations (`80ms`, `1.5s`, `2m`, `1h`) and sizes (`256KiB`, `5GB`; `KiB` is 1024 bytes, `kB` 1000) need a unit, except
  zero. A rate is per `s`, `min`, `h` or `day`, a budget also per `week` or `month`.
- A relative path is relative to the file that names it; `~` is the home folder.
- Every file may begin with `version: 1`. Unknown keys are errors. All errors of a file are shown at once, with line and
  column.
- Default `–`: not set. A type that is a link has keys of its own; `[]` stands for each item of a list.
"""

FILES: Mapping[str, tuple[type[BaseModel], str]] = {
    "agent.yaml": (AgentConfig, "Read by `upwell agent -c agent.yaml` and by `Agent.from_config`."),
    "policy.yaml": (
        Policy,
        "Named by `policy` in agent.yaml, and explained in [policy.md](policy.md).",
    ),
    "cloud.yaml": (
        CloudConfig,
        "Read by `upwell serve -c cloud.yaml`. What a model does not set, `engine` included, is as in `defaults`.",
    ),
    "fleet.yaml": (
        FleetConfig,
        "Read by `upwell fleet serve -c fleet.yaml`, and explained in [fleet.md](fleet.md).",
    ),
    "tokens.yaml": (
        TokensConfig,
        "Named by `tokens` in agent.yaml and cloud.yaml; read again when it changes. Make a token and its hash with "
        '`TOKEN=$(openssl rand -hex 32); printf %s "$TOKEN" | sha256sum`.',
    ),
}

PIPELINE_FILES: Mapping[str, tuple[type[BaseModel], str]] = {
    "pipelines.yaml": (
        PipelinesConfig,
        "Checked by `upwell pipeline check`. A step and a sink have one of the keys in their table.",
    )
}

_PLAIN = {
    EventTrigger: "text",
    Rate: "rate",
    Refill: "rate",
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    Path: "path",
}
_QUANTITIES: Mapping[Any, tuple[str, Mapping[str, Decimal]]] = {
    parse_seconds: ("duration", DURATION_UNITS),
    parse_bytes: ("size", {unit: size for unit, size in SIZE_UNITS.items() if unit == "B" or unit.endswith("iB")}),
    parse_joules: ("energy", ENERGY_UNITS),
}
_WORTH_NAMING = 4
"""So many keys shared with another table are not described again."""

_LIMITS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


@dataclass
class Section:
    """One table: the part of a file at `path`, empty for the whole file.

    `selector` is the key whose value selects one of several sections at the same place.
    """

    file: str
    path: str
    model: type[BaseModel]
    selector: str = ""

    @property
    def title(self) -> str:
        """The text of its heading."""
        return f"`{self.path}` in {self.file}" if self.path else self.file

    @property
    def anchor(self) -> str:
        """The link to its heading, as GitHub forms it."""
        return "#" + re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


@dataclass
class File:
    """The sections of one file, in the order of their first mention."""

    name: str
    sections: dict[type[BaseModel], Section] = field(default_factory=dict)
    """All sections so far, including those of files earlier on the page."""

    def link(self, model: type[BaseModel], path: str, selector: str = "") -> str:
        """A link to the table of `model`, which is created on its first mention."""
        section = self.sections.setdefault(model, Section(self.name, path, model, selector))
        there = f"[`{section.path}`]({section.anchor})"
        return there if section.path == path else f"as {there}"


def reference() -> str:
    """The whole of configuration.md."""
    return "\n".join((INTRODUCTION, *_sections(FILES, "##")))


def with_pipelines(page: str) -> str:
    """The text of pipelines.md with up-to-date tables. Raises `ValueError` if it has no place for them."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{PIPELINES.name} lacks the lines between which its tables stand")
    return "".join((before, START, "\n", "\n".join(_sections(PIPELINE_FILES, "###")), "\n", END, after))


def _sections(files: Mapping[str, tuple[type[BaseModel], str]], heading: str) -> Iterator[str]:
    """Each file, and each part of it, with its table; the name of a file is a heading of this level."""
    sections: dict[type[BaseModel], Section] = {}
    said: list[str] = []
    for name, (model, about) in files.items():
        file = File(name, sections)
        todo = [Section(name, "", model)]
        while todo:
            section = todo.pop(0)
            known = set(file.sections)
            title = f"{heading}{'#' if section.path else ''} {section.title}"
            note = _about(section.model) if section.path else about
            rows = list(_table(file, section))
            said += rows
            is_said = any(row.endswith(f"|{_escaped(note)}|") for row in said)
            yield "\n".join((title, "", *([] if is_said else [note, ""]), *rows, ""))
            todo = [file.sections[one] for one in file.sections if one not in known] + todo


def _table(file: File, section: Section) -> Iterator[str]:
    """The keys; those described in another table are only named."""
    common = _common(file, section)
    as_there = [] if common is None else _alike(section, common)
    if common is not None and as_there:
        names = ", ".join(f"`{name}`" for name in as_there)
        yield f"As in [{common.title}]({common.anchor}): {names}. Besides:"
        yield ""
    yield "|key|type|default|meaning|"
    yield "|---|---|---|---|"
    above = ""
    for name, info in section.model.model_fields.items():
        if name in as_there or (not section.path and name == "version"):  # described in the introduction
            continue
        key = info.alias or name
        path = f"{section.path}.{key}" if section.path else key
        kind = _kind(info.annotation, info.metadata, path, file)
        default = "selects these keys" if name == section.selector else _default(info)
        meaning = _escaped(info.description or _about(info.annotation))
        yield f"|`{key}`|{'as above' if kind == above and kind.count('`, `') > 1 else kind}|{default}|{meaning}|"
        above = kind


def _common(file: File, section: Section) -> Section | None:
    """The section with shared keys: for a model of the service `defaults`, otherwise the first earlier one with
    many.
    """
    earlier = itertools.takewhile(lambda one: one is not section, file.sections.values())
    if section.selector:
        return next((one for one in earlier if (one.file, one.path) == (section.file, "defaults")), None)
    return next((one for one in earlier if len(_alike(section, one)) >= _WORTH_NAMING), None)


def _alike(section: Section, other: Section) -> list[str]:
    """The keys that mean the same in both; a model of the service takes its defaults from `other`."""
    fields = other.model.model_fields
    own = section.model.model_fields
    return [name for name, info in own.items() if name in fields and _is_alike(info, fields[name], section.selector)]


def _is_alike(info: FieldInfo, other: FieldInfo, selector: str) -> bool:
    same = bool(selector) or (_default(info), info.annotation) == (_default(other), other.annotation)
    return same and info.description == other.description


def _about(annotation: Any) -> str:
    """The description of the section in an annotation; empty if there is none, or several."""
    models = list(_models_in(annotation))
    return " ".join((models[0].__doc__ or "").split()) if len(models) == 1 else ""


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models_in(one)


def _escaped(text: str) -> str:
    """Text as Markdown: an angle bracket outside code must not begin a tag."""
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(text.split("`")))


def _kind(annotation: Any, metadata: Sequence[Any], path: str, file: File) -> str:
    """The type of a value in words, with its limits."""
    quantity = _quantity(metadata)
    words = _words(annotation, path, file) if quantity is None else quantity[0]
    units = None if quantity is None else quantity[1]
    limits = [
        f"{sign}{_limit(getattr(one, key), units)}" for one in metadata for key, sign in _LIMITS if hasattr(one, key)
    ]
    if get_origin(annotation) in (list, tuple, dict) and any(hasattr(one, "min_length") for one in metadata):
        limits.append("not empty")
    return ", ".join((words, *limits))


def _limit(value: float, units: Mapping[str, Decimal] | None) -> str:
    return f"{value}" if units is None else _with_unit(value, units)


def _quantity(metadata: Sequence[Any]) -> tuple[str, Mapping[str, Decimal]] | None:
    """The quantity behind a value with a unit, and its possible units; None for everything else."""
    return next((_QUANTITIES[one.func] for one in metadata if getattr(one, "func", None) in _QUANTITIES), None)


def _words(annotation: Any, path: str, file: File) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        metadata = [one for extra in args[1:] for one in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        selector = next((one.discriminator for one in args[1:] if isinstance(one, FieldInfo)), None)
        if isinstance(selector, str):
            return ", ".join(_variant(one, path, selector, file) for one in get_args(args[0]))
        return _kind(args[0], metadata, path, file)
    if annotation == Point:
        return "point `[x, y]`"
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" if isinstance(value, bool) else f"`{value}`" for value in args)
    if origin in (Union, types.UnionType):
        return ", ".join(_words(one, path, file) for one in args if one is not types.NoneType)
    if origin in (list, tuple):
        return "list of " + _words(args[0], f"{path}[]", file)
    if origin is dict:
        return "mapping to " + _words(args[1], f"{path}.<name>", file).removeprefix("as ")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _inline(annotation, path, file) or file.link(annotation, path)
    return _PLAIN.get(annotation, "any value")


def _inline(model: type[BaseModel], path: str, file: File) -> str:
    """A section with one required key and no section of its own, as it is written; otherwise nothing."""
    (name, info), *others = model.model_fields.items()
    if others or not info.is_required() or any(_models_in(info.annotation)):
        return ""
    return f"`{{{name}: {_kind(info.annotation, info.metadata, path, file).replace('`', '')}}}`"


def _variant(model: type[BaseModel], path: str, selector: str, file: File) -> str:
    """A link to one of several sections, named after the value that chooses it."""
    value = get_args(model.model_fields[selector].annotation)[0]
    return file.link(model, f"{path} ({selector}: {value})", selector)


def _default(info: FieldInfo) -> str:
    """The default as it would be written."""
    value = info.get_default(call_default_factory=True, validated_data={})
    quantity = _quantity(info.metadata)
    if value is PydanticUndefined:
        return "**required**"
    if value is None or value in ({}, [], (), ""):
        return "–"
    if isinstance(value, BaseModel):
        return "as there"
    if quantity is not None:
        return f"`{_with_unit(value, quantity[1])}`"
    return f"`{json.dumps(value)}`" if isinstance(value, (bool, list, tuple)) else f"`{value}`"


def _with_unit(value: float, units: Mapping[str, Decimal]) -> str:
    """The quantity in the largest unit in which it is a whole number."""
    exact = Decimal(str(value))
    if exact == 0:
        return "0"
    unit = max((one for one, size in units.items() if exact % size == 0), key=lambda one: units[one])
    return f"{exact / units[unit]:.0f}{unit}"


def main() -> int:
    """Write the files, or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/configuration.md and the tables of docs/pipelines.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a file is stale")
    is_check = parser.parse_args().check
    found = {page: page.read_text(encoding="utf-8") if page.is_file() else "" for page in (CONFIGURATION, PIPELINES)}
    wanted = {CONFIGURATION: reference(), PIPELINES: with_pipelines(found[PIPELINES] or START + END)}
    stale = {page: text for page, text in wanted.items() if found[page] != text}
    for page, text in stale.items():
        if is_check:
            print(f"{page.name} is not what the models give; run python .ci/write_configuration.py", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
