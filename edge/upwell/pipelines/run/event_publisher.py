"""Writes the events of a frame into the outbox, and says for which late answers of the cloud they wait."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from upwell.edge.policy.router_service import RouterService
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.events.event_rules import Event, FiredEvent
from upwell.pipelines.frame import NO_PIXELS, FoundObject, Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame
from upwell.pipelines.run.annotated_picture import annotated, jpeg
from upwell.pipelines.run.infer_step import AnswerReader, Step, object_tags
from upwell.pipelines.run.late_answers import Amendments, Expected, WaitingEvent
from upwell.pipelines.sinks.base import REQUESTS_TAG, JudgedRequest, Message, requests_behind
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.errors import ModelFailed
from upwell.shared.routing.decide.router_state import Signals
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array


@dataclass(frozen=True)
class PublishedAs:
    """How the events of one pipeline are written.

    `model` is the first one asked, empty without any. Its rules hold for everything that leaves the device, those of
    another model for what that model answered. `detectors` are the models whose boxes are objects of the frame: nobody
    knows which of them found an object, so the rules of all hold for it. `tags` are those of the requests, by model:
    of a model that several steps ask, those of each, for the same reason. `readers` read the answers of the models that
    were asked about objects or frames. `keeps` are the steps that drop objects of a model: amendments do not tell of
    these either.
    """

    pipeline: str
    model: str = ""
    tags: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    has_pictures: bool = False
    zones: Zones | None = None
    readers: Mapping[str, AnswerReader] = field(default_factory=dict)
    detectors: tuple[str, ...] = ()
    keeps: Mapping[str, Sequence[Step]] = field(default_factory=dict)


class Publisher:
    """Writes the events of one pipeline into the outbox. `late` remembers those that the cloud is still to answer.

    `note` gets each amendment once it is durable.
    """

    def __init__(
        self,
        published_as: PublishedAs,
        outbox: Outbox,
        late: Amendments,
        on_amended: Callable[[str, int, str, Mapping[str, Any]], None],
        note: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._note = note
        self._as = published_as
        self._outbox = outbox
        self._late = late
        self._on_amended = on_amended
        self._in_order = threading.Lock()
        """Late answers come on another thread; the lower sequence must be written first."""

    def publish(self, answered: AnsweredFrame) -> Sequence[Event]:
        """Put the events of the frame into the outbox and return them; none if they cannot be stored."""
        if not answered.fired:
            return ()
        scene = answered.scene
        picture = jpeg(annotated(scene, self._as.zones)) if self._as.has_pictures else b""
        with self._in_order:
            events = [self._event(fired, answered) for fired in answered.fired]
            expected = [one for event in events for one in _expected(event, scene)]
            are_kept = False
            try:
                found = [self._amendment(*one) for one in self._late.expect(expected)]
                amendments = [one for one in found if one is not None]
                messages = [self._message(event, picture) for event in events]
                are_kept = self._outbox.put([*messages, *map(self._message, amendments)])
            finally:
                self._late.settle(expected, are_kept=are_kept)
        for amendment in amendments if are_kept else ():
            self._note(amendment)
        return events if are_kept else ()

    def _event(self, fired: FiredEvent, answered: AnsweredFrame) -> Event:
        scene, frame = answered.scene, answered.scene.frame
        return Event(
            uuid.uuid4().hex, self._as.pipeline, fired.event, self._outbox.next_sequence(self._as.pipeline),
            frame.captured_unix_s, answered.latency_s * 1e3, fired.objects, scene.route, scene.reason, scene.degraded,
            direction=fired.direction, answers=scene.answers, file=frame.path.name if frame.path else "",
            media_s=frame.media_s,
        )  # fmt: skip

    def _message(self, event: Event, picture: bytes = b"") -> Message:
        requests = self._requests(event)
        tags = {REQUESTS_TAG: json.dumps(requests)} if requests else {}
        return Message(
            event.id, event.pipeline, event.event, event.sequence, event.as_json().encode(), picture, self._as.model,
            tags,
        )  # fmt: skip

    def _requests(self, event: Event) -> Sequence[JudgedRequest]:
        """The requests behind the event, each on its own: merged they would describe a request that was never made."""
        if not self._as.model:
            return []
        found: list[JudgedRequest] = [
            (model, {**tags, **dict(object_tags(one, self._as.zones))})
            for one in event.objects
            for model in dict.fromkeys((self._as.model, *self._as.detectors, *one.answers))
            for tags in self._tags(model)
        ]
        found += [
            (model, tags)
            for model in event.answers
            if not event.objects or model not in self._as.detectors  # boxes: judged as objects
            for tags in self._tags(model)
        ]
        found = found or [(self._as.model, tags) for tags in self._tags(self._as.model)]
        return [one for index, one in enumerate(found) if one not in found[:index]]

    def _tags(self, model: str) -> Sequence[Mapping[str, str]]:
        return self._as.tags.get(model) or [{}]

    def amend(self, waiting: WaitingEvent, result: SpoolResult) -> bool:
        """Put an amendment of the event with the cloud's answer into the outbox; False if it cannot be stored."""
        with self._in_order:
            amendment = self._amendment(waiting, result)
            if amendment is None:
                return True
            if not self._outbox.put([self._message(amendment)]):
                return False
        self._note(amendment)
        return True

    def _amendment(self, waiting: WaitingEvent, result: SpoolResult) -> Event | None:
        """The amendment; None if the model is no longer asked, or if the answer does not fit its outputs."""
        reader = self._as.readers.get(waiting.model)
        if reader is None:
            return None
        outputs = result.response().outputs
        if not _fits(reader.signature, outputs, waiting.row):
            return None
        facts = reader.facts(outputs, waiting.row, with_boxes=waiting.object is not None)
        facts |= {"route": "cloud", "reason": result.reason, "id": result.request_id}
        if waiting.object is not None:
            found = _read(waiting.object)
            objects: tuple[FoundObject, ...] = (replace(found, answers={**found.answers, waiting.model: facts}),)
            answers: Mapping[str, Mapping[str, Any]] = {}
            if found.track is not None:
                case = f"{result.spool_id}/{waiting.row}"
                self._on_amended(waiting.model, found.track, case, facts)
        else:
            answers = {waiting.model: facts}
            objects = self._kept(reader.objects(outputs, waiting.row), waiting, answers)
        # Always the same: if the process ends in between, the answer is delivered again.
        about = f"{waiting.event_id} {result.spool_id} {waiting.model} {waiting.row}"
        return Event(
            hashlib.sha256(about.encode()).hexdigest()[:32], waiting.pipeline, waiting.event,
            self._outbox.next_sequence(waiting.pipeline), waiting.captured_unix_s,
            max(0.0, time.time() - waiting.captured_unix_s) * 1e3, objects, "cloud", result.reason,
            amends=waiting.event_id, direction=waiting.direction, answers=answers, file=waiting.file,
            media_s=waiting.media_s,
        )  # fmt: skip

    def _kept(
        self, objects: tuple[FoundObject, ...], waiting: WaitingEvent, answers: Mapping[str, Mapping[str, Any]]
    ) -> tuple[FoundObject, ...]:
        """What the cloud found in a frame, without what the steps `keep` drop. Rules on zones hold for it, too."""
        if self._as.zones is not None:
            objects = self._as.zones.locate(objects)
        frame = Frame(0, 0.0, waiting.captured_unix_s, NO_PIXELS, NO_PIXELS[:, :, 0])
        scene = Scene(frame, NO_PIXELS, objects, answers, "cloud")
        for step in self._as.keeps.get(waiting.model, ()):
            scene = step.take(scene, math.inf)
        return scene.objects


