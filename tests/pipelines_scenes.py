"""Made scenes with known truth: what walks where, what a detector would see of it, what happens, and how it looks.

Walkers go along straight pieces at constant speed, so that each instant at which one enters a rectangle or crosses a
segment is solved for, by other means than the product's: slabs for rectangles, Cramer's rule for segments. How often
each thing happens is written by hand beside each scene as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from upwell.pipelines.config.pipelines_config import EventSection
from upwell.pipelines.events.event_rules import EventRule
from upwell.pipelines.frame import Box, FoundObject, Frame, Point, Scene
from upwell.pipelines.steps.geometry import Line, Zones
from upwell.shared.tensors import Array

LOST_S = 2.0

COLOURS: Mapping[str, tuple[int, int, int]] = {"person": (250, 90, 70), "truck": (70, 170, 250)}
"""Label -> how it is drawn."""


def rule_on(on: str, name: str = "r", where: str = "") -> EventRule:
    """The rule of a text such as `enter door`."""
    return replace(EventSection.model_validate({"name": "r", "on": on}).rule, name=name, where=where)


@dataclass(frozen=True)
class Walker:
    """Somebody whose anchor is at (x, y) at the instant: `path` has (at_s, x, y), and is there only between them."""

    path: tuple[tuple[float, float, float], ...]
    label: str = "person"
    width: float = 0.06
    height: float = 0.2

    def at(self, at_s: float) -> Box | None:
        """Its box at an instant."""
        for (start_s, x1, y1), (end_s, x2, y2) in pairwise(self.path):
            if start_s <= at_s <= end_s:
                share = (at_s - start_s) / (end_s - start_s)
                x, y = x1 + share * (x2 - x1), y1 + share * (y2 - y1)
                return x - self.width / 2, y - self.height, x + self.width / 2, y
        return None


@dataclass(frozen=True, order=True)
class TrueEvent:
    """`on` is `enter door`, `cross gate` …; `walker` is the number of the one who does it."""

    at_s: float
    on: str
    direction: str = ""
    walker: int = 0


@dataclass(frozen=True)
class MadeScene:
    """`rectangles` are the zones, `pillars` hide what is behind them. `counts` are written by hand.

    Of a detector: `jitter` is the deviation of each edge in sizes of the box, `missed` the share of objects that it
    does not find, `false` how many boxes of nothing it finds per look, each in one look alone.
    """

    name: str
    walkers: tuple[Walker, ...]
    counts: Mapping[str, int]
    rectangles: Mapping[str, Box] = field(default_factory=dict)
    lines: Mapping[str, Line] = field(default_factory=dict)
    dwell_s: float = 2.0
    pillars: tuple[Box, ...] = ()
    jitter: float = 0.01
    missed: float = 0.0
    false: float = 0.0
    duration_s: float = 10.0
    fps: float = 10.0
    seed: int = 0

    @property
    def looks(self) -> int:
        """How many frames it has."""
        return round(self.duration_s * self.fps)

    @property
    def zones(self) -> Zones:
        """Its rectangles and lines as a pipeline has them."""
        corners = {name: ((x1, y1), (x2, y1), (x2, y2), (x1, y2)) for name, (x1, y1, x2, y2) in self.rectangles.items()}
        return Zones(corners, self.lines)

    @property
    def rules(self) -> list[EventRule]:
        """A rule for everything that can happen, named by what it is `on`."""
        texts = ["appear", "leave", *(f"cross {line}" for line in self.lines)]
        for zone in self.rectangles:
            texts += [f"enter {zone}", f"exit {zone}", f"dwell {zone} {self.dwell_s:g}s"]
        return [rule_on(text, name=text) for text in texts]


def boxes(scene: MadeScene, number: int) -> list[tuple[Walker, Box, float]]:
    """Who is there on a frame, from the back to the front: the walker, its true box, and the share that shows."""
    at_s = number / scene.fps
    there = [(walker, box) for walker in scene.walkers if (box := walker.at(at_s)) is not None]
    there.sort(key=lambda one: one[1][3])
    found = []
    for index, (walker, box) in enumerate(there):
        before = [other for _, other in there[index + 1 :]] + list(scene.pillars)
        found.append((walker, box, 1 - max((_covered(box, other) for other in before), default=0.0)))
    return found


def objects(scene: MadeScene, number: int) -> tuple[FoundObject, ...]:
    """What a detector finds on a frame: the same each time it is asked."""
    random = np.random.default_rng((scene.seed, number))
    found = []
    for walker, box, shows in boxes(scene, number):
        if shows < 0.3 or random.random() < scene.missed:
            continue
        sizes = np.array([walker.width, walker.height] * 2)
        seen = np.array(box) + random.normal(0, scene.jitter, 4) * sizes
        score = 0.3 if shows < 0.7 else 0.8
        found.append(FoundObject(walker.label, score + random.uniform(0, 0.1), _as_box(seen)))
    for _ in range(random.poisson(scene.false)):
        x, y = random.uniform(0.05, 0.95), random.uniform(0.25, 1.0)
        nothing = np.array([x - 0.03, y - 0.2, x + 0.03, y])
        found.append(FoundObject("person", random.uniform(0.2, 0.9), _as_box(nothing)))
    return tuple(found)


def frame_of(scene: MadeScene, number: int, pixels: Array | None = None) -> Frame:
    """The frame, without a picture where none is given. The clock starts at 1,000 s."""
    picture = np.zeros((1, 1, 3), np.uint8) if pixels is None else pixels
    at_s = number / scene.fps
    return Frame(number, 1000.0 + at_s, 1.7e9 + at_s, picture, picture[:, :, 0])


def scene_of(scene: MadeScene, number: int, found: tuple[FoundObject, ...]) -> Scene:
    """The frame with these objects on it, as the steps of a pipeline hand it on."""
    frame = frame_of(scene, number)
    return Scene(frame, frame.pixels, found)


def draw(scene: MadeScene, number: int, height: int = 240, width: int = 320) -> Array:
    """The frame as uint8 [height, width, 3]: bright rectangles in the colour of their label, on dark noise."""
    random = np.random.default_rng((scene.seed, number, 1))
    pixels = np.clip(random.normal(40, 6, (height, width, 3)), 0, 255).astype(np.uint8)
    for walker, box, _ in boxes(scene, number):
        _fill(pixels, box, COLOURS[walker.label])
    for pillar in scene.pillars:
        _fill(pixels, pillar, (90, 90, 90))
    return pixels


def truth(scene: MadeScene) -> list[TrueEvent]:
    """What happens, in order. What leaves does so `LOST_S` after it was last there, or with the end of the scene."""
    found: list[TrueEvent] = []
    for number, walker in enumerate(scene.walkers):
        gone_s = min(walker.path[-1][0] + LOST_S, scene.duration_s)
        found.append(TrueEvent(walker.path[0][0], "appear", walker=number))
        found.append(TrueEvent(gone_s, "leave", walker=number))
        for zone, rectangle in scene.rectangles.items():
            for start_s, end_s in _stays(walker, rectangle):
                left_s = gone_s if end_s >= walker.path[-1][0] - 1e-9 else end_s
                found.append(TrueEvent(start_s, f"enter {zone}", walker=number))
                found.append(TrueEvent(left_s, f"exit {zone}", walker=number))
                if end_s - start_s >= scene.dwell_s:
                    on = f"dwell {zone} {scene.dwell_s:g}s"
                    found.append(TrueEvent(start_s + scene.dwell_s, on, walker=number))
        for line, (start, end) in scene.lines.items():
            for (start_s, x1, y1), (end_s, x2, y2) in pairwise(walker.path):
                met = _meeting((x1, y1), (x2, y2), start, end)
                if met is not None:
                    direction = "in" if met[1] else "out"
                    found.append(
                        TrueEvent(start_s + met[0] * (end_s - start_s), f"cross {line}", direction, walker=number)
                    )
    return sorted(found)


def _stays(walker: Walker, rectangle: Box) -> list[tuple[float, float]]:
    """From when to when the walker's anchor is in the rectangle: the time in all slabs at once, piece by piece."""
    stays: list[tuple[float, float]] = []
    for (start_s, *start), (end_s, *end) in pairwise(walker.path):
        first, last = 0.0, 1.0
        for axis in (0, 1):
            low, high, way = rectangle[axis], rectangle[axis + 2], end[axis] - start[axis]
            if way:
                one, other = sorted(((low - start[axis]) / way, (high - start[axis]) / way))
                first, last = max(first, one), min(last, other)
            elif not low <= start[axis] <= high:
                last = -1.0
        if first < last:
            stay = (start_s + first * (end_s - start_s), start_s + last * (end_s - start_s))
            if stays and math.isclose(stays[-1][1], stay[0], abs_tol=1e-9):
                stay = (stays.pop()[0], stay[1])
            stays.append(stay)
    return stays


