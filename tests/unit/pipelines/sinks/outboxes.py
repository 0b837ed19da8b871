"""An outbox in a folder of a test, messages, and a sink that does what it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from upwell.pipelines.sinks.base import Message, Sink
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits

FAST = OutboxLimits(first_pause_s=0.01, longest_pause_s=0.05)
WAIT_S = 20.0


def message(number: int, pipeline: str = "dock", *, padding_bytes: int = 0, picture: bytes = b"") -> Message:
    """A message that its number tells from others."""
    body = {"id": f"{pipeline}-{number}", "sequence": number, "captured_unix_s": 1.7e9 + number}
    if padding_bytes:
        body["padding"] = "x" * padding_bytes
    return Message(
        key=f"{pipeline}-{number}",
        pipeline=pipeline,
        event="count",
        sequence=number,
        body=json.dumps(body).encode(),
        picture=picture,
        model="people",
        tags={"camera": "7"},
    )


class RecordingSink:
    """Remembers what it was given. Before that it calls `behaviour`, which may raise."""

    def __init__(self, name: str = "recording", *, leaves_device: bool = False) -> None:
        self.name = name
        self.leaves_device = leaves_device
        self.behaviour: Callable[[Sequence[Message]], None] = lambda _: None
        self.taken: list[Message] = []
        self.closed = threading.Event()
        self.called = threading.Event()

    @property
    def keys(self) -> list[str]:
        """Of what it has taken, in order."""
        return [one.key for one in self.taken]

    def deliver(self, messages: Sequence[Message]) -> None:
        """Take these."""
        self.called.set()
        self.behaviour(messages)
        self.taken += messages

    def close(self) -> None:
        """Note it."""
        self.closed.set()


@contextmanager
def outbox(
    folder: Path,
    sinks: Mapping[str, Sequence[Sink]],
    limits: OutboxLimits = FAST,
    may_send: Callable[[Message], bool] = lambda _: True,
) -> Iterator[Outbox]:
    """An outbox, closed at the end."""
    found = Outbox(folder / "outbox.db", sinks, limits, may_send)
    try:
        yield found
    finally:
        found.close()
