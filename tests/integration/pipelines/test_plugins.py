"""Sources and sinks of other packages, by their entry points: what they do wrong stays with them."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scene import until
from tests.pipelines_run import LIMIT_S, MadeSource, pipelines_text, running_pipelines, write_agent
from upwell.pipelines.frame import Frame
from upwell.pipelines.run import pipeline_runner
from upwell.pipelines.sinks.base import Message
from upwell.pipelines.sources.base import Source
from upwell.tools.demo import digit_data

FRAMES = 6
SEEN: Mapping[str, Any] = {"steps": [], "events": [{"name": "seen", "on": "frame"}]}
delivered: list[Message] = []
let_go = threading.Event()


class FailingSink:
    """Fails as nobody expects, a few times, and then takes everything."""

    name = "failing"
    leaves_device = False

    def __init__(self, *, times: int) -> None:
        self._left = times

    def deliver(self, messages: Sequence[Message]) -> None:
        if self._left:
            self._left -= 1
            raise KeyError("a defect of somebody else")
        delivered.extend(messages)

    def close(self) -> None:
        raise RuntimeError("another one")


class HangingSource(MadeSource):
    """Comes back from `next` when the test lets it, whatever time it was given, closed or not."""

    def next(self, timeout_s: float) -> Frame | None:
        let_go.wait()
        return super().next(timeout_s)


class StuckSource(MadeSource):
    """Cannot be closed."""

    def close(self) -> None:
        super().close()
        raise RuntimeError("the cable is gone")


def made(options: Mapping[str, Any]) -> Source:
    """The entry point `made`."""
    pictures = [next(digit_data.video(digit_data.cards(1, seed=1)))] * FRAMES
    if options.get("sticks"):
        return StuckSource(pictures)
    return (HangingSource if options.get("hangs") else MadeSource)(pictures)


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of entry points that lead here."""
    there = tmp_path / "site" / "others-1.0.dist-info"
    there.mkdir(parents=True)
    (there / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    groups = f"[upwell.sources]\nmade = {__name__}:made\n[upwell.sinks]\nfailing = {__name__}:FailingSink\n"
    (there / "entry_points.txt").write_text(groups)
    monkeypatch.syspath_prepend(str(there.parent))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[made.__module__])
    importlib.invalidate_caches()
    delivered.clear()
    let_go.clear()


def test_a_sink_that_raises_is_given_the_same_again_and_delays_no_other(tmp_path: Path) -> None:
    sinks = [{"plugin": {"name": "failing", "options": {"times": 3}}}, {"jsonl": str(tmp_path / "dock.jsonl")}]
    text = pipelines_text(tmp_path, dock={"source": {"plugin": {"name": "made"}}, **SEEN, "sinks": sinks})
    with running_pipelines(tmp_path, write_agent(tmp_path), text) as it:
        until(lambda: len(it.events("dock")) == FRAMES, LIMIT_S)
        until(lambda: it.runner.health().problems == ["the sink failing accepts no events: KeyError"], LIMIT_S)
        until(lambda: len(delivered) == FRAMES, LIMIT_S)
        until(lambda: it.runner.health().problems == [], LIMIT_S)
    assert [message.sequence for message in delivered] == [event["sequence"] for event in it.events("dock")]
    assert [message.key for message in delivered] == [event["id"] for event in it.events("dock")]


def test_a_source_that_hangs_holds_up_no_other_pipeline_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline_runner, "_HANGING_S", 0.1)
    hanging = {"source": {"plugin": {"name": "made", "options": {"hangs": True}}}, **SEEN}
    text = pipelines_text(tmp_path, hanging=hanging, dock={"source": {"plugin": {"name": "made"}}, **SEEN})
    with running_pipelines(tmp_path, write_agent(tmp_path), text) as it:
        until(lambda: len(it.events("dock")) == FRAMES, LIMIT_S)
        assert it.runner.health().facts["hanging"]["captured"] == 0
        began_s = time.monotonic()
    assert time.monotonic() - began_s < LIMIT_S / 2
    assert "pipeline hanging: the source or a step hangs; the pipeline is abandoned" in caplog.text
    let_go.set()
    until(lambda: not any("hanging" in one.name for one in threading.enumerate()), LIMIT_S)


def test_a_source_that_cannot_be_closed_keeps_nothing_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stuck = {"source": {"plugin": {"name": "made", "options": {"sticks": True}}}, **SEEN}
    text = pipelines_text(tmp_path, stuck=stuck, dock={"source": {"plugin": {"name": "made"}}, **SEEN})
    with running_pipelines(tmp_path, write_agent(tmp_path), text) as it:
        it.wait()
    assert caplog.text.count("pipeline stuck: the source cannot be closed: RuntimeError") == 1
    assert len(it.events("stuck")) == len(it.events("dock")) == FRAMES
    assert it.runner.pipelines["dock"].is_stopped