def _meeting(start: Point, end: Point, first: Point, second: Point) -> tuple[float, bool] | None:
    """Where on the way from `start` to `end` the segment lies, and whether its right-hand side is ahead."""
    way, line = (end[0] - start[0], end[1] - start[1]), (second[0] - first[0], second[1] - first[1])
    both = way[0] * line[1] - way[1] * line[0]
    if both == 0:
        return None
    off = (first[0] - start[0], first[1] - start[1])
    share, along = (off[0] * line[1] - off[1] * line[0]) / both, (off[0] * way[1] - off[1] * way[0]) / both
    return (share, both < 0) if 0 <= share < 1 and 0 <= along < 1 else None


def _covered(box: Box, other: Box) -> float:
    """The share of a box that is behind the other one."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return max(width, 0.0) * max(height, 0.0) / ((box[2] - box[0]) * (box[3] - box[1]))


def _as_box(edges: Array) -> Box:
    x1, y1, x2, y2 = (float(edge) for edge in edges)
    return x1, y1, x2, y2


def _fill(pixels: Array, box: Box, colour: tuple[int, int, int]) -> None:
    height, width = pixels.shape[:2]
    x1, x2 = (round(min(max(edge, 0.0), 1.0) * width) for edge in (box[0], box[2]))
    y1, y2 = (round(min(max(edge, 0.0), 1.0) * height) for edge in (box[1], box[3]))
    pixels[y1:y2, x1:x2] = colour


def _walk(*path: tuple[float, float, float], label: str = "person") -> Walker:
    return Walker(path, label) if label == "person" else Walker(path, label, width=0.25, height=0.25)


GATE: Mapping[str, Line] = {"gate": ((0.0, 0.6), (1.0, 0.6))}
"""Into the picture's lower part is in."""

