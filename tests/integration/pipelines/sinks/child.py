"""A small program that puts events until it is killed, and delivers them. Argument: a JSON object, `Orders`.

Before an event is put it says `put PIPELINE SEQUENCE KEY`, and `kept KEY` once `put` has returned: what is there was
promised. It ends when all are delivered. For each event it waits for leave, a byte of its input; where that is at its
end, it goes on by itself.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.unit.pipelines.sinks.outboxes import FAST
from upwell.pipelines.sinks.base import Message
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.sink_opening import open_sinks
from upwell.pipelines.sinks.sink_settings import JsonlSettings, MqttSettings, SinkSettings, WebhookSettings

PIPELINES = ("dock", "gate")
WAIT_S = 60.0


@dataclass(frozen=True)
class Orders:
    """Where events go, and how many of each pipeline there are to be: the sequence of the last one."""

    folder: str
    last: int
    webhook_port: int = 0
    mqtt_port: int = 0

    def encode(self) -> str:
        """As an argument."""
        return json.dumps(asdict(self))

    @property
    def sinks(self) -> list[SinkSettings]:
        """Those that are there."""
        found: list[SinkSettings] = [JsonlSettings(Path(self.folder, "events.jsonl"))]
        if self.webhook_port:
            found.append(WebhookSettings(f"http://127.0.0.1:{self.webhook_port}/"))
        if self.mqtt_port:
            found.append(MqttSettings(f"mqtt://127.0.0.1:{self.mqtt_port}", "{pipeline}/{event}"))
        return found


def event(pipeline: str, sequence: int) -> Message:
    """An event with an id that nobody else has."""
    key = uuid.uuid4().hex
    body = json.dumps({"id": key, "pipeline": pipeline, "sequence": sequence}).encode()
    return Message(key, pipeline, "count", sequence, body)


def main(orders: Orders) -> None:
    """Put events and deliver them."""
    sinks = open_sinks(dict.fromkeys(PIPELINES, orders.sinks))
    box = Outbox(Path(orders.folder, "outbox.db"), sinks, FAST, lambda _: True)
    sequences = {pipeline: box.next_sequence(pipeline) for pipeline in PIPELINES}
    while min(sequences.values()) <= orders.last:
        for pipeline, sequence in sequences.items():
            if sequence <= orders.last:
                os.read(0, 1)
                message = event(pipeline, sequence)
                print("put", pipeline, sequence, message.key, flush=True)
                box.put([message])
                print("kept", message.key, flush=True)
                sequences[pipeline] = box.next_sequence(pipeline)
    assert box.flush(WAIT_S), box.counts()
    box.close()
    print("idle", flush=True)


if __name__ == "__main__":
    main(Orders(**json.loads(sys.argv[1])))
