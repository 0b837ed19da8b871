"""The schema of `pipelines.yaml`: sources, steps, events and sinks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from upwell.pipelines.config.one_key_section import NAMES, Name, OneKeySection
from upwell.pipelines.config.sink_config import SinkSection
from upwell.pipelines.config.source_config import CaptureSection
from upwell.pipelines.config.zone_shapes import LineSection, Polygon, Zone, check_several
from upwell.pipelines.events.event_rules import EventRule
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.config.located_errors import Location, located
from upwell.shared.config.yaml import FilePart
from upwell.shared.config.yaml_tree import dotted
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.routing.request_tags import lowered
from upwell.shared.units import Seconds, Share, parse_seconds, seconds_as_written

_Label = Annotated[str, Field(min_length=1)]
_Labels: TypeAlias = tuple[_Label, ...]
_Condition = Annotated[str, Field(min_length=1)]  # checked later, together with the steps before it


class ChangeSection(FilePart):
    """Drops frames like the one before."""

    above: Share = Field(0.01, gt=0, description="The share of the picture that must have changed.")
    at_least: Seconds = Field(10.0, gt=0, description="One frame goes on at least this often.")
    ignore: Annotated[tuple[Polygon, ...], BeforeValidator(check_several)] = Field(
        (), description="Parts of the picture in which changes are ignored."
    )


class AgainSection(FilePart):
    """With `once`: when an object is asked about again."""

    better: Share | None = Field(None, gt=0, description="When the object's crop is better by this share.")
    older: Seconds | None = Field(None, gt=0, description="When the object's answer is older than this.")

    @model_validator(mode="after")
    def _some_reason(self) -> AgainSection:
        if self.better is None and self.older is None:
            raise ValueError("expected better, older or both")
        return self


class InferSection(FilePart):
    """Asks a model."""

    model: str = Field(min_length=1, description="The model, by its name in agent.yaml.")
    on: Literal["frame", "objects"] = Field(
        "frame", description="frame: detections become the frame's objects; objects: each object's crop is a row."
    )
    where: _Condition | None = Field(None, description="Objects: only those for which this CEL expression is true.")
    once: Literal["track"] | None = Field(None, description="track: one answer per track; needs a step `track` before.")
    again: AgainSection | None = None
    margin: Share = Field(0.1, description="For objects: margin of a crop around its box, as a share of the box.")
    min_size: int = Field(16, ge=1, le=4096, description="Objects: smaller ones, in pixels, are left out.")
    tags: Annotated[dict[_Label, str], AfterValidator(lowered)] = Field(
        {}, description="Tags of the request, for the policy's rules."
    )

    @model_validator(mode="after")
    def _for_objects(self) -> InferSection:
        found: dict[Location, str] = {}
        if self.on == "frame":
            keys = [key for key in ("where", "once", "again", "margin", "min_size") if key in self.model_fields_set]
            if keys:
                are = "is" if len(keys) == 1 else "are"
                found[(keys[0],)] = f"{', '.join(keys)} {are} for objects; expected `on: objects`"
        elif self.again is not None and self.once is None:
            found["again",] = "`again` needs `once: track`; without it every frame is sent"
        if found:
            raise located(found)
        return self


class TrackSection(FilePart):
    """Follows objects from frame to frame (ByteTrack)."""

    lost: Seconds = Field(1.0, gt=0, description="An object not seen for this long has left.")
    min_score: Share = Field(0.5, description="Minimum score of a box that begins a track.")
    weak_score: Share = Field(0.1, description="Minimum score of a box that continues one.")

    @model_validator(mode="after")
    def _in_order(self) -> TrackSection:
        if self.weak_score > self.min_score:
            text = f"weak_score is {self.weak_score:.0%} and min_score {self.min_score:.0%}; expected at most min_score"
            raise located({("weak_score",): text})
        return self


class KeepSection(FilePart):
    """Keeps the objects for which all of these hold."""

    labels: _Labels | None = Field(None, min_length=1, description="The object's label is one of these.")
    min_score: Share | None = Field(None, description="The object's score is at least this.")
    where: _Condition | None = Field(None, description="A CEL expression is true for the object.")

    @model_validator(mode="after")
    def _some_condition(self) -> KeepSection:
        if self.labels is None and self.min_score is None and self.where is None:
            raise ValueError("expected `labels`, `min_score` or `where`")
        return self


class BlurSection(FilePart):
    """Makes objects with these labels unrecognizable from here on, in uplink, sinks and preview."""

    labels: _Labels = Field(min_length=1, description="Objects with one of these labels.")


class StepSection(OneKeySection):
    """What happens to each frame, in this order; each step has one key."""

    WORD = "step"

    change: ChangeSection | None = None
    infer: InferSection | None = None
    track: TrackSection | None = None
    zones: Annotated[dict[Name, Zone], Field(min_length=1, json_schema_extra=NAMES)] | None = Field(
        None,
        description="By name, points `[x, y]` or `{line: [[x, y], [x, y]]}`, as fractions from the top left.",
    )
    keep: KeepSection | None = None
    blur: BlurSection | None = None


_FORMS: Mapping[str, tuple[str, ...]] = {
    "frame": (), "appear": (), "leave": (), "enter": ("ZONE",), "exit": ("ZONE",), "dwell": ("ZONE", "TIME"),
    "cross": ("LINE",), "every": ("TIME",),
}  # fmt: skip
"""The kinds of events and the arguments of each."""


@dataclass(frozen=True)
class EventTrigger:
    """When an event happens. `zone` is its zone or line, `after_s` the time of `dwell` and `every` in seconds."""

    kind: Literal["frame", "appear", "leave", "enter", "exit", "dwell", "cross", "every"]
    zone: str = ""
    after_s: float = 0.0

    def __str__(self) -> str:
        """The text form: `dwell door 10s`."""
        after = seconds_as_written(self.after_s) if self.after_s else ""
        return " ".join(filter(None, (self.kind, self.zone, after)))


def parse_trigger(value: object) -> EventTrigger:
    """Parse `appear`, `enter door`, `dwell door 10s`, `every 10s` and the like. Raises `ValueError`."""
    if not isinstance(value, str):
        raise ValueError("expected text such as appear, enter ZONE, dwell ZONE 10s, cross LINE or every 10s")
    kind, *rest = value.split() or [""]
    form = _FORMS.get(kind)
    if form is None:
        raise ValueError(f"unknown kind of event {kind[:40]!r}; expected one of {', '.join(_FORMS)}")
    if len(rest) != len(form):
        example = " ".join((kind, *form)).replace("TIME", "10s")
        raise ValueError(f"expected {example}, got {value[:60]!r}")
    zone, after_s = "", 0.0
    for word, text in zip(form, rest, strict=True):
        if word != "TIME":
            zone = text
            continue
        after_s = parse_seconds(text)
        if not 0 < after_s < math.inf:
            raise ValueError(f"expected a time of more than zero after {kind}, got {text}")
    return EventTrigger(kind, zone, after_s)  # type: ignore[arg-type]  # one of `_FORMS`


class EventSection(FilePart):
    """The events that sinks receive."""

    name: Name = Field(description="The event's name, in messages and topics.")
    on: Annotated[
        EventTrigger,
        PlainValidator(parse_trigger),
        WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(_FORMS)})\\b"}),
    ] = Field(
        description="`frame`, `appear`, `leave`, `enter ZONE`, `exit ZONE`, `dwell ZONE 10s`, `cross LINE` or "
        "`every 10s`."
    )
    where: _Condition | None = Field(None, description="A CEL expression that must also be true.")

    @property
    def rule(self) -> EventRule:
        """The rule as the event detector takes it."""
        on, where = self.on, self.where or ""
        if on.kind == "cross":
            return EventRule(self.name, on.kind, line=on.zone, where=where)
        if on.kind == "every":
            return EventRule(self.name, on.kind, every_s=on.after_s, where=where)
        return EventRule(self.name, on.kind, on.zone, dwell_s=on.after_s, where=where)


class PipelineSection(FilePart):
    """A pipeline, by its name."""

    source: CaptureSection
    steps: tuple[StepSection, ...] = ()
    events: tuple[EventSection, ...] = ()
    sinks: tuple[SinkSection, ...] = ()
    preview: bool = Field(False, description="A live picture on a page of the metrics address.")

    @property
    def zones(self) -> Zones:
        """The zones and lines of all its steps."""
        shapes = {name: shape for one in self.steps for name, shape in (one.zones or {}).items()}
        lines = {name: shape.line for name, shape in shapes.items() if isinstance(shape, LineSection)}
        return Zones({name: shape for name, shape in shapes.items() if not isinstance(shape, LineSection)}, lines)


class PipelinesConfig(FilePart):
    """A whole `pipelines.yaml`. `check_pipelines` checks that its parts fit together."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    pipelines: dict[Name, PipelineSection] = Field(min_length=1, json_schema_extra=NAMES)

    _context: dict[str, Any] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Remember where the values stand in the file, for problems that only show once the models are known."""
        self._context.update(context or {})

    def chosen(self, name: str | None) -> str:
        """The name of the pipeline given by `--pipeline`, or of the only one. Raises `ConfigError`."""
        known = ", ".join(self.pipelines)
        if name is None and len(self.pipelines) > 1:
            raise ConfigError.at(None, f"expected the name of one pipeline; the file has {known}", "--pipeline")
        if name is not None and name not in self.pipelines:
            raise ConfigError.at(None, f"there is no pipeline {name!r}; the file has {known}", "--pipeline")
        return name or next(iter(self.pipelines))

    def problems(self, found: Mapping[Location, str]) -> list[Problem]:
        """The problems found at some keys, in the order of the file, with line and column if the value came from a
        file.
        """
        problems = []
        tree = self._context.get("tree")
        for location, message in found.items():
            place = tree.find(location)[0] if tree is not None else None
            line, column = (place.line, place.column) if place is not None else (None, None)
            problems.append(Problem(self._context.get("path"), line, column, dotted(location), message))
        return sorted(problems, key=lambda one: (one.line or 0, one.column or 0))
