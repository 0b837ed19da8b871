"""Videos and cameras: one decoder process per source, watched, and restarted while the source is lost."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import SourceEnded, SourceState, SourceStatus
from upwell.pipelines.sources.decoder_process import DecoderJob, DecoderProcess
from upwell.pipelines.sources.frame_slot import WHOLE, Size, SlotUnusable, Wanted
from upwell.pipelines.sources.gstreamer import command_of
from upwell.pipelines.sources.source_settings import CameraSettings, Patience, VideoSettings, is_live, shown_address
from upwell.shared.errors import ConfigError
from upwell.shared.platform.background_thread import BackgroundThread

_START_S = 30.0
"""Time after which a decoder that has not started to connect counts as hung."""

_LOOK_S = 0.25
"""How often a silent decoder is checked."""

_ANALYZED_US = "2000000"
"""Maximum duration of a stream read to detect its format (µs of stream time)."""

_MAX_EXPLAINED = 300
_OVER = "over"

_LISTENING = re.compile(r"udp:|srt:.*[?&]mode=(listener|rendezvous)(&|$)")
"""Addresses of a port of this machine, at which the stream arrives."""

_NETWORK = "tcp,udp,tls,rtp,srtp,http,https,httpproxy,crypto,data,rtmp,rtmps,rtmpt,rtmpe,ffrtmphttp,ffrtmpcrypt,srt"
"""The protocols that a stream may refer to: a remote playlist must not open local files."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """A picture in the slot: the child's number of the frame, its times in seconds, its size in pixels.

    `rgb_size` is that of the RGB data, perhaps smaller. Both planes are stored `turns` times 90 degrees clockwise
    from their upright position.
    """

    number: int
    captured_s: float
    unix_s: float
    size: Size
    rgb_size: Size
    media_s: float | None = None
    turns: int = 0


@dataclass
class Connection:
    """One decoder from its start to its end, and the state of the frames between it and its reader.

    `taken` counts the pictures that came from it. While nobody takes its pictures the decoder pauses, and that does
    not count as silence of the source: `blocked_s` is the total time of such pauses, `blocked_at_change_s` that at
    its last change.
    """

    decoder: DecoderProcess
    first_number: int
    began_s: float
    opening_s: float = 0.0
    live_s: float = 0.0
    arrival: Arrival | None = None
    is_asked: bool = False
    taken: int = 0
    superseded: int = 0
    blocked_since_s: float | None = None
    blocked_s: float = 0.0
    changed_s: float = 0.0
    blocked_at_change_s: float = 0.0
    decoded_at_change: int = 0

    def ask(self, now_s: float, wanted: Wanted) -> None:
        """Request such a picture, if none is requested yet and the slot is free."""
        if self.is_asked or self.arrival is not None:
            return
        if self.blocked_since_s is not None:
            self.blocked_s += now_s - self.blocked_since_s
            self.blocked_since_s = None
        self.is_asked = True
        self.decoder.ask(wanted)

    def arrived(self, arrival: Arrival, now_s: float) -> None:
        """The requested picture is in the slot."""
        self.arrival, self.is_asked = arrival, False
        self.taken += 1
        self.blocked_since_s = now_s

    def replace_stale(self) -> None:
        """Drop the picture in the slot if a newer frame waits behind it."""
        counts = self.decoder.counts
        if self.arrival is not None and counts.decoded - counts.superseded > self.taken:
            self.arrival = None
            self.superseded += 1

    def silence(self, patience: Patience, now_s: float, *, may_block: bool) -> str:
        """What is wrong with the decoder's frames; empty if nothing is."""
        counts = self.decoder.counts
        if not self.opening_s:
            return "the decoder does not start" if now_s - self.began_s > _START_S else ""
        if counts.changed_s == 0:
            return f"no frame within {patience.open_s:g} s" if now_s - self.opening_s > patience.open_s else ""
        blocked_s = 0.0
        if may_block:
            blocked_s = self.blocked_s + (0.0 if self.blocked_since_s is None else now_s - self.blocked_since_s)
        if counts.changed_s != self.changed_s:
            self.changed_s, self.blocked_at_change_s, self.decoded_at_change = (
                counts.changed_s,
                blocked_s,
                counts.decoded,
            )
        if now_s - counts.changed_s - (blocked_s - self.blocked_at_change_s) <= patience.silent_s:
            return ""
        if counts.decoded > self.decoded_at_change:
            return f"the same picture for {patience.silent_s:g} s"
        return f"no frame for {patience.silent_s:g} s"


