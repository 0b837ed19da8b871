"""`upwell explain` on what pipelines did: from an event to its frame, and from there to the requests about it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.pipelines_run import FOLLOWED, READ, pipelines_text, running_pipelines, write_agent, write_video
from upwell.edge.commands.explain_cli import explain
from upwell.edge.observe.flight_recorder import FRAMES_NAME, ROOM_BYTES, UnknownRequest
from upwell.shared.errors import ConfigError
from upwell.tools.demo import digit_data

SHOWN = digit_data.cards(2, seed=3)
EVENTS = [{"name": "passed", "on": "cross middle"}, {"name": "left", "on": "leave"}]


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(explain)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def told(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_event_leads_to_its_frame_and_to_the_requests_about_it(tmp_path: Path) -> None:
    agent = write_agent(tmp_path)
    video = write_video(tmp_path / "cards.mp4", digit_data.video(SHOWN))
    pipeline = {"source": {"video": str(video)}, "steps": [*FOLLOWED, READ], "events": EVENTS}
    with running_pipelines(tmp_path, agent, pipelines_text(tmp_path, dock=pipeline)) as it:
        it.wait()
        first = told(it.events("dock")[0]["id"], "-c", agent)  # beside the running agent
    events = it.events("dock")
    assert len(events) == 2 * len(SHOWN)
    for event in events:
        frame = told(event["id"], "-c", agent)
        assert (frame["pipeline"], frame["outcome"]) == ("dock", "answered")
        assert frame["time"] == pytest.approx(event["captured_unix_s"], abs=1e-5)
        (same,) = [one for one in frame["events"] if one["id"] == event["id"]]
        assert (same["event"], same["sequence"]) == (event["event"], event["sequence"])
        assert [one["track"] for one in same["objects"]] == [one["track"] for one in event["objects"]]
        assert [step["step"] for step in frame["steps"]] == ["infer cards", "track", "zones", "infer digits"]
        assert 0 < sum(step["took_s"] for step in frame["steps"]) <= frame["took_s"]
        asked = told(frame["steps"][0]["requests"][0], "-c", agent)
        assert (asked["model"], asked["tags"]["pipeline"]) == ("cards", "dock")
    passed = next(event for event in events if event["event"] == "passed")
    frame = told(passed["id"][:12], "-c", agent)
    (card,) = [one for one in frame["objects"] if one["track"] == passed["objects"][0]["track"]]
    assert card["answers"]["digits"] == passed["objects"][0]["digits"]
    assert told(card["answers"]["digits"]["id"], "-c", agent)["model"] == "digits"
    words = run(passed["id"], "-c", agent).output
    assert [line for line in words.splitlines() if not line.startswith(" ")] == ["frame", "steps", "objects", "events"]
    for part in (f"id dock/{frame['frame']}:", f"asked in {frame['steps'][0]['requests'][0]}", passed["id"]):
        assert part in words
    assert f"(request {card['answers']['digits']['id']}, of an earlier frame)" in words
    assert first["frame"] == told(first["id"], "-c", agent)["frame"]


def test_of_frames_without_an_event_one_of_each_outcome_is_kept_with_its_reason(tmp_path: Path) -> None:
    agent = write_agent(tmp_path)
    video = write_video(tmp_path / "still.mp4", [next(digit_data.video(SHOWN))] * 12)
    pipelines = {
        "calm": {"source": {"video": str(video)}, "steps": [{"change": {"at_least": "1h"}}, *FOLLOWED]},
        "late": {"source": {"video": str(video), "deadline": "0.0001ms"}, "steps": [*FOLLOWED]},
    }
    with running_pipelines(tmp_path, agent, pipelines_text(tmp_path, **pipelines)) as it:
        it.wait()
    frames = told("--last", 99, "--frames", "-c", agent)
    found = sorted((one["pipeline"], one["outcome"], [step["step"] for step in one["steps"]]) for one in frames)
    assert found == [
        ("calm", "answered", ["change", "infer cards", "track", "zones"]),
        ("calm", "unchanged", ["change"]),
        ("late", "late", ["infer cards"]),
    ]
    lines = run("--last", 9, "--frames", "-c", agent).output.splitlines()
    assert len(lines) == 4
    assert any("late/1 " in line for line in lines)
    assert "late" in run("late/1", "-c", agent).output
    with pytest.raises(
        UnknownRequest, match=r"no request or event 'none' is recorded: .* requests, .* and the last 3 fr"
    ):
        raise run("none", "-c", agent).exception or AssertionError
    assert isinstance(run("late/1", "--frames", "-c", agent).exception, ConfigError)


def test_no_picture_and_no_tensor_is_kept(tmp_path: Path) -> None:
    agent = write_agent(tmp_path)
    video = write_video(tmp_path / "cards.mp4", itertools.islice(digit_data.video(SHOWN), 50))
    pipeline = {
        "source": {"video": str(video)},
        "steps": [*FOLLOWED, READ],
        "events": [{"name": "seen", "on": "frame"}],
    }
    with running_pipelines(tmp_path, agent, pipelines_text(tmp_path, dock=pipeline)) as it:
        it.wait()
        count = it.runner.pipelines["dock"].status.frames["answered"]
    frames = told("--last", 9999, "--frames", "-c", agent)
    assert len(frames) == count == len(it.events("dock"))  # each with an event
    assert sum(path.stat().st_size for path in (tmp_path / "state" / FRAMES_NAME).iterdir()) < count * ROOM_BYTES
    objects = [found for one in frames for found in one["objects"]]
    assert {key for found in objects for key in found} == {"label", "score", "track", "zones", "answers"}
    said = {key for found in objects for facts in found["answers"].values() for key in facts}
    assert said == {"label", "score", "route", "reason", "id"}
