"""Which object of a frame is which object of the frames before: ByteTrack, by time instead of by frames.

A Kalman filter in seconds follows each box: its place, its speed, and their uncertainty.

A box is (cx, cy, aspect, height): its centre, its width divided by its height, and its height, as in SORT and
ByteTrack. Each of the four has its own filter, since no noise couples them. A state is float64 [n, 4, 5]: for each of
the four the value x and its rate v per second, then their covariance: var(x), cov(x, v), var(v).

Motion: x moves by v·dt; v and x also take random steps, v with density a² per second (white acceleration) and x with
p² per second. Over dt seconds that adds to the covariance

    var(x): p²·dt + a²·dt³/3      cov(x, v): a²·dt²/2      var(v): a²·dt

which is exact for any dt: one long step equals several short ones. ByteTrack (arXiv 2110.06864) counts frames
instead, with the noise per frame in shares of the height: h/20 for position, h/160 for speed. These figures are taken
at 30 frames a second, so a source of 5 frames a second, or one with frames left out, is followed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from upwell.pipelines.frame import FoundObject
from upwell.pipelines.steps.geometry import LOST_S, has_area
from upwell.shared.signature.detections import overlap
from upwell.shared.tensors import Array

_FPS = 30.0
"""The frame rate that ByteTrack's parameters assume."""

_OF_HEIGHT = np.array([1.0, 1.0, 0.0, 1.0])
_OF_ASPECT = np.array([0.0, 0.0, 1.0, 0.0])

_MIN_HEIGHT, _MIN_ASPECT = 1e-6, 1e-3


def _std(height: Array, of_height: float, of_aspect: float) -> Array:
    """Standard deviation [n, 4]: a share of the height, with its own figure for the aspect."""
    return height[:, None] * (of_height * _OF_HEIGHT) + of_aspect * _OF_ASPECT


def as_measured(boxes: Array) -> Array:
    """Boxes x1, y1, x2, y2 as cx, cy, aspect, height; both float64 [n, 4]."""
    size = boxes[:, 2:] - boxes[:, :2]
    centre = boxes[:, :2] + size / 2
    return np.column_stack((centre, size[:, 0] / size[:, 1], size[:, 1]))


def as_boxes(states: Array) -> Array:
    """The boxes x1, y1, x2, y2 of states, float64 [n, 4]."""
    centre, height = states[:, :2, 0], states[:, 3, 0]
    half = np.column_stack((states[:, 2, 0] * height, height)) / 2
    return np.hstack((centre - half, centre + half))


def begin(measured: Array) -> Array:
    """The states of boxes that are seen for the first time and may move at any speed."""
    height = measured[:, 3]
    states = np.zeros((*measured.shape, 5))
    states[:, :, 0] = measured
    states[:, :, 2] = _std(height, 2 / 20, 1e-2) ** 2
    states[:, :, 4] = _std(height, 10 / 160 * _FPS, 1e-5 * _FPS) ** 2
    return states


def predict(states: Array, dt_s: float) -> Array:
    """The states `dt_s` seconds later."""
    x, v, xx, xv, vv = np.moveaxis(states, 2, 0)
    height = x[:, 3]
    push = _std(height, _FPS**0.5 / 20, _FPS**0.5 * 1e-2) ** 2  # p²
    acceleration = _std(height, _FPS**1.5 / 160, _FPS**1.5 * 1e-5) ** 2  # a²
    x = x + v * dt_s
    # A box that shrinks while it is hidden must not turn inside out.
    x[:, 2], x[:, 3] = np.maximum(x[:, 2], _MIN_ASPECT), np.maximum(x[:, 3], _MIN_HEIGHT)
    return np.stack(
        (
            x,
            v,
            xx + 2 * dt_s * xv + dt_s**2 * vv + push * dt_s + acceleration * dt_s**3 / 3,
            xv + dt_s * vv + acceleration * dt_s**2 / 2,
            vv + acceleration * dt_s,
        ),
        axis=2,
    )


def correct(states: Array, measured: Array) -> Array:
    """The states after a measurement [n, 4], with ByteTrack's measurement noise: h/20, and 0.1 for the aspect.

    Gain k = cov(·, x) / (var(x) + r); the remaining covariance is what the measurement does not explain.
    """
    x, v, xx, xv, vv = np.moveaxis(states, 2, 0)
    total = xx + _std(x[:, 3], 1 / 20, 1e-1) ** 2
    gain_x, gain_v, off = xx / total, xv / total, measured - x
    return np.stack((x + gain_x * off, v + gain_v * off, xx - gain_x * xx, xv - gain_x * xv, vv - gain_v * xv), axis=2)