def _fits(signature: Signature, outputs: Mapping[str, Array], row: int) -> bool:
    """Whether these are the outputs of the model, with that row. By now it may have others, and the cloud may be wrong:
    what cannot be read must not be handed over for ever.
    """
    first = outputs.get(signature.outputs[0].name)
    rows = 0 if first is None or not first.ndim else len(first)
    try:
        signature.check_outputs(outputs, rows)
    except ModelFailed:
        return False
    return row < rows or not signature.has_rows


def _expected(event: Event, scene: Scene) -> Iterator[Expected]:
    """The cases that the event waits for: those of the frame and of its objects that the cloud is still to answer."""
    about: Sequence[tuple[Mapping[str, Mapping[str, Any]], FoundObject | None]] = [
        (scene.answers, None),
        *((found.answers, found) for found in event.objects),
    ]
    for answers, found in about:
        for model, facts in answers.items():
            if "case" not in facts:
                continue
            spool_id, _, row = str(facts["case"]).rpartition("/")
            yield spool_id, WaitingEvent(
                event.pipeline, event.id, event.event, event.captured_unix_s, model, int(row),
                None if found is None else _written(found), event.sequence, event.direction, event.file,
                event.media_s,
            )  # fmt: skip


def _written(found: FoundObject) -> dict[str, Any]:
    return {
        "label": found.label, "score": found.score, "box": list(found.box), "track": found.track,
        "zones": sorted(found.zones), "answers": {model: dict(answer) for model, answer in found.answers.items()},
    }  # fmt: skip


def _read(written: Mapping[str, Any]) -> FoundObject:
    x1, y1, x2, y2 = written["box"]
    return FoundObject(
        written["label"], written["score"], (x1, y1, x2, y2), written["track"], frozenset(written["zones"]),
        written["answers"],
    )  # fmt: skip


def may_leave(router: RouterService) -> Callable[[Message], bool]:
    """Whether a message may leave the device under the current policy, judged as its requests were."""

    def ask(message: Message) -> bool:
        if not message.model:
            return True
        size_bytes = len(message.body)  # its picture stays here
        requests = requests_behind(message.model, message.tags)
        return all(is_allowed(model, tags, size_bytes) for model, tags in requests)

    def is_allowed(model: str, tags: Mapping[str, str], size_bytes: int) -> bool:
        facts = RequestFacts(model, tags, size_bytes, time.time())
        return router.judge(Signals(facts, (size_bytes,), time.monotonic())).denial is None

    return ask
