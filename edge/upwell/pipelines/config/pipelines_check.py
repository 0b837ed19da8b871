"""Checks that the parts of a `pipelines.yaml` fit together. Steps are typed by what they need and what they provide.

A step takes a scene and returns a scene. What it needs from the scene is known before anything runs: boxes, tracks,
zones, labels, answers. `_Walk` visits the steps of a pipeline in order and tracks what is available after each one.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from upwell.pipelines.config.model_signatures import USUAL_FIELDS, SignatureFacts
from upwell.pipelines.config.pipelines_config import (
    BlurSection,
    EventSection,
    InferSection,
    KeepSection,
    PipelinesConfig,
    PipelineSection,
    StepSection,
)
from upwell.pipelines.config.sink_config import SinkSection, sink_settings
from upwell.pipelines.config.zone_shapes import LineSection
from upwell.pipelines.events.condition_names import ANSWERS, FRAME_FIELDS, OBJECT_FIELDS, names_in
from upwell.pipelines.events.event_rules import load_condition
from upwell.pipelines.sinks.sink_settings import SinkSettings
from upwell.pipelines.sources.windows import laid_out
from upwell.shared.config.located_errors import Location
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError, Problem

_NEEDS_TRACK = ("appear", "leave", "enter", "exit", "dwell", "cross")
_OF_FRAMES = ("frame", "every")
_NEEDS_ZONE = ("enter", "exit", "dwell")
_TIMES = ("age_s", "dwell_s")
"""Fields of an object that events may read and steps may not."""
_UNKNOWN = SignatureFacts(None, takes_picture=None)


@dataclass(frozen=True)
class PipelinesReview:
    """The result of a check: location -> text. With problems the pipelines cannot run."""

    problems: Mapping[Location, str]
    warnings: Mapping[Location, str]


def parse_pipelines(
    text: str,
    path: Path | None = None,
    models: Mapping[str, SignatureFacts] | None = None,
    *,
    with_files: bool = False,
) -> tuple[PipelinesConfig, list[Problem]]:
    """The parsed text of a `pipelines.yaml` read from `path`, checked by `check_pipelines`, and the warnings.

    `with_files`: this machine should have the files, folders and cameras that the pipelines read. Raises `ConfigError`
    with every problem.
    """
    config = parse_yaml(text, PipelinesConfig, path)
    reviews = [check_pipelines(config, models)]
    if with_files:
        reviews.append(_missing_files(config))
    problems = config.problems({place: why for review in reviews for place, why in review.problems.items()})
    if problems:
        raise ConfigError(problems)
    return config, config.problems({place: why for review in reviews for place, why in review.warnings.items()})


def check_pipelines(config: PipelinesConfig, models: Mapping[str, SignatureFacts] | None = None) -> PipelinesReview:
    """Check that steps, events, sinks and models fit together. `models` are those of the agent; None if unknown."""
    problems: dict[Location, str] = {}
    warnings: dict[Location, str] = {}
    for name, pipeline in config.pipelines.items():
        walk = _Walk(("pipelines", name), models)
        walk.go(pipeline)
        problems |= walk.problems
        warnings |= walk.warnings
    problems |= _shared_sources(config) | _shared_files(config) | _status_topics(config) | _repeated_sinks(config)
    return PipelinesReview(problems, warnings)


@dataclass
class _Walk:
    """What the scenes of one pipeline hold after the steps visited so far.

    `has_boxes` is None if unknown, and after the lack of boxes was reported; `boxless` says why there are none.
    `lacks_track`: the lack of a tracker was reported. `labels` are those that an object may have, `found` those of
    all detectors, None if unknown; `kept_by` is the last step that dropped some of them, and `thinned_by` the last
    that dropped some of any label. `is_misnamed`: a step names a model that the agent does not have, which may be the
    only reason why another's answers are missing. `window` is the number of points and fields of a frame of a series,
    None if frames are pictures. `zones` and `lines` map a name to the step that defines it; `on_frame` and
    `on_objects` are the models asked.
    """

    place: Location
    models: Mapping[str, SignatureFacts] | None
    problems: dict[Location, str] = field(default_factory=dict)
    warnings: dict[Location, str] = field(default_factory=dict)
    has_boxes: bool | None = False
    boxless: str = ""
    has_track: bool = False
    lacks_track: bool = False
    labels: set[str] | None = field(default_factory=set)
    found: set[str] | None = field(default_factory=set)
    kept_by: int = 0
    thinned_by: int = 0
    is_misnamed: bool = False
    zones: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    on_frame: dict[str, SignatureFacts] = field(default_factory=dict)
    on_objects: dict[str, SignatureFacts] = field(default_factory=dict)
    clear: dict[Location, str] = field(default_factory=dict)
    window: tuple[int, int] | None = None

    def go(self, pipeline: PipelineSection) -> None:
        """Visit the whole pipeline."""
        if pipeline.source.series is not None:
            self.window = pipeline.source.series.size, len(pipeline.source.series.fields)
            self.boxless = "a series has no pictures"
            self._without_pictures(pipeline)
        for number, step in enumerate(pipeline.steps, 1):
            self._step(number, step)
        named: dict[str, int] = {}
        for index, event in enumerate(pipeline.events):
            location = (*self.place, "events", index)
            if event.name in named:
                self._refuse(
                    (*location, "name"),
                    f"event {named[event.name] + 1} is also called {event.name!r}; expected different names",
                )
            named.setdefault(event.name, index)
            self._event(location, event)
        if pipeline.sinks and not pipeline.events:
            self.warnings |= {(*self.place, "sinks"): "there are no events, so these sinks receive nothing"}
        if pipeline.events and not pipeline.sinks:
            self.warnings |= {(*self.place, "events"): "there are no sinks, so these events go nowhere"}

    def _without_pictures(self, pipeline: PipelineSection) -> None:
        """Refuse whatever shows or needs a picture if frames are windows of numbers."""
        for index, step in enumerate(pipeline.steps):
            if step.infer is None:
                self._refuse((*self.place, "steps", index, step.kind), _no_picture(step.kind, "infer"))
            elif step.infer.on == "objects":
                self._refuse((*self.place, "steps", index, "infer", "on"), _no_picture("on: objects", "on: frame"))
        for index, event in enumerate(pipeline.events):
            if event.on.kind not in _OF_FRAMES:
                self._refuse((*self.place, "events", index, "on"), _no_picture(event.on.kind, " and ".join(_OF_FRAMES)))
        for index, sink in enumerate(pipeline.sinks):
            if sink.pictures is not None:
                self._refuse((*self.place, "sinks", index, "pictures"), _no_picture("pictures", "another sink"))
        if pipeline.preview:
            self._refuse((*self.place, "preview"), _no_picture("preview", "false"))
        # Every problem about objects has been reported.
        self.has_track, self.has_boxes = True, None

    def _refuse(self, location: Location, text: str) -> None:
        """Report one problem per place: the first is the cause of the others."""
        self.problems.setdefault(location, text)

    def _step(self, number: int, step: StepSection) -> None:
        location = (*self.place, "steps", number - 1, step.kind)
        if self.window is not None and step.infer is None:
            return  # already reported
        if step.infer is not None:
            self._infer(location, step.infer)
        elif step.track is not None:
            self._track(location)
        elif step.zones is not None:
            self._zones(location, number, step.zones)
        elif step.keep is not None:
            self._keep(location, number, step.keep)
        elif step.blur is not None:
            self._blur(location, number, step.blur)

    def _infer(self, location: Location, step: InferSection) -> None:
        facts = self._facts((*location, "model"), step.model)
        if step.model in (*OBJECT_FIELDS, *FRAME_FIELDS, ANSWERS):
            text = f"in `where`, {step.model} is not a model; rename the model in agent.yaml"
            self._refuse((*location, "model"), text)
        if self.window is not None:
            self._windows((*location, "model"), step.model, facts)
            self.on_frame[step.model] = facts
            return
        if facts.takes_picture is False:
            self._refuse(
                (*location, "model"),
                f"model {step.model!r} takes tensors, and a pipeline gives it a picture; expected a model.yaml in "
                "which its one input is of kind image",
            )
            facts = _UNKNOWN
        if facts.has_cloud:
            what = "whole frames" if step.on == "frame" else "crops"
            text = f"{what} sent to the cloud for {step.model!r} are not blurred yet"
            self.clear |= {(*location, "model"): text}
        if step.on == "objects":
            self._crops(location, step)
            self.on_objects[step.model] = facts
            return
        self.on_frame[step.model] = facts
        if facts.output_kind == "detections" or facts.output_kind is None:
            self._detections(facts)
        elif self.has_boxes is False:
            self.boxless = f"model {step.model!r} gives {facts.output_kind} and no boxes"

    def _windows(self, location: Location, model: str, facts: SignatureFacts) -> None:
        """Refuse a model that does not take the windows."""
        if facts.takes_picture:
            text = f"model {model!r} takes a picture, but a series has none; expected one that takes a tensor"
            self._refuse(location, text)
        elif facts.tensor is not None and self.window is not None:
            try:
                laid_out(np.broadcast_to(np.zeros((), np.uint8), self.window), facts.tensor)
            except ValueError as error:
                self._refuse(location, f"model {model!r} {error}")

    def _facts(self, location: Location, name: str) -> SignatureFacts:
        if self.models is None:
            return _UNKNOWN
        if name not in self.models:
            self._refuse(location, f"agent.yaml has no model {name!r}; {_alike(name, self.models)}")
            self.is_misnamed = True
        return self.models.get(name, _UNKNOWN)

    def _detections(self, facts: SignatureFacts) -> None:
        is_sure = facts.output_kind == "detections"
        self.has_boxes = True if is_sure or self.has_boxes else None
        labels = facts.labels if is_sure else None
        self.labels = None if labels is None or self.labels is None else {*self.labels, *labels}
        self.found = None if labels is None or self.found is None else {*self.found, *labels}

    def _crops(self, location: Location, step: InferSection) -> None:
        if not self._boxes((*location, "on"), "on: objects"):
            return
        if step.once is not None:
            self._tracks((*location, "once"), "`once: track` needs an earlier `track` step")
        if step.where is not None:
            self._condition((*location, "where"), step.where, has_times=False)

    def _boxes(self, location: Location, what: str) -> bool:
        """Whether there may be objects; if there cannot be any, report it."""
        if self.has_boxes is not False:
            return True
        why = self.boxless or "no earlier step finds any"
        self._refuse(location, f"{what} needs objects, but {why}; expected an earlier `infer` with a detector")
        # Reported once: everything after it lacks the same.
        self.has_boxes, self.labels, self.found = None, None, None
        return False

    def _tracks(self, location: Location, text: str) -> None:
        """Refuse what needs tracked objects if there is no tracker, once."""
        if not self.has_track and not self.lacks_track:
            self._refuse(location, text)
            self.lacks_track = True

    def _track(self, location: Location) -> None:
        self._boxes(location, "track")
        if self.has_track:
            self._refuse(location, "an earlier `track` step already tracks the objects; expected only one")
        self.has_track = True

    def _zones(self, location: Location, number: int, zones: Mapping[str, object]) -> None:
        self._boxes(location, "zones")
        for name, zone in zones.items():
            first = self.zones.get(name) or self.lines.get(name)
            if first is not None:
                self._refuse((*location, name), f"{name!r} is already defined in step {first}; expected another name")
            else:
                (self.lines if isinstance(zone, LineSection) else self.zones)[name] = number

    def _keep(self, location: Location, number: int, step: KeepSection) -> None:
        if not self._boxes(location, "keep"):
            return
        if step.where is not None:
            self._condition((*location, "where"), step.where, has_times=False)
        if step.min_score or step.where is not None:
            self.thinned_by = number
        if step.labels is None:
            return
        are_known = self._known_labels((*location, "labels"), step.labels)
        self.labels, self.kept_by = (set(step.labels) if are_known else None), number

    def _blur(self, location: Location, number: int, step: BlurSection) -> None:
        if not self._boxes(location, "blur"):
            return
        self._known_labels((*location, "labels"), step.labels)
        if self.thinned_by:
            doubt = f"what `keep` in step {self.thinned_by} drops by its score or `where` stays visible; blur before it"
            self.warnings |= {location: doubt}
        self.warnings |= {one: f"{text}; step {number} blurs" for one, text in self.clear.items()}
        self.clear = {}

    def _known_labels(self, location: Location, labels: Iterable[str]) -> bool:
        """Report each label that no object can have."""
        unknown = [(at, one) for at, one in enumerate(labels) if self.labels is not None and one not in self.labels]
        for index, label in unknown:
            self._refuse((*location, index), self._no_label(label))
        return not unknown

    def _no_label(self, label: str) -> str:
        if self.kept_by and (self.found is None or label in self.found):
            return f"`keep` in step {self.kept_by} drops objects with the label {label!r}"
        return f"no object has the label {label!r}; {_alike(label, self.labels or ())}"

    def _condition(self, location: Location, text: str, *, has_times: bool) -> None:
        """Report a condition that can never be evaluated: it lacks objects, answers, times or labels."""
        names = names_in(text)
        for root, name in sorted(names.fields | names.answers):
            self._mentioned(location, root, name, has_times)
        if any(root == "object" for root, _ in names.fields | names.answers):
            self._boxes(location, "object")
        models = {*self.on_frame, *self.on_objects}
        if self.is_misnamed:  # it may be the one that is meant
            models |= {name for _, name in names.fields | names.answers}
        try:
            load_condition(text, models - {*OBJECT_FIELDS, *FRAME_FIELDS, ANSWERS}, self.zones)
        except ValueError as error:
            self._refuse(location, str(error))
        for root, model, label in sorted(names.labels):
            self._compared(location, root, model, label)
        for root, model, field_, inner in sorted(names.reads):
            self._answered(location, (root, model, field_), inner)

    def _mentioned(self, location: Location, root: str, name: str, has_times: bool) -> None:
        """Refuse a field that does not exist or would never have a value."""
        if root == "object" and name in _TIMES and not has_times:
            self._refuse(location, f"object.{name} is only known to events; leave it out of the `where` of a step")
        elif root == "object" and name in ("track", *_TIMES):
            self._tracks(location, f"object.{name} needs an earlier `track` step")
        elif not self.is_misnamed:
            asked = self.on_objects if root == "object" else self.on_frame
            plain = (
                [one for one in OBJECT_FIELDS if has_times or one not in _TIMES] if root == "object" else FRAME_FIELDS
            )
            if name not in plain and name not in asked:
                what = "objects" if root == "object" else "the frame"
                alike = _alike(name, (*plain, *asked))
                self._refuse(location, f"{root}.{name}: no earlier step asks model {name!r} about {what}; {alike}")

    def _compared(self, location: Location, root: str, model: str, label: str) -> None:
        """Refuse a comparison with a label that does not exist: it would always have the same result."""
        if not model:
            if root == "object" and self.labels is not None and label not in self.labels:
                self._refuse(location, self._no_label(label))
            return
        asked = self.on_objects if root == "object" else self.on_frame
        facts = asked.get(model, _UNKNOWN)
        known = None if facts.output_kind == "detections" else facts.labels
        if known is not None and label not in known:
            self._refuse(location, f"model {model!r} has no label {label!r}; {_alike(label, known)}")

    def _answered(self, location: Location, read: tuple[str, str, str], inner: str) -> None:
        """Refuse a field that no answer of the model has: `object` or `frame`, the model, the field."""
        root, model, name = read
        fields = (self.on_objects if root == "object" else self.on_frame).get(model, _UNKNOWN).fields
        if fields is None:  # an output may be called anything, but then has fields of its own
            alike = difflib.get_close_matches(name, USUAL_FIELDS, n=1, cutoff=0.75)
            if alike and name not in USUAL_FIELDS and not inner:
                doubt = f"the answers of model {model!r} are not known here; did you mean {alike[0]!r}?"
                self.warnings |= {location: f"{'.'.join(read)}: {doubt}"}
            return
        if root == "frame":  # the first boxes became objects of the frame
            boxes = next((one for one, within in fields.items() if "objects" in (one, *within)), "")
            fields = {one: within for one, within in fields.items() if one != boxes}
        if name not in fields:
            text = f"{'.'.join(read)}: answers of model {model!r} have no field {name!r}; {_alike(name, fields)}"
            self._refuse(location, text)
        elif inner and fields[name] and inner not in fields[name]:
            text = f"{'.'.join(read)}.{inner}: output {name!r} has no field {inner!r}; {_alike(inner, fields[name])}"
            self._refuse(location, text)

    def _event(self, location: Location, event: EventSection) -> None:
        trigger = event.on
        if event.where is not None:
            self._condition((*location, "where"), event.where, has_times=True)
        place = (*location, "on")
        if trigger.kind in _NEEDS_TRACK:
            self._tracks(place, f"`{trigger.kind}` needs tracked objects; expected a `track` step")
        if not trigger.zone:
            return
        kinds = (self.zones, self.lines) if trigger.kind in _NEEDS_ZONE else (self.lines, self.zones)
        names = ("zone", "line") if trigger.kind in _NEEDS_ZONE else ("line", "zone")
        if trigger.zone in kinds[1]:
            self._refuse(place, f"{trigger.zone!r} is a {names[1]}; `{trigger.kind}` needs a {names[0]}")
        elif trigger.zone not in kinds[0]:
            self._refuse(place, f"no step defines a {names[0]} {trigger.zone!r}; {_alike(trigger.zone, kinds[0])}")


def _no_picture(what: str, instead: str) -> str:
    return f"`{what}` needs pictures, but a series gives windows of numbers; expected {instead}"


def _alike(name: str, known: Collection[str]) -> str:
    """A similar name that may have been meant, or else the known ones."""
    alike = difflib.get_close_matches(name, known, n=1)
    if alike:
        return f"did you mean {alike[0]!r}?"
    shown = sorted(set(known))
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return f"expected one of {', '.join(shown[:10])}{more}" if shown else "available: none"


def _missing_files(config: PipelinesConfig) -> PipelinesReview:
    """Report files, folders and cameras that this machine does not have, with the most similar name beside them.

    A camera and a watched folder may come later: these are warnings.
    """
    problems: dict[Location, str] = {}
    warnings: dict[Location, str] = {}
    for name, pipeline in config.pipelines.items():
        source = pipeline.source
        what = {"folder": "folder", "camera": "device"}.get(source.kind, "file")
        may_come = what == "device" or (what == "folder" and source.watch)
        for key, path in source.local.items():
            place: Location = ("pipelines", name, "source", *key)
            if why := _absent(path, what):
                (warnings if may_come else problems)[place] = why
        for keys, path in _secret_files(pipeline):
            place = ("pipelines", name, *keys)
            if why := _absent(path, "file"):
                problems[place] = why
    return PipelinesReview(problems, warnings)


def _secret_files(pipeline: PipelineSection) -> Iterator[tuple[Location, Path]]:
    """The files with secrets and certificates that its brokers and sinks read, by their keys."""
    source = pipeline.source
    sections: dict[Location, object] = {
        ("source", "mqtt"): source.mqtt,
        ("source", "series", "mqtt"): source.series and source.series.mqtt,
        **{("sinks", index, sink.kind): getattr(sink, sink.kind) for index, sink in enumerate(pipeline.sinks)},
    }
    for place, section in sections.items():
        for key in ("ca", "cert", "key", "password_file", "secret_file"):
            if isinstance(path := getattr(section, key, None), Path):
                yield (*place, key), path


def _absent(path: Path, what: str) -> str:
    """Why there is no such file, folder or device; "" if there is one, or if this user may not look."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except PermissionError:  # the agent has a user of its own, who may
        return ""
    except OSError:
        pass
    else:
        return "" if is_folder == (what == "folder") else f"{path} is not a {what}"
    part = path
    while not os.path.exists(part.parent):
        part, what = part.parent, "folder"
    names: list[str] = []
    with suppress(OSError):  # this user may not read them
        names = [one for one in os.listdir(part.parent) if one != part.name]  # that is a link to nothing
    alike = difflib.get_close_matches(part.name, names, n=1)
    return f"there is no {what} {part}" + (f"; did you mean {alike[0]!r}?" if alike else "")