_NEW_SPEED = 2.5
"""How far a new object may go in a second, in sizes of its box; the box is extended by that on each side."""

_MOST_GROWTH = 0.5

_LONGEST_STEP_S = 1.0
"""Maximum time by which a gap without frames moves the boxes: had something moved on, there would have been frames."""

MAX_OBJECTS = 500
"""Maximum number of objects followed per frame, those with the highest scores; at most twice as many tracks are
kept.
"""


@dataclass(eq=False)
class _Track:
    """One object over time. `id` is 0 until a second observation confirms it."""

    label: str
    state: Array  # [4, 5], see the module's docstring
    last_box: Array  # [4], where it was last seen
    id: int = 0
    missed_since_s: float | None = None


@dataclass(frozen=True)
class _Stage:
    """How objects are compared with tracks: the overlap that a pair needs, and which boxes are compared, extended by
    what.
    """

    least_iou: float
    where_last_seen: bool = False
    growth: float = 0.0


_PREDICTED, _LOW_SCORES, _WHERE_LAST_SEEN = _Stage(0.2), _Stage(0.5), _Stage(0.3, where_last_seen=True)


def assign(similarity: Array, least: float) -> list[tuple[int, int]]:
    """The pairs (row, column) with the largest sum of similarities; none below `least`, which is positive.

    Similarities below count as 0 before the assignment, not after it: otherwise a pair that is then rejected could
    have prevented another one. The Hungarian method of scipy, O(n³).
    """
    admissible = np.where(similarity >= least, similarity, 0.0)
    rows, columns = linear_sum_assignment(admissible, maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True) if admissible[row, column] > 0]


class Tracker:
    """Multi-object tracking after ByteTrack (Zhang et al., ECCV 2022, arXiv 2110.06864).

    For each frame, in this order, always between objects of the same label:

    1. Objects with a score of at least `high` are assigned to the confirmed tracks, by IoU with the boxes that the
       Kalman filter predicts for the instant.
    2. Objects with a score from `low` to `high` are assigned to the remaining tracks seen in the previous frame.
       A partly hidden object has a low score, and so has a false detection, which is why these begin no track.
    3. The remaining objects of (1) are compared with where the remaining tracks were last seen. An object that
       stopped while it was hidden, or while equal frames were left out, is not where its speed would have taken it
       (observation-centric recovery of OC-SORT, arXiv 2203.14360).
    4. Then with the objects that the previous frame saw for the first time; one seen again is confirmed. Since
       their direction is unknown, boxes are extended by how far they may have gone (buffered IoU, arXiv 2211.14317):
       at 5 frames a second a person walking past is half a width further on, and would not overlap enough.
    5. What is left is a new object.

    Time is the instant of capture in seconds, not a count of frames. A track ends when it has not been seen for more
    than `lost_s` since the first frame that missed it. A gap between frames alone ends nothing, since frames may be
    left out because nothing changed. Sizes and noise are shares of the box's height, x and y fractions of the
    picture.
    """

    def __init__(self, lost_s: float = LOST_S, high: float = 0.5, low: float = 0.1) -> None:
        self._lost_s, self._high, self._low = lost_s, high, low
        self._tracks: list[_Track] = []
        self._last_id = 0
        self._at_s: float | None = None

    def update(self, objects: Sequence[FoundObject], captured_s: float) -> tuple[FoundObject, ...]:
        """The objects of a frame that belong to a confirmed track, in their order, each with its `track`.

        Ids count from 1 in the order of confirmation and are never reused. A box that is empty or not finite is
        skipped. A `captured_s` before the last one counts as the last one.
        """
        before_s = captured_s if self._at_s is None else self._at_s
        now_s = self._at_s = max(captured_s, before_s)
        self._predict(min(now_s - before_s, _LONGEST_STEP_S))
        look = _Look(objects)
        high = [number for number in look.usable if objects[number].score >= self._high]
        low = [number for number in look.usable if self._low <= objects[number].score < self._high]
        confirmed = [track for track in self._tracks if track.id]
        look.match(confirmed, high, _PREDICTED)
        look.match([track for track in confirmed if track.missed_since_s is None], low, _LOW_SCORES)
        look.match(confirmed, high, _WHERE_LAST_SEEN)
        new = _Stage(0.3, growth=min(_NEW_SPEED * (now_s - before_s), _MOST_GROWTH))
        look.match([track for track in self._tracks if not track.id], high, new)
        self._settle(look, now_s)
        self._tracks += [_begun(objects[number]) for number in high if number not in look.track_of]
        if len(self._tracks) > 2 * MAX_OBJECTS:  # those missed for longest go first
            self._tracks.sort(
                key=lambda track: now_s - (now_s if track.missed_since_s is None else track.missed_since_s)
            )
            del self._tracks[2 * MAX_OBJECTS :]
        return tuple(replace(objects[number], track=look.track_of[number].id) for number in sorted(look.track_of))

    def _predict(self, dt_s: float) -> None:
        if not self._tracks or dt_s == 0:
            return
        states = np.stack([track.state for track in self._tracks])
        hidden = [track.missed_since_s is not None for track in self._tracks]
        states[hidden, 2:, 1] = 0.0  # a hidden object keeps its size, as in ByteTrack
        for track, state in zip(self._tracks, predict(states, dt_s), strict=True):
            track.state = state

    def _settle(self, look: _Look, now_s: float) -> None:
        """Correct the tracks that were seen, confirm those seen again, and end those missed for too long."""
        if look.track_of:
            numbers, tracks = sorted(look.track_of), [look.track_of[number] for number in sorted(look.track_of)]
            boxes = look.boxes[numbers]
            states = correct(np.stack([track.state for track in tracks]), as_measured(boxes))
            for track, state, box in zip(tracks, states, boxes, strict=True):
                track.state, track.last_box, track.missed_since_s = state, box, None
                if not track.id:
                    self._last_id += 1
                    track.id = self._last_id
        seen = set(map(id, look.track_of.values()))
        for track in self._tracks:
            if id(track) not in seen and track.missed_since_s is None:
                track.missed_since_s = now_s
        self._tracks = [
            track
            for track in self._tracks
            if track.missed_since_s is None or (track.id and now_s - track.missed_since_s <= self._lost_s)
        ]


