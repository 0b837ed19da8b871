"""What is published to a topic of MQTT 5 as frames: a picture a message, or samples of a series, cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import MqttPicturesSettings, SeriesTopicSettings
from upwell.pipelines.sources.capture_time import FrameRate, published_capture_time
from upwell.pipelines.sources.mqtt_topic import Arrived, MqttTopic, PendingFrame
from upwell.pipelines.sources.samples import samples_of
from upwell.pipelines.sources.windows import SampleWindow, Windows
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature import image_codec

CAPTURED = "captured_unix_s"
"""The user property that says when the picture was captured, in seconds since 1970 (UTC), as a decimal number."""


class MqttPictures(MqttTopic[bytes]):
    """A `Source` of pictures, a message each.

    The size of a picture is read from its header before it is decoded, in the thread that takes it.
    """

    COMES_AGAIN = True

    def __init__(self, settings: MqttPicturesSettings) -> None:
        self._max_pixels = settings.max_pixels
        self._rate = FrameRate(settings.fps)
        super().__init__(settings)

    def _arrived(self, message: Arrived) -> Sequence[tuple[bytes, float, float]]:
        said = message.properties.get(CAPTURED)
        captured_s, unix_s = published_capture_time(said, message.arrival_s, message.arrival_unix_s)
        return [(message.body, captured_s, unix_s)] if self._rate.keeps(max(captured_s, self._captured_s)) else []

    def _frame(self, waiting: PendingFrame[bytes]) -> Frame | None:
        try:
            pixels = image_codec.decode(waiting.content, "rgb", self._max_pixels)
        except InvalidRequest as error:
            with self._change:
                self._count_undecodable(str(error))
            return None
        luma = image_codec.recolored(pixels, "gray")[:, :, 0]
        height, width = luma.shape
        with self._change:
            self._is_readable = True
            number = self._status.captured + 1
            self._status = replace(self._status, given=self._status.given + 1, width=width, height=height)
        return Frame(number, waiting.captured_s, waiting.captured_unix_s, pixels, luma)


class MqttSeries(MqttTopic[SampleWindow]):
    """A `Source` of windows of a series: a message has a sample as an object of JSON, or several as a list.

    A window is captured at the time of its last point, as far as `published_capture_time` believes that; else when the
    message came that completes it. A message that is sent again adds nothing, as its samples are not later than what is
    there. One that cannot be read counts as undecodable, and leaves a gap.
    """

    COMES_AGAIN = False

    def __init__(self, settings: SeriesTopicSettings) -> None:
        self._shape = settings.shape
        self._windows = Windows(settings.shape.cut)
        super().__init__(settings.topic)

    def _arrived(self, message: Arrived) -> Sequence[tuple[SampleWindow, float, float]]:
        samples = samples_of(message.body, self._shape)
        self._is_readable = True
        found = [window for sample in samples for window in self._windows.take(*sample)]
        whole = [window for window in found if self._shape.fills or not window.missing]
        self._status = replace(self._status, gap=self._status.gap + len(found) - len(whole))
        return [
            (one, *published_capture_time(str(one.end_s), message.arrival_s, message.arrival_unix_s)) for one in whole
        ]

    def _frame(self, waiting: PendingFrame[SampleWindow]) -> Frame | None:
        with self._change:
            number = self._status.captured + 1
            self._status = replace(self._status, given=self._status.given + 1)
        captured = (waiting.captured_s, waiting.captured_unix_s)
        return Frame.of_window(number, captured, waiting.content.values, waiting.content.missing)