def _shared_sources(config: PipelinesConfig) -> dict[Location, str]:
    """Report cameras and folders that two pipelines read: each would get only a part of the frames."""
    problems: dict[Location, str] = {}
    opened: dict[str | Path, str] = {}
    for name, pipeline in config.pipelines.items():
        source = pipeline.source
        place = source.camera or (source.folder if source.done == "move" else None)
        if place is None:
            continue
        if place in opened:
            why = (
                "only one pipeline can open a camera"
                if source.camera
                else "each picture would be moved by only one of them"
            )
            problems["pipelines", name, "source", source.kind] = f"{opened[place]!r} also reads {place}, but {why}"
        opened.setdefault(place, name)
    return problems


def _shared_files(config: PipelinesConfig) -> dict[Location, str]:
    """Report sinks that would write to each other's files or to a file or folder that a source reads."""
    problems: dict[Location, str] = {}
    written: dict[Path, str] = {}
    read = {place: name for name, one in config.pipelines.items() for place in one.source.local.values()}
    for name, pipeline in config.pipelines.items():
        for index, sink in enumerate(pipeline.sinks):
            location: Location = ("pipelines", name, "sinks", index, sink.kind)
            for path in _paths_of(sink):
                if path in written:
                    problems.setdefault(location, f"{written[path]} also writes to {path}; expected a separate path")
                elif path in read:
                    as_new = " and would treat these pictures as new" if sink.pictures else "; expected a separate path"
                    problems[location] = f"the source of {read[path]!r} reads {path}{as_new}"
                written.setdefault(path, f"sink {index + 1} of {name!r}")
    return problems


