"""The step `infer`: asks the agent about a frame or crops of its objects, within what is left of the deadline.

Its answers become objects of the frame, and facts that events write.
"""

from __future__ import annotations

import io
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from PIL import Image

from upwell.edge.request.answer import Answer
from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.frame import Box, FoundObject, Scene
from upwell.pipelines.sources.frame_slot import WHOLE, Wanted
from upwell.pipelines.sources.windows import laid_out
from upwell.pipelines.steps.geometry import Zones, anchor
from upwell.shared.errors import (
    ConfigError,
    DeadlineExceeded,
    NoAllowedRoute,
    Refused,
    Superseded,
    Unavailable,
    UpwellError,
)
from upwell.shared.signature.answer_agreement import best_class, found_boxes, label_of
from upwell.shared.signature.signature import LogicalOutput, Signature, in_rgb
from upwell.shared.tensors import Array, numpy_dtype

MAX_VALUES = 16
"""Maximum length of a vector in an event; longer ones are left out."""

_DIGITS = 4

_FORGET_S = 60.0
"""Time after which an unseen object is gone; trackers give up far sooner."""

_REASONS: Sequence[tuple[type[UpwellError], str]] = (
    (DeadlineExceeded, "late"),
    (Superseded, "refused"),
    (Refused, "refused"),
    (Unavailable, "refused"),
    (NoAllowedRoute, "denied"),
)


class AnswerReader:
    """Reads the outputs of one model, row by row. `signature` is that of the version that is served."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature

    @property
    def _boxes(self) -> LogicalOutput | None:
        return next((one for one in self.signature.outputs if one.kind == "detections"), None)

    @property
    def finds_objects(self) -> bool:
        """Whether the model gives boxes."""
        return self._boxes is not None

    def objects(self, outputs: Mapping[str, Array], row: int = 0) -> tuple[FoundObject, ...]:
        """The boxes of a row as objects; empty for a model that gives none."""
        boxes = self._boxes
        if boxes is None:
            return ()
        found = found_boxes(self._row(outputs[boxes.name], row))
        return tuple(_object(one, boxes.labels) for one in found)

    def facts(self, outputs: Mapping[str, Array], row: int = 0, *, with_boxes: bool = True) -> dict[str, Any]:
        """The facts that events write about a row: `label` and `score` of classes, `value` or `values` of a short
        tensor, and, unless they are objects of the frame, the `objects` of detections.

        With several outputs, the first one of classes is at the top level and each other one under its name.
        """
        facts: dict[str, Any] = {}
        signature, boxes = self.signature, self._boxes
        for output in signature.outputs:
            if output is boxes and not with_boxes:
                continue
            said = _facts_of(output, self._row(outputs[output.name], row))
            if len(signature.outputs) == 1 or ("label" in said and "label" not in facts):
                facts.update(said)
            elif said:
                facts[output.name] = said
        return facts

    def _row(self, array: Array, row: int) -> Array:
        return array[row] if self.signature.has_rows else array


def _object(numbers: Array, labels: Sequence[str]) -> FoundObject:
    x1, y1, x2, y2, score = (float(number) for number in numbers[:5])
    return FoundObject(label_of(int(numbers[5]), labels), score, (x1, y1, x2, y2))


def _facts_of(output: LogicalOutput, values: Array) -> dict[str, Any]:
    if output.kind == "detections":
        found = [_object(one, output.labels) for one in found_boxes(values)]
        boxes = [{"label": o.label, "score": _short(o.score), "box": [_short(v) for v in o.box]} for o in found]
        return {"objects": boxes}
    if output.kind in ("probabilities", "logits") and values.size and values.dtype.kind == "f":
        best = best_class(values, output.kind)
        return (
            {"label": "", "score": None}
            if best is None
            else {"label": label_of(best[0], output.labels), "score": _short(best[1])}
        )
    if values.size > MAX_VALUES or values.dtype.kind not in "fiub":
        return {}
    numbers = [_short(float(value)) for value in values.ravel()]
    return {"value": numbers[0]} if len(numbers) == 1 else {"values": numbers}


def _short(number: float) -> float | None:
    return round(number, _DIGITS) if math.isfinite(number) else None


class FrameDropped(Exception):
    """A frame that is not answered: `reason` is a code such as `late`, `request` the id of the request that failed."""

    def __init__(self, reason: str, text: str = "", request: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason
        self.request = request


class Step(Protocol):
    """One step of a pipeline."""

    @property
    def name(self) -> str:
        """Its key in the file, and the model that it asks."""
        ...

    def take(self, scene: Scene, until_s: float) -> Scene:
        """The scene with the results of the step added. `until_s` is the frame's deadline. Raises `FrameDropped`."""
        ...