class VideoSource:
    """A `Source` of whatever PyAV opens.

    One thread starts the decoder, receives its messages, watches it and restarts it. `_change` guards all mutable
    state. A picture is copied out of shared memory only when somebody takes it.

    `wanted` is called for each picture requested and says how to shrink a larger one, `WHOLE` for not at all. The
    decoder does that together with the colour conversion while the reader is busy, and does not even copy what nobody
    wants. A picture already requested keeps the size that `wanted` gave for it.

    A frame of a file counts as captured when it is taken.
    """

    def __init__(self, settings: VideoSettings | CameraSettings, wanted: Callable[[], Wanted] = lambda: WHOLE) -> None:
        self._wanted = wanted
        self._job, self._patience = job_of(settings), settings.patience
        self._shown = shown_address(self._job.address)
        self._change = threading.Condition()
        self._status = SourceStatus(SourceState.CONNECTING)
        self._connection: Connection | None = None
        self._rival: Connection | None = None
        self._first_number = 1
        self._is_closed = False
        self._thread = BackgroundThread("pipeline source", self._run, lambda: self._is_closed)
        self._thread.start()

    def next(self, timeout_s: float) -> Frame | None:
        """The next frame; None if none came in that time. Raises `SourceEnded`."""
        until_s = time.monotonic() + timeout_s
        with self._change:
            while True:
                connection = self._connection
                if self._is_closed or (connection is None and self._status.state is SourceState.ENDED):
                    why = self._status.explained
                    raise SourceEnded(f"{self._shown} has ended" + (f": {why}" if why else ""))
                if connection is not None:
                    if not self._job.keeps_all:
                        connection.replace_stale()
                    if connection.arrival is not None and (frame := self._taken(connection, connection.arrival)):
                        return frame
                    connection.ask(time.monotonic(), self._wanted())
                if (left_s := until_s - time.monotonic()) <= 0:
                    return None
                self._change.wait(left_s)

    def done(self, frame: Frame) -> None:
        """Do nothing."""

    @property
    def status(self) -> SourceStatus:
        """The current state."""
        with self._change:
            if self._connection is None:
                return self._status
            counts = self._connection.decoder.counts
            return replace(
                self._status,
                superseded=self._status.superseded + counts.superseded + self._connection.superseded,
                undecodable=self._status.undecodable + counts.undecodable,
            )

    def close(self) -> None:
        """End the decoder, and count what it had captured. Harmless twice."""
        with self._change:
            self._is_closed = True
            for connection in (self._connection, self._rival):
                if connection is not None:
                    connection.decoder.kill()
            self._change.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._change:
            self._status = replace(self._status, state=SourceState.ENDED)

    def _taken(self, connection: Connection, arrival: Arrival) -> Frame | None:
        """The frame of the picture in the slot, which is then free; None if no such picture can be there."""
        try:
            pixels, luma = connection.decoder.read(arrival.size, arrival.rgb_size, arrival.turns)
        except SlotUnusable:
            connection.decoder.kill()
            return None
        connection.arrival = None
        height, width = luma.shape
        self._status = replace(self._status, given=self._status.given + 1, width=width, height=height)
        if self._job.keeps_all:
            connection.ask(time.monotonic(), self._wanted())
        self._change.notify_all()
        number = connection.first_number + arrival.number - 1
        # The decoder is ahead of the reader of a file by some frames, which are not late for that.
        captured = (arrival.captured_s, arrival.unix_s) if self._job.is_live else (time.monotonic(), time.time())
        return Frame(number, *captured, pixels, luma, media_s=arrival.media_s)

    def _run(self) -> None:
        pauses = Pauses(self._patience)
        try:
            while not self._is_closed and self._status.state is not SourceState.ENDED:
                live_s = self._connect_once()
                if not self._job.is_live:
                    return
                pause_s = 0.0 if self._rival is not None else pauses.next_s(live_s)
                with self._change:
                    self._change.wait_for(lambda: self._is_closed, pause_s)
        finally:
            self._end_rival()

    def _connect_once(self) -> float:
        """Run one decoder to its end, perhaps a rival's; return for how many seconds it was live."""
        with self._change:
            connection, self._rival = self._rival, None
            if connection is None:
                try:
                    connection = Connection(DecoderProcess(self._job), 0, time.monotonic())
                except OSError as error:  # out of descriptors or memory
                    self._over(f"the decoder cannot be started: {error.strerror}")
                    return 0.0
            connection.first_number = self._first_number
            self._connection = connection
            if self._job.keeps_all:
                connection.ask(time.monotonic(), self._wanted())
            self._change.notify_all()
        why = "the source failed"
        try:
            why = self._follow(connection)
        finally:
            self._bury(connection, why)
        return time.monotonic() - connection.live_s if connection.live_s else 0.0

    def _follow(self, connection: Connection) -> str:
        """Receive until the decoder ends or must be ended; return why, empty at the end of a file."""
        look_s = min(_LOOK_S, self._patience.silent_s / 4)
        while not self._is_closed:
            messages = connection.decoder.receive(look_s)
            if messages is None:
                return ""  # the process ended without a message: `_bury` says how
            now_s = time.monotonic()
            with self._change:
                for message in messages:
                    if "ended" in message:
                        return self._ended(connection, str(message["ended"]))
                    self._heard(connection, message, now_s)
                if not connection.live_s and connection.decoder.counts.changed_s:
                    connection.live_s = now_s
                    self._set_state(SourceState.LIVE)
                if self._job.is_live and (
                    why := connection.silence(self._patience, now_s, may_block=self._job.keeps_all)
                ):
                    return why
            if self._job.is_live and self._is_beaten(connection, now_s):
                return f"no frame within {now_s - connection.opening_s:.1f} s, but another connection has some"
        return "closed"

    def _is_beaten(self, connection: Connection, now_s: float) -> bool:
        """Try another connection beside one that delivers nothing; whether that one delivered a frame."""
        rival_s, rival = self._patience.rival_s, self._rival
        if is_exclusive(self._job):  # another one could only fail, again and again
            return False
        if connection.live_s or not connection.opening_s or now_s - connection.opening_s < rival_s:
            self._end_rival()
            return False
        if rival is None:
            with suppress(OSError), self._change:  # out of descriptors or memory: tried again
                if not self._is_closed:
                    self._rival = Connection(DecoderProcess(self._job), 0, now_s)
            return False
        messages = rival.decoder.receive(0)
        with self._change:
            for message in messages or ():
                self._heard(rival, message, now_s)
        if rival.decoder.counts.changed_s:
            return True
        hangs = now_s - (rival.opening_s or now_s) > rival_s or now_s - rival.began_s > _START_S
        if hangs or messages is None or any("ended" in message for message in messages):
            self._end_rival()
        return False

    def _end_rival(self) -> None:
        rival = self._rival
        if rival is not None:
            rival.decoder.end()
            with self._change:
                self._rival = None
                self._settle(rival)

    def _heard(self, connection: Connection, message: dict[str, Any], now_s: float) -> None:
        if "opening" in message:
            connection.opening_s = now_s
        elif "decoder" in message:
            if message["instead"]:
                _log.warning("source %s: %s; %s decodes", self._shown, message["instead"], message["decoder"])
            self._status = replace(self._status, decoder=str(message["decoder"]))
        elif "frame" in message:
            arrival = Arrival(
                int(message["frame"]), float(message["captured_s"]), float(message["unix_s"]),
                (int(message["width"]), int(message["height"])), (int(message["pixels"][0]), int(message["pixels"][1])),
                message["media_s"], int(message["turns"]),
            )  # fmt: skip
            connection.arrived(arrival, now_s)
            self._change.notify_all()

    def _ended(self, connection: Connection, why: str) -> str:
        """The decoder has sent everything. The last picture of a file is still to be taken."""
        if not self._job.is_live:
            if not connection.live_s and connection.decoder.counts.decoded:
                connection.live_s = time.monotonic()
                self._set_state(SourceState.LIVE)
            self._change.wait_for(lambda: connection.arrival is None or self._is_closed)
            return why or _OVER
        return why

    def _bury(self, connection: Connection, why: str) -> None:
        """End the decoder, give each of its frames its fate, and record the state of the source."""
        signal_number = connection.decoder.end()
        if not why:
            why = f"the decoder was killed by signal {signal_number}" if signal_number else "the decoder died"
        with self._change:
            self._settle(connection)
            self._connection = None
            self._over(why)

    def _settle(self, connection: Connection) -> None:
        """Count the frames of a decoder that has ended, and release its resources."""
        counts = connection.decoder.counts
        given = connection.taken - connection.superseded - (connection.arrival is not None)
        superseded = counts.superseded + connection.superseded
        status = self._status
        self._status = replace(
            status,
            superseded=status.superseded + superseded,
            undecodable=status.undecodable + counts.undecodable,
            source_lost=status.source_lost + counts.decoded - superseded - given,
        )
        self._first_number += counts.decoded + counts.undecodable
        connection.decoder.free()

    def _over(self, why: str) -> None:
        """There is no decoder now: the source has ended, or is lost and will be tried again."""
        if self._is_closed or (not self._job.is_live and why == _OVER):
            self._set_state(SourceState.ENDED)
        elif not self._job.is_live:
            self._set_state(SourceState.ENDED, why)
        else:
            self._status = replace(self._status, reconnects=self._status.reconnects + 1)
            self._set_state(SourceState.LOST, why)
        self._change.notify_all()

    def _set_state(self, state: SourceState, explained: str = "") -> None:
        before, explained = self._status, explained.replace(self._job.address, self._shown)[:_MAX_EXPLAINED]
        self._status = replace(before, state=state, explained=explained)
        if (before.state, before.explained) == (state, explained):
            return
        if state is SourceState.LOST:
            _log.warning("source %s is lost: %s", self._shown, explained)
        else:
            _log.info("source %s is %s%s", self._shown, state, f": {explained}" if explained else "")


