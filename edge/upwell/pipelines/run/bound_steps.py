"""The steps of `pipelines.yaml` bound to an agent's models, each as a `Step` of the frame loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.config.pipelines_config import InferSection, KeepSection, PipelineSection, StepSection
from upwell.pipelines.events.event_rules import load_condition
from upwell.pipelines.frame import FoundObject, Scene
from upwell.pipelines.run.infer_step import FrameDropped, Inference, InferFrame, InferObjects, InferSettings, Step
from upwell.pipelines.steps.blur import blur
from upwell.pipelines.steps.change import ChangeDetector
from upwell.pipelines.steps.geometry import Zones, keep
from upwell.pipelines.steps.tracker import Tracker

if TYPE_CHECKING:
    from upwell.pipelines.events.where_condition import ObjectCondition

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoundSteps:
    """The steps of a pipeline, and what they share with its events. `detectors` are the models that find objects.

    `keeps` are the steps `keep` that come after a model asked about the frame.
    """

    steps: tuple[Step, ...]
    zones: Zones
    inferences: Mapping[str, Inference]
    asked_about_objects: Sequence[InferObjects]
    detectors: tuple[str, ...]
    keeps: Mapping[str, Sequence[Step]]

    @property
    def tags(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The tags with which each model is asked, for each step that asks it."""
        found: dict[str, list[Mapping[str, str]]] = {}
        for one in self.steps:
            if isinstance(one, (InferFrame, InferObjects)):
                found.setdefault(one.inference.settings.model, []).append(one.inference.tags)
        return found


def bind_steps(name: str, section: PipelineSection, agent: AgentCore) -> BoundSteps:
    """Bind the steps to the agent's models. Raises `ConfigError` for a model that the agent lacks or that does not
    fit.
    """
    zones = section.zones
    models = [one.infer.model for one in section.steps if one.infer is not None]
    series = section.source.series
    window = None if series is None else (series.size, len(series.fields))
    steps: list[Step] = []
    for one in section.steps:
        text = one.infer.where if one.infer is not None else one.keep.where if one.keep is not None else None
        condition = load_condition(text, models, zones.polygons, name)
        where = None if condition is None else Where(condition, f"pipeline {name}, step {one.kind}")
        if one.infer is not None:
            inference = Inference(agent, _infer_settings(one.infer), name, window)
            steps.append(InferFrame(inference) if one.infer.on == "frame" else InferObjects(inference, where, zones))
        else:
            steps.append(_bound(one, where, zones))
    infers = [one for one in steps if isinstance(one, (InferFrame, InferObjects))]
    return BoundSteps(
        tuple(steps),
        zones,
        {one.inference.settings.model: one.inference for one in infers},
        [one for one in infers if isinstance(one, InferObjects)],
        tuple(
            one.inference.settings.model
            for one in infers
            if isinstance(one, InferFrame) and one.inference.reader.finds_objects
        ),
        {
            one.inference.settings.model: [later for later in steps[number:] if isinstance(later, _Keep)]
            for number, one in enumerate(steps)
            if isinstance(one, InferFrame)
        },
    )


def _bound(section: StepSection, where: Where | None, zones: Zones) -> Step:
    """A step that asks no model."""
    if section.change is not None:
        return _Change(ChangeDetector(section.change.above, section.change.at_least, section.change.ignore))
    if section.track is not None:
        return _Track(Tracker(section.track.lost, section.track.min_score, section.track.weak_score))
    if section.keep is not None:
        return _Keep(section.keep, where)
    if section.blur is not None:
        return _Blur(frozenset(section.blur.labels))
    return _Locate(zones)


def _infer_settings(section: InferSection) -> InferSettings:
    again = section.again
    return InferSettings(
        section.model,
        section.once == "track",
        again.better if again is not None else None,
        again.older if again is not None else None,
        section.margin,
        section.min_size,
        section.tags,
    )


class Where:
    """A step's condition: false if it cannot be evaluated, for example without an answer that it needs."""

    def __init__(self, condition: ObjectCondition, step: str) -> None:
        self._condition = condition
        self._step = step
        self._has_failed = False

    def __call__(self, found: FoundObject, scene: Scene) -> bool:
        """Whether it is true of the object."""
        try:
            return self._condition.holds(found, scene)
        except ValueError as error:
            if not self._has_failed:
                text = "%s: the condition counts as false whenever it cannot be evaluated: %s"
                _log.warning(text, self._step, error)
            self._has_failed = True
            return False


@dataclass
class _Change:
    detector: ChangeDetector
    passed: int = 0
    """The number of the frame before if it was let through, else 0."""
    name: ClassVar[str] = "change"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002  as every step takes it
        if self.passed and scene.last_answered != self.passed:
            self.detector.forget()  # what it showed has not been told yet
        self.passed = 0
        if not self.detector.is_changed(scene.frame):
            raise FrameDropped("unchanged")
        self.passed = scene.frame.number
        return scene


@dataclass(frozen=True)
class _Track:
    tracker: Tracker
    name: ClassVar[str] = "track"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        tracked = self.tracker.update(scene.objects, scene.frame.at_s)
        known = {(one.label, one.box) for one in tracked}
        untracked = tuple(one for one in scene.objects if (one.label, one.box) not in known)
        return replace(scene, objects=tracked, untracked=untracked)


@dataclass(frozen=True)
class _Locate:
    zones: Zones
    name: ClassVar[str] = "zones"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        return replace(scene, objects=self.zones.locate(scene.objects))


@dataclass(frozen=True)
class _Keep:
    section: KeepSection
    where: Where | None
    name: ClassVar[str] = "keep"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        objects = keep(scene.objects, self.section.labels, self.section.min_score or 0.0)
        if self.where is not None:
            objects = tuple(found for found in objects if self.where(found, scene))
        return replace(scene, objects=objects)


@dataclass(frozen=True)
class _Blur:
    labels: frozenset[str]
    name: ClassVar[str] = "blur"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        boxes = [found.box for found in (*scene.objects, *scene.untracked) if found.label in self.labels]
        return replace(scene, pixels=blur(scene.pixels, boxes)) if boxes else scene