@dataclass(frozen=True)
class InferSettings:
    """What to ask the agent. `margin` widens a crop by that share of its box on each side.

    `min_size` is the least side of a crop in pixels; smaller ones are not asked about. With `once_per_track` an
    answer holds for the track. It is asked for again if the object is seen `better` by that share (area times score),
    or if the answer is older than `older_s`.
    """

    model: str
    once_per_track: bool = False
    better: float | None = None
    older_s: float | None = None
    margin: float = 0.1
    min_size: int = 16
    tags: Mapping[str, str] = field(default_factory=dict)


class Inference:
    """Asks one model of the agent, with `tags`, about pictures or about windows of a series.

    `window` is the number of points and fields of a window; None for pictures. Raises `ConfigError` for a model that
    the agent lacks or that does not take this input.
    """

    def __init__(
        self, agent: AgentCore, settings: InferSettings, pipeline: str, window: tuple[int, int] | None = None
    ) -> None:
        served = agent.models.get(settings.model)
        if served is None:
            known = ", ".join(agent.models)
            raise ConfigError.at(None, f"the agent has no model {settings.model!r}; it has {known}", "infer.model")
        entry = served.entry_model
        if entry is None or (window is None and (len(entry.signature.inputs) > 1 or not entry.pictures)):
            raise ConfigError.at(
                None, f"model {settings.model!r} takes no picture alone on this device; expected one input, an image",
                "infer.model",
            )  # fmt: skip
        self.settings = settings
        self._agent = agent
        self.reader = AnswerReader(entry.signature)
        if window is not None:
            _check_window(window, self._signature, settings.model)
        self.tags: Mapping[str, str] = {"pipeline": pipeline, **settings.tags}

    @property
    def _signature(self) -> Signature:
        """That of the version that is served now; another one may name its input, outputs and classes otherwise."""
        entry = self._agent.models[self.settings.model].entry_model
        return self.reader.signature if entry is None else entry.signature

    @property
    def wanted(self) -> Wanted:
        """The size that the device's model sees of a picture; `WHOLE` if anything else sees the picture.

        That is the case if it goes to the cloud, is kept as a case, or two versions of the model are compared.
        """
        served = self._agent.models[self.settings.model]
        edge = served.edge
        if edge is None or served.heads or served.cloud_model or edge.trial is not None:
            return WHOLE
        if self._agent.router.policy.collects:
            return WHOLE
        op = edge.processor.picture_resize
        return WHOLE if op is None else Wanted(op.to[1], op.to[0], op.fit == "contain")

    def about(self, scene: Scene) -> Array:
        """The model's input for a whole frame. Raises `FrameDropped` if it does not fit a new version."""
        window, signature = scene.frame.window, self._signature
        if window is not None:
            try:
                return _as_input(window, signature)
            except ValueError as error:
                raise FrameDropped("failed", f"model {self.settings.model!r} {error}") from None
        name = signature.inputs[0].name
        # RGB, but for a model whose callers give BGR; what turns the one into the other turns it back.
        return in_rgb(signature, {name: scene.pixels})[name]

    def ask(self, rows: Array, tags: Mapping[str, str], until_s: float) -> Answer:
        """The agent's answer about these rows. Raises `FrameDropped`."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise FrameDropped("late")
        id, name = uuid.uuid4().hex, self._signature.inputs[0].name
        try:
            answer = self._agent.infer(
                self.settings.model, {name: rows}, deadline_s=left_s, tags={**self.tags, **tags}, id=id
            )
        except UpwellError as error:
            reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "failed")
            raise FrameDropped(reason, str(error), id) from error
        self.reader.signature = self._signature
        for output in self.reader.signature.outputs:
            if output.name not in answer.outputs:  # the version before answered, or took the place of one on trial
                raise FrameDropped("failed", f"the answer of another version has no output {output.name!r}", id)
        return answer

    def facts(self, answer: Answer, row: int, *, with_boxes: bool = True) -> dict[str, Any]:
        """The facts that events write about a row of the answer; `id` is that of the request, for `upwell explain`.

        They include a `case` if the cloud is still to answer it.
        """
        facts = self.reader.facts(answer.outputs, row, with_boxes=with_boxes)
        about = {"route": str(answer.routes[row]), "reason": str(answer.reason), "id": answer.id}
        return {**facts, **about, **case_of(answer, row)}


def _check_window(window: tuple[int, int], signature: Signature, model: str) -> None:
    """Raise `ConfigError` for a model that does not take the windows."""
    one = signature.inputs[0]
    if len(signature.inputs) > 1 or one.kind != "tensor" or numpy_dtype(one.spec.datatype).kind != "f":
        text = f"model {model!r} does not take a series; expected one input, a floating-point tensor"
        raise ConfigError.at(None, text, "infer.model")
    try:
        _as_input(np.broadcast_to(np.zeros((), np.uint8), window), signature)
    except ValueError as error:
        raise ConfigError.at(None, f"model {model!r} {error}", "infer.model") from None


def _as_input(window: Array, signature: Signature) -> Array:
    """The window as the one row of the model's input. Raises `ValueError` if it does not fit."""
    spec = signature.inputs[0].spec
    shape = spec.shape[1:] if signature.has_rows else spec.shape
    tensor = np.ascontiguousarray(laid_out(window, shape), numpy_dtype(spec.datatype))
    return tensor[None] if signature.has_rows else tensor