class Pauses:
    """The pauses before retries: p_n = u · min(first · 2^n, longest), u uniform in [0.5, 1].

    After a connection that was live for longer than the longest pause, n restarts at 0. u comes from `Random`.
    """

    def __init__(self, patience: Patience, source_of_chance: random.Random | None = None) -> None:
        self._patience = patience
        self._random = source_of_chance or random.Random()  # noqa: S311 (spreads cameras in time, hides nothing)
        self._pause_s = patience.first_pause_s

    def next_s(self, live_for_s: float) -> float:
        """The pause after a connection that was live for `live_for_s`, 0 if it never was."""
        if live_for_s > self._patience.longest_pause_s:
            self._pause_s = self._patience.first_pause_s
        pause_s = min(self._pause_s, self._patience.longest_pause_s)
        self._pause_s = 2 * pause_s
        return pause_s * self._random.uniform(0.5, 1.0)


def is_exclusive(job: DecoderJob) -> bool:
    """Whether one decoder alone can have the source: a camera of this machine, or a port on which it listens."""
    return job.format == "v4l2" or _LISTENING.match(job.address) is not None


def job_of(settings: VideoSettings | CameraSettings) -> DecoderJob:
    """The decoder's job. Raises `ConfigError` for an unusable command line."""
    if " " not in settings.decoder:
        return _own_job(settings)
    try:
        command = command_of(settings.decoder)
    except ValueError as error:
        raise ConfigError.at(None, str(error), "decoder") from None
    return replace(_own_job(replace(settings, decoder="")), command=command)


def _own_job(settings: VideoSettings | CameraSettings) -> DecoderJob:
    if isinstance(settings, CameraSettings):
        options = {"framerate": f"{settings.fps:g}"} if settings.fps else {}
        return DecoderJob(
            settings.device, True, settings.keep == "all", settings.max_pixels, settings.fps, settings.decoder,
            "v4l2", options,
        )  # fmt: skip
    live = is_live(settings.address)
    keeps_all = (settings.keep or ("latest" if live else "all")) == "all"
    options = {"protocol_whitelist": "file,crypto,data"}
    if live:
        scheme = settings.address.partition(":")[0].lower()
        options = {"protocol_whitelist": f"{scheme},{_NETWORK}", "rtsp_transport": "tcp"}
        # Do not wait for 20 frames to learn the rate, which follows from their times.
        options |= {"fpsprobesize": "0", "analyzeduration": _ANALYZED_US}
        if not keeps_all:
            options["fflags"] = "nobuffer"  # the data read to detect the format is outdated by then
    return DecoderJob(
        settings.address, live, keeps_all, settings.max_pixels, settings.fps, settings.decoder, "", options
    )
