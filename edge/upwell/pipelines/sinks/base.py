"""The interface of a sink, and the messages that it gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from upwell.shared.errors import UpwellError


@dataclass(frozen=True)
class Message:
    """An event of a pipeline, as sinks get it.

    `key` is the event's id and the same in each delivery, so that a receiver can tell a duplicate. `sequence` rises
    within the pipeline. `body` is one JSON object in UTF-8, `picture` a JPEG of the whole frame, with what was found
    drawn in, if the pipeline has a sink `pictures`; no picture leaves the device. `model` and `tags` are what the
    policy is asked with whether the event may leave the device (see `requests_behind`).
    """

    key: str
    pipeline: str
    event: str
    sequence: int
    body: bytes
    picture: bytes = b""
    model: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


REQUESTS_TAG = "requests"
"""The tag of a message that holds the model and tags of each of its requests, as JSON."""

JudgedRequest: TypeAlias = tuple[str, Mapping[str, str]]
"""The model and tags of a request."""


def requests_behind(model: str, tags: Mapping[str, str]) -> Sequence[JudgedRequest]:
    """The requests behind a message with this model and these tags. Without `REQUESTS_TAG` they are those of one."""
    if REQUESTS_TAG not in tags:
        return [(model, tags)]
    return [(model, of_model) for model, of_model in json.loads(tags[REQUESTS_TAG])]


class SinkUnavailable(UpwellError):
    """The sink cannot take messages now.

    It has taken the first `taken` of them. The others are given to it again, no sooner than after `retry_after_s`.
    """

    def __init__(self, text: str, *, taken: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.taken = taken
        self.retry_after_s = retry_after_s


class Poisonous(UpwellError):
    """The sink can never take the message at `index`.

    It has taken those before it; the others are given to it again.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


class Sink(Protocol):
    """Takes messages in the order of each pipeline, from one thread. Its progress is stored under its `name`.

    `leaves_device`: messages go to another machine. They come without pictures, which show more than the event tells
    of, and the policy is asked right before each `deliver`, which therefore gets one message at a time. A sink that
    sends all that it is given before it waits gets several, if it has an attribute `sends_together` that is true. One
    that may have to wait before it sends does so in a method `get_ready`, which is called before the policy is asked.
    """

    name: str
    leaves_device: bool

    def deliver(self, messages: Sequence[Message]) -> None:
        """Deliver these messages. When this returns, they have arrived and would survive the end of this process.

        Returns within a timeout of its own. Raises `SinkUnavailable`, and `Poisonous` for one message.
        """
        ...

    def close(self) -> None:
        """Release connections and threads."""
        ...
