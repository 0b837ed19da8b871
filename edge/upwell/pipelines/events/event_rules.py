"""Events as sinks receive them, and when they happen: rules on objects, their tracks, zones and lines."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from upwell.pipelines.frame import FoundObject, Point, Scene
from upwell.pipelines.steps.geometry import LOST_S, Zones, anchor, crossing, edge_distance, line_distance

if TYPE_CHECKING:
    from upwell.pipelines.events.where_condition import ObjectCondition


@dataclass(frozen=True)
class Event:
    """What happened on one frame of a pipeline.

    `event` is the name of its rule. `answers` maps a model to its answer about the whole frame; answers about an
    object are in the object. `sequence` counts the events of the pipeline. `latency_ms` is from capture to the event.
    `direction` is "in" or "out" if objects crossed a line, otherwise empty. `amends` is the id of the event that this
    one repeats with a later answer; empty for a first one. `file` is the name of the picture in a folder, empty
    without one; `media_s` the time within a recording, None for any other source.
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
    file: str = ""
    media_s: float | None = None

    def as_json(self) -> str:
        """One line of ASCII, without its end.

        Boxes are fractions of the picture, to 4 digits. A number that is not finite is null, since JSON has none.
        Each object holds the models' answers under their names. `direction`, `answers`, `file` and `media_s` are left
        out if there are none.
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
        if self.file:
            line["file"] = self.file
        if self.media_s is not None:
            line["media_s"] = round(self.media_s, 6)
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


MARGIN = 0.1
"""Distance beyond an edge or line at which a track has crossed it, in sizes of its box."""

Kind: TypeAlias = Literal["frame", "appear", "leave", "enter", "exit", "dwell", "cross", "every"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EventRule:
    """One rule: its name, what triggers it, and the condition that must hold then ("": none).

    `zone` belongs to enter, exit and dwell, `line` to cross; `dwell_s` and `every_s` belong to the kinds of that
    name.
    """

    name: str
    kind: Kind
    zone: str = ""
    line: str = ""
    dwell_s: float = 0.0
    every_s: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class FiredEvent:
    """A rule that holds, and its objects: one, or for `frame` and `every` all those for which it is true.

    `event` is the name of the rule and of the event that it causes. `direction` is "in" or "out" for `cross`; +1 of
    `crossing` is "in".
    """

    event: str
    objects: tuple[FoundObject, ...]
    direction: str = ""


@dataclass(eq=False)
class _Followed:
    """The state of one track: its last observation, since when it is known, and since when it has been in which zones.

    `crossed` maps a line to the sum of the track's crossings since it was last clear of the line. `dwelt` are the
    numbers of the rules that have fired during its stay in their zones.
    """

    found: FoundObject
    began_s: float
    seen_s: float
    missed_since_s: float | None = None
    entered_s: dict[str, float] = field(default_factory=dict)
    crossed: Counter[str] = field(default_factory=Counter)
    dwelt: set[int] = field(default_factory=set)


class EventRules:
    """Finds the events in what a pipeline sees. Keeps the state of each track and of `every`.

    **appear** is the first observation of a track. **leave** happens if the track has not been seen for more than
    `lost_s` since the first frame that missed it (as the tracker counts, whose `lost_s` should be the same), or at
    `end`. A leave reports the last observation.

    **enter** and **exit**: a track enters a zone with the first observation that has its anchor inside, which may be
    its very first one. It exits when the anchor is outside by more than `MARGIN` sizes of its box, or with its leave.
    The margin keeps a box that jitters at an edge from entering again and again. It is a distance, not a number of
    observations: at any frame rate a jittering box is often enough on the same side twice in a row, while the error
    of a detector is a few hundredths of the size of a box.

    **cross**: the steps between observations are summed as they cross the line, +1 one way and -1 the other. The sum
    counts once the anchor is more than `MARGIN` sizes of its box away from the line, or with the leave. So jitter on
    the line sums to its net result, and an object that turns back has not crossed.

    **dwell** happens once in each stay in the zone, with the first observation at which the time is up and `where` is
    true. **every** happens once in each such period, counted from the first frame, with the first frame for which
    `where` is true. `frame` and `every` report the objects for which `where` is true, and only if there is one. If
    `where` reads no object, they report all objects, even none. All other kinds need tracks and report one object
    each.

    Order within one frame: first the leaves, then per track appear, exit, cross, enter and dwell, then `frame` and
    `every`; at the same instant, in the order of the rules. Raises `ValueError` for a zone or line that does not
    exist and for an invalid `where`.
    """

    def __init__(
        self,
        rules: Sequence[EventRule],
        zones: Zones,
        models: Collection[str] = (),
        pipeline: str = "",
        lost_s: float = LOST_S,
    ) -> None:
        self._rules, self.zones, self._lost_s = tuple(rules), zones, lost_s
        self._conditions = [load_condition(rule.where, models, zones.polygons, pipeline) for rule in rules]
        self._by_happening: dict[tuple[str, str], list[int]] = {}
        for number, rule in enumerate(rules):
            _check_place(rule, zones)
            self._by_happening.setdefault((rule.kind, rule.zone or rule.line), []).append(number)
        self._followed: dict[int, _Followed] = {}
        self._periods: dict[int, int] = {}
        self._first_s: float | None = None
        self._failures: Counter[str] = Counter()
        self._scene: Scene | None = None

    @property
    def failures(self) -> Mapping[str, int]:
        """How often the `where` of a rule could not be evaluated, by the rule's name. It counts as not true then."""
        return dict(self._failures)

    def take(self, scene: Scene) -> list[FiredEvent]:
        """The events of the next frame, in order."""
        now_s = scene.frame.at_s
        self._scene = _without_pixels(scene)
        seen = {found.track: found for found in scene.objects if found.track is not None}
        fired: list[FiredEvent] = []
        for track, followed in list(self._followed.items()):
            if track in seen:
                continue
            if followed.missed_since_s is None:
                followed.missed_since_s = now_s
            elif now_s - followed.missed_since_s > self._lost_s:
                fired += self._over(self._followed.pop(track), now_s)
        for track, found in seen.items():
            fired += self._look(track, found, now_s)
        fired += self._of_frame(scene, now_s)
        return fired

    def end(self, at_s: float) -> list[FiredEvent]:
        """End every track: the source has ended, or will go on as another one."""
        followed, self._followed = self._followed, {}
        return [event for one in followed.values() for event in self._over(one, at_s)]

    def _look(self, track: int, found: FoundObject, now_s: float) -> Iterator[FiredEvent]:
        at, followed = anchor(found.box), self._followed.get(track)
        if followed is None:
            before = at
            followed = self._followed[track] = _Followed(found, now_s, now_s)
            yield from self._fire("appear", "", followed, now_s)
        else:
            before = anchor(followed.found.box)
            followed.found, followed.seen_s, followed.missed_since_s = found, now_s, None
        inside = self.zones.around(at)
        for zone in sorted(followed.entered_s.keys() - inside):
            if edge_distance(self.zones.polygons[zone], found.box) > MARGIN:
                yield from self._exit(zone, followed, now_s)
        yield from self._crossings(followed, before, now_s)
        for zone in sorted(inside - followed.entered_s.keys()):
            followed.entered_s[zone] = now_s
            yield from self._fire("enter", zone, followed, now_s)
        for zone in sorted(followed.entered_s):
            for number in self._by_happening.get(("dwell", zone), ()):
                is_due = now_s - followed.entered_s[zone] >= self._rules[number].dwell_s
                if is_due and number not in followed.dwelt and self._holds(number, followed.found, followed, now_s):
                    followed.dwelt.add(number)
                    yield FiredEvent(self._rules[number].name, (found,))

    def _crossings(self, followed: _Followed, before: Point, now_s: float) -> Iterator[FiredEvent]:
        box = followed.found.box
        for name, line in self.zones.lines.items():
            followed.crossed[name] += crossing(line, before, anchor(box))
            if followed.crossed[name] and line_distance(line, box) > MARGIN:
                yield from self._cross(name, followed, now_s)

    def _cross(self, line: str, followed: _Followed, now_s: float) -> Iterator[FiredEvent]:
        direction = "in" if followed.crossed.pop(line) > 0 else "out"
        for fired in self._fire("cross", line, followed, now_s):
            yield replace(fired, direction=direction)

    def _exit(self, zone: str, followed: _Followed, now_s: float) -> Iterator[FiredEvent]:
        yield from self._fire("exit", zone, followed, now_s)
        del followed.entered_s[zone]
        followed.dwelt.difference_update(self._by_happening.get(("dwell", zone), ()))

    def _over(self, followed: _Followed, now_s: float) -> Iterator[FiredEvent]:
        for line in [name for name, total in followed.crossed.items() if total]:
            yield from self._cross(line, followed, now_s)
        for zone in sorted(followed.entered_s):
            yield from self._exit(zone, followed, now_s)
        yield from self._fire("leave", "", followed, now_s)

    def _fire(self, kind: Kind, place: str, followed: _Followed, now_s: float) -> Iterator[FiredEvent]:
        for number in self._by_happening.get((kind, place), ()):
            if self._holds(number, followed.found, followed, now_s):
                yield FiredEvent(self._rules[number].name, (followed.found,))

    def _of_frame(self, scene: Scene, now_s: float) -> Iterator[FiredEvent]:
        if self._first_s is None:
            self._first_s = now_s
        for number, rule in enumerate(self._rules):
            if rule.kind not in ("frame", "every"):
                continue
            period = int((now_s - self._first_s) // rule.every_s) if rule.every_s else 0
            if rule.kind == "every" and period <= self._periods.get(number, -1):
                continue
            objects = self._of_which(number, scene.objects, now_s)
            if objects is not None:
                self._periods[number] = period
                yield FiredEvent(rule.name, objects)

    def _of_which(self, number: int, objects: Iterable[FoundObject], now_s: float) -> tuple[FoundObject, ...] | None:
        """The objects for which a rule is true; None if it does not hold."""
        condition = self._conditions[number]
        if condition is None or not condition.reads_object:
            return tuple(objects) if self._holds(number, None, None, now_s) else None
        found = tuple(one for one in objects if self._holds(number, one, self._followed.get(one.track or 0), now_s))
        return found or None

    def _holds(self, number: int, found: FoundObject | None, followed: _Followed | None, now_s: float) -> bool:
        condition = self._conditions[number]
        if condition is None or self._scene is None:
            return True
        age_s, dwell_s = 0.0, {}
        if followed is not None:
            age_s = followed.seen_s - followed.began_s
            dwell_s = {zone: now_s - since_s for zone, since_s in followed.entered_s.items()}
        try:
            return condition.holds(found, self._scene, age_s, dwell_s)
        except ValueError as error:
            name = self._rules[number].name
            self._failures[name] += 1
            if self._failures[name] == 1:
                _log.warning("event %s: the condition counts as false whenever it cannot be evaluated: %s", name, error)
            return False


def load_condition(
    where: str | None, models: Collection[str], zones: Collection[str], pipeline: str = ""
) -> ObjectCondition | None:
    """The condition, which may read the answers of these models and the times in these zones; None if there is none.

    Raises `ValueError` if it is invalid or if the package that evaluates it is not installed.
    """
    if not where:
        return None
    try:  # imported here: the package that evaluates them is an extra
        from upwell.pipelines.events.where_condition import ObjectCondition
    except ImportError:
        raise ValueError(
            "`where` needs the package cel-expr-python: pip install 'upwell[cel]' (Python 3.11 or later)"
        ) from None
    return ObjectCondition(where, models, zones, pipeline)


def _check_place(rule: EventRule, zones: Zones) -> None:
    for what, name, known in (("zone", rule.zone, zones.polygons), ("line", rule.line, zones.lines)):
        if name and name not in known:
            alike = difflib.get_close_matches(name, known, n=1)
            offered = f"expected one of {', '.join(known)}" if known else "there is none"
            raise ValueError(f"unknown {what} {name}; " + (f"did you mean {alike[0]}?" if alike else offered))


def _without_pixels(scene: Scene) -> Scene:
    """The scene without its pixels, which no condition reads: nothing should hold on to a picture."""
    nothing = np.zeros((0, 0, 3), np.uint8)
    return replace(scene, frame=replace(scene.frame, pixels=nothing, luma=nothing[:, :, 0]), pixels=nothing)