DOOR: Mapping[str, Box] = {"door": (0.4, 0.5, 0.7, 0.9)}

SCENES: tuple[MadeScene, ...] = (
    MadeScene("one crosses", (_walk((0, 0.5, 0.3), (5, 0.5, 0.95)),), {"cross gate in": 1}, lines=GATE),
    MadeScene(
        "there and back",
        (_walk((0, 0.5, 0.3), (3, 0.55, 0.9), (4, 0.55, 0.9), (7, 0.5, 0.3)),),
        {"cross gate in": 1, "cross gate out": 1},
        lines=GATE,
    ),
    MadeScene(
        "one turns back",
        (_walk((0, 0.3, 0.3), (3, 0.3, 0.57), (6, 0.3, 0.3)), _walk((1, 0.7, 0.3), (5, 0.7, 0.9))),
        {"cross gate in": 1},
        lines=GATE,
        jitter=0.02,
    ),
    MadeScene(
        "both directions at once",
        (_walk((0, 0.3, 0.3), (4, 0.3, 0.9)), _walk((0, 0.7, 0.95), (4.5, 0.7, 0.3))),
        {"cross gate in": 1, "cross gate out": 1},
        lines=GATE,
    ),
    MadeScene(
        "two pass each other on the line",
        (_walk((0, 0.1, 0.62), (5, 0.9, 0.62)), _walk((0, 0.9, 0.66), (5, 0.1, 0.66))),
        {"cross middle in": 1, "cross middle out": 1},
        lines={"middle": ((0.5, 1.0), (0.5, 0.0))},
        fps=20,
    ),
    MadeScene(
        "gate, door and second gate in order",
        (_walk((0, 0.1, 0.7), (7, 0.95, 0.7)),),
        {"cross first in": 1, "enter door": 1, "dwell door 2s": 1, "exit door": 1, "cross second in": 1},
        DOOR,
        {"first": ((0.25, 1.0), (0.25, 0.0)), "second": ((0.85, 1.0), (0.8, 0.0))},
    ),
    MadeScene(
        "one is in the door at first and goes, one comes and vanishes there",
        (_walk((0, 0.5, 0.7), (1, 0.5, 0.7), (4, 0.1, 0.7)), _walk((3, 0.95, 0.8), (5, 0.6, 0.8), (6, 0.6, 0.8))),
        {"enter door": 2, "exit door": 2},
        DOOR,
    ),
    MadeScene(
        "one stays and one passes",
        (
            _walk((0, 0.1, 0.6), (2, 0.55, 0.6), (6, 0.55, 0.6), (8, 0.95, 0.6)),
            _walk((1, 0.9, 0.85), (3.5, 0.1, 0.85)),
        ),
        {"enter door": 2, "exit door": 2, "dwell door 2s": 1},
        DOOR,
        jitter=0.02,
    ),
    MadeScene(
        "one trembles at the edge of the door",
        (_walk((0, 0.1, 0.7), (2, 0.402, 0.7), (8, 0.402, 0.7)),),
        {"enter door": 1, "exit door": 1, "dwell door 2s": 1},
        DOOR,
        jitter=0.02,
    ),
    MadeScene(
        "one stops just behind the line",
        (_walk((0, 0.5, 0.3), (2, 0.5, 0.608), (6, 0.5, 0.608), (8, 0.5, 0.95)),),
        {"cross gate in": 1},
        lines=GATE,
        jitter=0.02,
    ),
    MadeScene(
        "one crosses behind a pillar",
        (_walk((0, 0.1, 0.7), (6, 0.9, 0.7)),),
        {"cross middle in": 1, "enter door": 1, "exit door": 1, "dwell door 2s": 1},
        DOOR,
        {"middle": ((0.55, 1.0), (0.55, 0.0))},
        pillars=((0.48, 0.0, 0.62, 1.0),),
    ),
    MadeScene(
        "one stops behind a pillar and turns back",
        (_walk((0, 0.1, 0.7), (2, 0.45, 0.7), (2.8, 0.45, 0.7), (5, 0.1, 0.7)),),
        {"cross middle in": 1, "cross middle out": 1},
        lines={"middle": ((0.3, 1.0), (0.3, 0.0))},
        pillars=((0.38, 0.0, 0.52, 1.0),),
    ),
    MadeScene(
        "detections are missed",
        (
            _walk((0, 0.2, 0.3), (4, 0.2, 0.9)),
            _walk((1, 0.5, 0.3), (5, 0.5, 0.95)),
            _walk((0.5, 0.8, 0.95), (5, 0.8, 0.3)),
        ),
        {"cross gate in": 2, "cross gate out": 1},
        lines=GATE,
        missed=0.2,
    ),
    MadeScene(
        "boxes of nothing",
        (_walk((0, 0.1, 0.7), (6, 0.9, 0.7)), _walk((1, 0.5, 0.3), (5, 0.55, 0.95))),
        {"cross gate in": 1, "enter door": 2, "exit door": 2, "dwell door 2s": 2},
        {"door": (0.4, 0.5, 0.75, 0.9)},
        GATE,
        false=0.3,
    ),
    MadeScene(
        "a truck passes in front of a person",
        (
            _walk((0, 0.3, 0.7), (6, 0.7, 0.7)),
            _walk((1, 0.85, 0.8), (5, 0.15, 0.8), label="truck"),
        ),
        {"cross middle in": 1, "cross middle out": 1, "enter door": 2, "exit door": 2, "dwell door 2s": 1},
        DOOR,
        {"middle": ((0.5, 1.0), (0.5, 0.0))},
    ),
    MadeScene(
        "a crowd under a bad detector",
        (
            _walk((0, 0.1, 0.3), (5, 0.35, 0.95)),
            _walk((0.5, 0.9, 0.95), (5.5, 0.75, 0.3)),
            _walk((1, 0.3, 0.35), (6, 0.8, 0.9)),
            _walk((1.5, 0.95, 0.75), (6.5, 0.05, 0.8)),
            _walk((2, 0.55, 0.3), (7, 0.5, 0.95)),
        ),
        {"cross gate in": 3, "cross gate out": 1},
        lines=GATE,
        jitter=0.02,
        missed=0.1,
        false=0.2,
    ),
)
"""Sixteen, of 10 s. Appear and leave, which are one for each walker, are not among the counts."""
