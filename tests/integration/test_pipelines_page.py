"""Runs docs/pipelines.md as a reader would, with a video in place of the camera and a broker of the test's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from tests.faults.scene import until
from tests.integration.pipelines.sinks import brokers
from tests.page_reader import LIMIT_S, ROOT, Block, Reader, blocks, reading
from tests.pipelines_run import running_pipelines, write_agent, write_video
from upwell.tools.demo import digit_data

PAGE = ROOT / "docs" / "pipelines.md"
SHOWN = digit_data.cards(6, seed=7)

pytestmark = [
    pytest.mark.slow,
    brokers.needs_mosquitto,
    pytest.mark.skipif(
        which("mosquitto_sub") is None, reason="mosquitto_sub is missing: apt-get install mosquitto-clients"
    ),
]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reading(tmp_path, links=["shared"]) as reader:
        yield reader


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[brokers.Broker]:
    with brokers.broker(tmp_path, ["allow_anonymous true", "log_type subscribe"]) as broker:
        yield broker


def page_of(folder: Path, port: int) -> list[Block]:
    """The blocks of the page. The camera is a video, which keeps all frames, and the broker has another port."""
    video = write_video(folder / "recording.mp4", digit_data.video(SHOWN))
    text = PAGE.read_text(encoding="utf-8")
    for there, here in (
        ("rtsp://cam-7.local/main", str(video)),
        ("(keeps latest, ", "(keeps all, "),
        ("mqtt://127.0.0.1", f"mqtt://127.0.0.1:{port}"),
        ("mosquitto_sub -t", f"mosquitto_sub -p {port} -t"),
        ("http://127.0.0.1:34125", "http://127.0.0.1:…"),
        ("http://127.0.0.1:35871", "http://127.0.0.1:…"),
    ):
        assert there in text
        text = text.replace(there, here)
    return blocks(text)


def test_the_page_does_what_it_says(reader: Reader, broker: brokers.Broker, tmp_path: Path) -> None:
    page = page_of(tmp_path, broker.port)
    assert {block.value for block in page} >= {"pipelines.yaml", "listener", "pipeline"}
    log = tmp_path / "broker" / "log"
    for block in page:
        if block.value == "pipeline":
            until(lambda: "site/#" in log.read_text(), LIMIT_S)  # else the video may be over before anybody listens
        reader.do(block)
    first, *_ = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(first)["sequence"] == 1


def test_what_the_page_s_policy_keeps_here_is_in_the_file_and_not_at_the_broker(
    broker: brokers.Broker, tmp_path: Path
) -> None:
    files = {block.value: block.text for block in page_of(tmp_path, broker.port) if block.key == "title"}
    agent = write_agent(tmp_path)
    (tmp_path / "policy.yaml").write_text(files["policy.yaml"])
    text = files["pipelines.yaml"].replace("events.jsonl", str(tmp_path / "belt.jsonl"))
    with brokers.subscriber(broker.port) as subscriber:
        with running_pipelines(tmp_path, agent, text) as it:
            it.wait()
        subscriber.wait(lambda: subscriber.heard[-1].body == b'{"status": "stopped"}')
    assert Counter(event["event"] for event in it.events("belt")) == {"passed": 6, "placed": 2}
    assert Counter(message.topic for message in subscriber.events) == {"site/belt/passed": 6}
