"""An event as sinks receive it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from upwell.pipelines.frame import FoundObject


@dataclass(frozen=True)
class Event:
    """What happened on one frame of a pipeline.

    `event` is the name of its rule. `answers` maps a model to its answer about the whole frame; answers about an
    object are in the object. `sequence` counts the events of the pipeline. `latency_ms` is from capture to the event.
    `direction` is "in" or "out" if objects crossed a line, otherwise empty. `amends` is the id of the event that this
    one repeats with a later answer; empty for a first one.
    """

    id: str
    pipeline: str
    event: str
    sequence: int
    captured_unix_s: float
    latency_ms: float
    objects: tuple[FoundObject, ...] = ()
    route: str = ""
    reason: str = ""
    degraded: bool = False
    amends: str = ""
    direction: str = ""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def as_json(self) -> str:
        """One line of ASCII, without its end.

        Boxes are fractions of the picture, to 4 digits. A number that is not finite is null, since JSON has none.
        Each object holds the models' answers under their names. `direction` and `answers` are left out if empty.
        """
        line = {
            "id": self.id,
            "pipeline": self.pipeline,
            "event": self.event,
            "sequence": self.sequence,
            "captured_unix_s": round(self.captured_unix_s, 6),
            "latency_ms": round(self.latency_ms, 3),
            "objects": [_object(found) for found in self.objects],
            "route": self.route,
            "reason": self.reason,
            "degraded": self.degraded,
            "amends": self.amends or None,
        }
        if self.direction:
            line["direction"] = self.direction
        if self.answers:
            line["answers"] = self.answers
        return json.dumps(_finite(line), allow_nan=False, separators=(",", ":"))


def _object(found: FoundObject) -> dict[str, Any]:
    own = {
        "label": found.label,
        "score": round(float(found.score), 4),
        "box": [round(float(edge), 4) for edge in found.box],
        "track": found.track,
    }
    return own | {model: answer for model, answer in found.answers.items() if model not in own}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value
