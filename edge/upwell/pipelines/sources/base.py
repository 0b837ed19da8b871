"""The interface of all sources."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from upwell.pipelines.frame import Frame
from upwell.shared.errors import UpwellError


class SourceEnded(UpwellError):
    """No more frames will come: the file or the folder has ended, or the source was closed."""


class SourceState(str, Enum):
    """The state of a source."""

    CONNECTING = "connecting"
    """Opened, but no frame yet."""
    LIVE = "live"
    """Delivering frames."""
    LOST = "lost"
    """Not delivering; retried indefinitely."""
    ENDED = "ended"
    """Ended or closed."""

    def __str__(self) -> str:
        """The state as it stands in logs and metrics."""
        return str(self.value)


@dataclass(frozen=True)
class SourceStatus:
    """The state of a source, and the fate of each of its frames.

    `explained` says why it is lost, without credentials; otherwise it is empty. `decoder` is the one in use, such as
    `h264`, `h264_v4l2m2m` or `folder`; empty before the first connection. `width` and `height` are those of the last
    picture in pixels, 0 before there is one. `reconnects` counts how often it was lost and tried again.

    Every captured frame has one fate: captured = given + superseded + undecodable + gap + source_lost, where `given`
    counts those that `next` returned. `gap` counts windows of a series that were left out because a part of them is
    missing. `source_lost` counts frames that were captured and never given, because the source was lost or closed
    first. A waiting frame counts as captured once its fate is known.
    """

    state: SourceState
    explained: str = ""
    decoder: str = ""
    width: int = 0
    height: int = 0
    given: int = 0
    superseded: int = 0
    undecodable: int = 0
    gap: int = 0
    source_lost: int = 0
    reconnects: int = 0

    @property
    def captured(self) -> int:
        """The number of captured frames."""
        return self.given + self.superseded + self.undecodable + self.gap + self.source_lost


class Source(Protocol):
    """A source of frames. Call `next` and `done` from one thread, `status` and `close` from any."""

    def next(self, timeout_s: float) -> Frame | None:
        """The next frame, the newest one or in order, as the source keeps them; None if none came in that time.

        Raises `SourceEnded` if no frame will ever come again. A lost source has not ended: it may come back.
        """
        ...

    def done(self, frame: Frame) -> None:
        """The frame is answered, or needs no answer: a folder may move its file, other sources do nothing."""
        ...

    @property
    def status(self) -> SourceStatus:
        """The current state."""
        ...

    def close(self) -> None:
        """Leave no process, descriptor or memory behind; `next` raises `SourceEnded` from then on. Harmless twice."""
        ...