def case_of(answer: Answer, row: int) -> dict[str, str]:
    """`case`: the id of the case stored for the cloud, and the row in it; empty without one."""
    if row not in answer.spool_rows:
        return {}
    return {"case": f"{answer.spool_id}/{answer.spool_rows.index(row)}"}


class InferFrame:
    """Asks about the whole frame. A detector's boxes become objects, beside those of other detectors; any other answer
    belongs to the frame.
    """

    def __init__(self, inference: Inference) -> None:
        self.inference = inference
        self.name = f"infer {inference.settings.model}"

    def take(self, scene: Scene, until_s: float) -> Scene:
        """The scene with the model's answer. Raises `FrameDropped`."""
        ask = self.inference
        answer = ask.ask(ask.about(scene), {}, until_s)
        return replace(
            scene,
            route=str(answer.route),
            reason=str(answer.reason),
            degraded=answer.degraded,
            objects=(*scene.objects, *ask.reader.objects(answer.outputs)),
            answers={**scene.answers, ask.settings.model: ask.facts(answer, 0, with_boxes=False)},
            requests=(*scene.requests, answer.id),
        )


@dataclass
class _Known:
    facts: Mapping[str, Any]
    asked_s: float
    seen_s: float
    clarity: float


class InferObjects:
    """Asks about crops of the objects. Crops of one frame with the same tags are the rows of one request.

    `where` selects the objects. `zones` are those of the pipeline.
    """

    def __init__(
        self,
        inference: Inference,
        where: Callable[[FoundObject, Scene], bool] | None = None,
        zones: Zones | None = None,
    ) -> None:
        self.inference = inference
        self._zones = zones
        self.name = f"infer {inference.settings.model}"
        self._where = where
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()

    def take(self, scene: Scene, until_s: float) -> Scene:
        """The scene with the models' answers on its objects, new ones or those held by their tracks. Raises
        `FrameDropped`.
        """
        now_s = scene.frame.at_s
        said: dict[int, Mapping[str, Any]] = {}
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        crops: dict[int, Array] = {}
        for index, found in enumerate(scene.objects):
            held = self._held(found, now_s)
            if held is not None:
                said[index] = held
                continue
            if self._where is not None and not self._where(found, scene):
                continue
            crop = crop_of(scene.pixels, found.box, self.inference.settings.margin)
            if min(crop.shape[:2]) >= self.inference.settings.min_size:
                crops[index] = crop
                groups.setdefault(object_tags(found, self._zones), []).append(index)
        answers = []
        for tags, indexes in groups.items():
            rows = np.empty(len(indexes), dtype=np.object_)
            rows[:] = [png(crops[index]) for index in indexes]
            tracks = [scene.objects[index].track for index in indexes]
            known = {} if None in tracks else {"track": ",".join(map(str, tracks))}  # one case per track is kept
            answer = self.inference.ask(rows, {**dict(tags), **known}, until_s)
            answers.append(answer)
            for row, index in enumerate(indexes):
                said[index] = self.inference.facts(answer, row)
                self._remember(scene.objects[index], said[index], now_s)
        model = self.inference.settings.model
        objects = tuple(
            replace(found, answers={**found.answers, model: said[index]}) if index in said else found
            for index, found in enumerate(scene.objects)
        )
        if not answers:
            return replace(scene, objects=objects)
        return replace(
            scene,
            objects=objects,
            route=str(answers[0].route) if len({answer.route for answer in answers}) == 1 else "mixed",
            reason=str(answers[-1].reason),
            degraded=scene.degraded or any(answer.degraded for answer in answers),
            requests=(*scene.requests, *(answer.id for answer in answers)),
        )

    def amend(self, track: int, case: str, facts: Mapping[str, Any]) -> None:
        """Replace the answer held for the track, if it is still the one that waits for `case`.

        The track may have been asked about again since; after a restart the number belongs to another object.
        """
        with self._lock:
            known = self._known.get(track)
            if known is not None and known.facts.get("case") == case:
                known.facts = facts

    def _held(self, found: FoundObject, now_s: float) -> Mapping[str, Any] | None:
        settings = self.inference.settings
        if not settings.once_per_track or found.track is None:
            return None
        with self._lock:
            for track in [track for track, one in self._known.items() if now_s - one.seen_s > _FORGET_S]:
                del self._known[track]
            known = self._known.get(found.track)
            if known is None:
                return None
            known.seen_s = now_s
            is_old = settings.older_s is not None and now_s - known.asked_s > settings.older_s
            is_better = settings.better is not None and _clarity(found) > known.clarity * (1 + settings.better)
            return None if is_old or is_better else known.facts

    def _remember(self, found: FoundObject, facts: Mapping[str, Any], now_s: float) -> None:
        if self.inference.settings.once_per_track and found.track is not None:
            with self._lock:
                self._known[found.track] = _Known(facts, now_s, now_s, _clarity(found))