def _paths_of(sink: SinkSection) -> tuple[Path, ...]:
    """The files and the folder that the sink writes."""
    if sink.jsonl is not None:
        return sink.jsonl.path, Path(f"{sink.jsonl.path}.1")
    return () if sink.pictures is None else (sink.pictures.folder,)


def _status_topics(config: PipelinesConfig) -> dict[Location, str]:
    """Report events that would be published where an MQTT sink says whether it is online."""
    mqtt = [
        (name, index, sink.mqtt.address, sink.mqtt.settings)
        for name, pipeline in config.pipelines.items()
        for index, sink in enumerate(pipeline.sinks)
        if sink.mqtt is not None
    ]
    statuses = {(address, settings.status_topic) for _, _, address, settings in mqtt}
    return {
        ("pipelines", name, "sinks", index, "mqtt", "topic"): f"the event {event.name!r} would go to {topic}, where a "
        "sink says whether it is online; expected another name or topic"
        for name, index, address, settings in mqtt
        for event in config.pipelines[name].events
        if (address, topic := settings.topic_of(name, event.name)) in statuses
    }


def _repeated_sinks(config: PipelinesConfig) -> dict[Location, str]:
    """Report sinks whose progress would be stored under one name: twice in a pipeline, or with different settings."""
    problems: dict[Location, str] = {}
    known: dict[object, tuple[str, int, SinkSettings]] = {}
    for name, pipeline in config.pipelines.items():
        for index, sink in enumerate(pipeline.sinks):
            place = _where_to(sink)
            if place is None:
                continue
            settings = sink_settings(sink)
            other, number, former = known.setdefault(place, (name, index + 1, settings))
            if (other, number) == (name, index + 1):
                continue
            location: Location = ("pipelines", name, "sinks", index, sink.kind)
            if other == name:
                problems[location] = f"sink {number} sends there, too; expected one of them"
            elif former != settings:
                problems[location] = f"sink {number} of {other!r} sends there with other settings; expected the same"
    return problems


def _where_to(sink: SinkSection) -> object:
    """What names the sink; None for a file or folder, and for one that names itself."""
    if sink.mqtt is not None:
        return sink.mqtt.address, sink.mqtt.topic
    if sink.kafka is not None:
        return sink.kafka.brokers, sink.kafka.topic
    return sink.webhook.url if sink.webhook is not None else None