class _Look:
    """The objects of one frame, and the tracks they are assigned to: `track_of`, by an object's number."""

    def __init__(self, objects: Sequence[FoundObject]) -> None:
        usable = [number for number, found in enumerate(objects) if has_area(found) and found.score > 0]
        best = sorted(usable, key=lambda number: objects[number].score, reverse=True)
        self.usable = sorted(best[:MAX_OBJECTS])
        self.boxes = np.array([found.box for found in objects], np.float64).reshape(-1, 4)
        self.track_of: dict[int, _Track] = {}
        self._labels = [found.label for found in objects]

    def match(self, tracks: Sequence[_Track], numbers: Sequence[int], stage: _Stage) -> None:
        """Assign the remaining ones of the objects `numbers` to the remaining ones of the tracks."""
        taken = set(map(id, self.track_of.values()))
        free = [track for track in tracks if id(track) not in taken]
        open_ = [number for number in numbers if number not in self.track_of]
        if not free or not open_:
            return
        last = [track.last_box for track in free]
        places = np.stack(last) if stage.where_last_seen else as_boxes(np.stack([track.state for track in free]))
        codes = {label: code for code, label in enumerate(self._labels)}
        of_tracks = np.array([codes.get(track.label, -1) for track in free])
        of_objects = np.array([codes[self._labels[number]] for number in open_])
        overlaps = overlap(_grown(places, stage.growth)[:, None], _grown(self.boxes[open_], stage.growth))
        for row, column in assign(np.where(of_tracks[:, None] == of_objects, overlaps, 0.0), stage.least_iou):
            self.track_of[open_[column]] = free[row]


def _grown(boxes: Array, share: float) -> Array:
    """The boxes [n, 4], extended on each side by that share of their size."""
    around = share * (boxes[:, 2:] - boxes[:, :2])
    return np.hstack((boxes[:, :2] - around, boxes[:, 2:] + around))


def _begun(found: FoundObject) -> _Track:
    box = np.array(found.box, np.float64)
    return _Track(found.label, begin(as_measured(box[None]))[0], box)
