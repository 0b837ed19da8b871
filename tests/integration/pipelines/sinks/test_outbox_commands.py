"""`upwell pipeline outbox` on an outbox whose sink refused events, with and without a process that delivers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.in_process import InProcess
from tests.unit.pipelines.sinks.outboxes import WAIT_S, RecordingSink, message, outbox
from upwell.pipelines.sinks.base import Message, Poisonous


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(monkeypatch, capsys)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text("version: 1\nagent: {state_dir: .}\nmodels: {m: {edge: {file: m.onnx}}}\n")
    return path


def refuse(_: Sequence[Message]) -> None:
    raise Poisonous(0, "no such topic")


def refused(folder: Path, count: int = 3) -> RecordingSink:
    """Let a sink refuse so many events."""
    sink = RecordingSink(leaves_device=True)
    sink.behaviour = refuse
    with outbox(folder, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(count)])
        assert box.flush(WAIT_S)
    return sink


def test_what_is_set_aside_is_listed_sent_again_and_dropped(
    tmp_path: Path, config: Path, in_process: InProcess
) -> None:
    refused(tmp_path)
    listed = json.loads(in_process("pipeline", "outbox", "list", "-c", config, "--json").out)["events"]
    assert [(one["id"], one["error"], one["retry"]) for one in listed] == [
        (f"dock-{number}", "no such topic", False) for number in range(3)
    ]
    assert in_process("pipeline", "outbox", "retry", "dock-0", "dock-2", "-c", config).code == 0
    assert "dock-2  dock      count  recording" in in_process("pipeline", "outbox", "list", "-c", config).out
    sink, asked = RecordingSink(leaves_device=True), list[Message]()
    with outbox(tmp_path, {"dock": [sink]}, may_send=lambda one: not asked.append(one)) as box:  # type: ignore[func-returns-value]  # and yes
        box.put([message(7)])
        assert box.flush(WAIT_S)
        while len(sink.taken) < 3:
            assert sink.called.wait(WAIT_S)
    assert sorted(sink.keys) == ["dock-0", "dock-2", "dock-7"]
    assert sorted(asked, key=lambda one: one.key) == [message(0), message(2), message(7)]
    dropped = json.loads(in_process("pipeline", "outbox", "drop", "--all", "--yes", "-c", config, "--json").out)
    assert dropped["changed"] == ["dock-1"]
    assert in_process("pipeline", "outbox", "list", "-c", config).out.startswith("0 events set aside")


def test_what_is_refused_again_or_must_not_leave_stays_set_aside(
    tmp_path: Path, config: Path, in_process: InProcess
) -> None:
    refused(tmp_path, 1)
    for may_send, said in ((True, "still not"), (False, "the policy does not let it leave the device")):
        assert in_process("pipeline", "outbox", "retry", "--all", "-c", config).code == 0
        sink = RecordingSink(leaves_device=True)

        def choke(messages: Sequence[Message]) -> None:
            if messages[0].key == "dock-0":
                raise Poisonous(0, "still not")

        sink.behaviour = choke
        with outbox(tmp_path, {"dock": [sink]}, may_send=lambda one, may=may_send: may or one.sequence > 0) as box:  # type: ignore[misc]
            box.put([message(8), message(9)])
            assert box.flush(WAIT_S)
            # What is ordered comes after what waits, in the same turn.
            (event,) = _settled(config, in_process)
        assert event["error"] == said
        assert "dock-0" not in sink.keys


def _settled(config: Path, in_process: InProcess) -> list[dict[str, object]]:
    while True:
        events: list[dict[str, object]] = json.loads(
            in_process("pipeline", "outbox", "list", "-c", config, "--json").out
        )["events"]
        if not any(event["retry"] for event in events):
            return events


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["retry"], 2, "expected either ids or --all"),
        (["drop", "dock-0", "--all", "-y"], 2, "expected either ids or --all"),
        (["retry", "nobody"], 1, "nobody is not set aside"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, config: Path, in_process: InProcess, arguments: list[str], code: int, said: str
) -> None:
    refused(tmp_path, 1)
    ended = in_process("pipeline", "outbox", *arguments, "-c", config)
    assert (ended.code, said in ended.err) == (code, True)


def test_without_an_outbox_that_is_said(config: Path, in_process: InProcess) -> None:
    ended = in_process("pipeline", "outbox", "list", "-c", config)
    assert ended.code == 2
    assert "there is no outbox" in ended.err