def _clarity(found: FoundObject) -> float:
    x1, y1, x2, y2 = found.box
    return (x2 - x1) * (y2 - y1) * found.score


def object_tags(found: FoundObject, zones: Zones | None) -> tuple[tuple[str, str], ...]:
    """The tags that rules see of an object: `label`, and `zone.NAME: "yes"` for each zone that it is in.

    That includes those of a step `zones` which comes later: rules do not depend on the order of the steps.
    """
    names = found.zones if zones is None else found.zones | zones.around(anchor(found.box))
    return (("label", found.label), *((f"zone.{zone.lower()}", "yes") for zone in sorted(names)))


def crop_of(pixels: Array, box: Box, margin: float) -> Array:
    """The part of the picture [height, width, 3] in the box, widened by `margin` of its sides and cut at the edges."""
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = box
    wider, higher = (x2 - x1) * margin, (y2 - y1) * margin
    left, right = (round(float(np.clip(x, 0, 1)) * width) for x in (x1 - wider, x2 + wider))
    top, bottom = (round(float(np.clip(y, 0, 1)) * height) for y in (y1 - higher, y2 + higher))
    return pixels[top:bottom, left:right]


def png(pixels: Array) -> bytes:
    """The picture as PNG, without loss. Compression is low: a crop is small, and the device's time is scarce."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
    return file.getvalue()
