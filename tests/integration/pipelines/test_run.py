"""Whole pipelines on a made video whose truth is known: found, followed, counted, read, and told."""

from __future__ import annotations

import ctypes
import io
import json
import mmap
import platform
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from tests.faults.clouds import ScriptedCloud, good, silent, status
from tests.faults.scene import until
from tests.pipelines_run import (
    FOLLOWED,
    LIMIT_S,
    READ,
    pipelines_text,
    running_pipelines,
    write_agent,
    write_video,
)
from upwell.edge.commands.explain_cli import explain
from upwell.pipelines import Pipeline
from upwell.pipelines.run.pipeline_factory import FLUSH_S
from upwell.tools.demo import digit_data
from upwell.tools.pipeline_test_cli import trial

EVENTS = [
    {"name": "entered", "on": "enter upper"},
    {"name": "passed", "on": "cross middle"},
    {"name": "left", "on": "leave"},
]
SHOWN = digit_data.cards(5, seed=3)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "cards.mp4", digit_data.video(SHOWN))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three cards, where it does not matter how many there are."""
    return write_video(tmp_path_factory.mktemp("video") / "short.mp4", digit_data.video(SHOWN[:3]))


@pytest.fixture
def cloud() -> Any:
    scripted = ScriptedCloud()
    yield scripted
    scripted.stop()


def explained(*arguments: object) -> str:
    """What `upwell explain` says."""
    return ran(explain, *arguments)


def ran(command: Callable[..., None], *arguments: object) -> str:
    """What the command prints."""
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def labels_by_track(events: list[dict[str, Any]]) -> dict[int, str]:
    """What each track was read as in the end."""
    found: dict[int, str] = {}
    for event in events:
        for one in event["objects"]:
            if "digits" in one:
                found[one["track"]] = one["digits"]["label"]
    return found


def test_a_video_is_counted_and_read_and_every_frame_has_a_fate(tmp_path: Path, video: Path) -> None:
    pipeline = {"source": {"video": str(video)}, "steps": [*FOLLOWED, READ], "events": EVENTS}
    with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, dock=pipeline)) as it:
        it.wait()
        status = it.runner.pipelines["dock"].status
    events = it.events("dock")
    counts = Counter(event["event"] for event in events)
    entering = sum(card.enters for card in SHOWN)
    assert counts == {"entered": entering, "passed": len(SHOWN), "left": len(SHOWN)}
    assert status.captured == sum(status.frames.values()) == status.frames["answered"]
    assert status.captured == int(digit_data.length_s(SHOWN) * digit_data.FPS)
    assert [event["sequence"] for event in events] == sorted({event["sequence"] for event in events})
    assert len({event["id"] for event in events}) == len(events)
    in_order = [card.label for card in sorted(SHOWN, key=lambda card: card.crosses_s)]
    read = [int(event["objects"][0]["digits"]["label"]) for event in events if event["event"] == "passed"]
    assert np.mean(np.equal(read, in_order)) >= 0.7  # once per track, from the first look at a card at the edge


def test_frames_that_do_not_change_and_frames_that_are_late_are_counted(tmp_path: Path) -> None:
    still = next(digit_data.video(SHOWN))
    path = write_video(tmp_path / "still.mp4", [still] * 12)
    pipelines = {
        "calm": {"source": {"video": str(path)}, "steps": [{"change": {"at_least": "1h"}}, *FOLLOWED]},
        "late": {"source": {"video": str(path), "deadline": "0.0001ms"}, "steps": [*FOLLOWED]},
    }
    with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, **pipelines)) as it:
        it.wait()
        calm, late = (it.runner.pipelines[name].status for name in ("calm", "late"))
    assert (calm.captured, calm.frames["unchanged"], calm.frames["answered"]) == (12, 11, 1)
    assert (late.captured, late.frames["late"], late.last_failure) == (12, 12, "late")


def test_with_the_cloud_killed_in_the_middle_every_frame_is_answered(
    tmp_path: Path, video: Path, cloud: ScriptedCloud
) -> None:
    policy = {"defaults": {"deadline": "150ms", "hard": {"measure": "max_prob", "below": 1.0}}}
    pipeline = {
        "source": {"video": str(video)},
        "steps": [*FOLLOWED, {"infer": {"model": "digits", "on": "objects", "margin": "0%"}}],
        "events": EVENTS,
    }
    with running_pipelines(
        tmp_path, write_agent(tmp_path, policy, cloud.address), pipelines_text(tmp_path, dock=pipeline)
    ) as it:
        until(lambda: it.runner.pipelines["dock"].status.frames.get("answered", 0) > 40, LIMIT_S)
        cloud.behaviour = silent
        it.wait()
        status = it.runner.pipelines["dock"].status
    assert status.captured == status.frames["answered"]
    counts = Counter(event["event"] for event in it.events("dock"))
    assert (counts["passed"], counts["entered"]) == (len(SHOWN), sum(card.enters for card in SHOWN))
    routes = Counter(
        one["digits"]["route"] for event in it.events("dock") for one in event["objects"] if "digits" in one
    )
    assert routes["cloud"] > 0 < routes["edge"]


def test_a_late_answer_amends_its_own_event_and_holds_for_the_track(
    tmp_path: Path, short: Path, cloud: ScriptedCloud
) -> None:
    """The cloud is down while the video runs; what it says later belongs to the events of then."""
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    defaults = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}, "spool": True}
    pipeline = {"source": {"video": str(short)}, "steps": [*FOLLOWED, READ], "events": EVENTS}
    agent = write_agent(tmp_path, {"defaults": defaults}, cloud.address)
    with running_pipelines(tmp_path, agent, pipelines_text(tmp_path, dock=pipeline)) as it:
        it.wait()
        count = sum(it.runner.pipelines["dock"].status.events.values())
        until(lambda: len(it.events("dock")) == count, LIMIT_S)
        first = it.events("dock")
        about = {
            event["id"]: event for event in first if any("case" in one.get("digits", {}) for one in event["objects"])
        }
        assert len(about) == len(first) > 0
        cloud.behaviour = good
        until(lambda: len(it.events("dock")) == 2 * len(first), LIMIT_S)
    amendments = it.events("dock")[len(first) :]
    assert sorted(event["amends"] for event in amendments) == sorted(about)
    for event in amendments:
        former = about[event["amends"]]
        (now,), (then,) = event["objects"], former["objects"]
        assert (event["event"], event["captured_unix_s"]) == (former["event"], former["captured_unix_s"])
        assert (now["track"], now["box"], now["digits"]["route"]) == (then["track"], then["box"], "cloud")
        assert "case" not in now["digits"]
        assert now["digits"]["id"] == then["digits"]["id"]
        told = explained(event["id"], "--json", "-c", agent)
        trace = json.loads(told)
        assert (trace["amends"], trace["outcome"], trace["pipeline"]) == (event["amends"], "amended", "dock")
        assert trace["objects"][0]["answers"]["digits"]["label"] == now["digits"]["label"]
        words = explained(event["id"], "-c", agent)
        assert f"id {event['id']}: amends {event['amends']} of pipeline dock" in words
        assert "steps" in words.splitlines()  # of the frame of then


@pytest.mark.parametrize("is_tried", [False, True])
def test_an_answer_that_comes_while_another_program_has_the_state_amends_the_event_of_then(
    tmp_path: Path, short: Path, cloud: ScriptedCloud, is_tried: bool
) -> None:
    """That program runs another pipeline of the file, or tries the same one with a recording."""
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    defaults = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}, "spool": True}
    source = {"video": str(short)}
    dock = {"source": source, "steps": [*FOLLOWED, READ], "events": EVENTS[1:2]}
    text = pipelines_text(tmp_path, dock=dock, other={"source": source})
    agent, file = write_agent(tmp_path, {"defaults": defaults}, cloud.address), tmp_path / "pipelines.yaml"
    file.write_text(text)
    with running_pipelines(tmp_path, agent, text) as it:
        it.wait()
    told = {event["id"] for event in it.events("dock")}
    assert told
    cloud.behaviour = good
    if is_tried:
        words = (file, "-c", agent, "--pipeline", "dock", "--video", short, "--out", tmp_path / "out")
        ran(trial, *words)
    else:
        with Pipeline.from_config(file, agent, "other") as pipeline:
            spool = pipeline.agent.spool
            assert spool is not None
            # To two: the pipelines and the file of results.
            until(lambda: not spool.held().waiting and spool.counts().delivered == 2 * spool.counts().answered, LIMIT_S)
    with running_pipelines(tmp_path, agent, text) as it:
        until(lambda: {event["amends"] for event in it.events("dock")} >= told, LIMIT_S)


def test_what_a_rule_denies_in_a_zone_never_goes_up_nor_what_is_blurred(tmp_path: Path, cloud: ScriptedCloud) -> None:
    """Two cards, one in the zone: the cloud is asked about the other alone, and where it is blurred, sees it so.

    A rule holds as well if the step with the zones comes last.
    """
    places = ((500.0, 110.0), (200.0, 300.0))
    standing = [
        digit_data.Card(card.ink, card.label, y, -1.0, x + digit_data.FRAME_PX)
        for card, (x, y) in zip(SHOWN, places, strict=False)
    ]
    picture = next(digit_data.video(standing))
    path = write_video(tmp_path / "standing.mp4", [picture] * 8)
    policy = {
        "defaults": {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}},
        "rules": [{"name": "zone", "match": {"tags": {"zone.upper": "yes"}}, "egress": "deny"}],
    }
    blurred = {"infer": {"model": "digits", "on": "objects", "margin": "0%"}}
    pipelines = {
        "plain": {"source": {"video": str(path)}, "steps": [*FOLLOWED, blurred]},
        "later": {"source": {"video": str(path)}, "steps": [*FOLLOWED[:2], blurred, *FOLLOWED[2:]]},
        "blurred": {"source": {"video": str(path)}, "steps": [*FOLLOWED, {"blur": {"labels": ["card"]}}, blurred]},
    }
    agent = write_agent(tmp_path, policy, cloud.address)
    with running_pipelines(tmp_path, agent, pipelines_text(tmp_path, **pipelines)) as it:
        it.wait()
        assert all(one.status.frames["answered"] == 8 for one in it.runner.pipelines.values())
    rows = [row for request in cloud.requests for row in request.inputs["image"]]
    assert 12 <= len(rows) <= 24  # one card a frame, of the frames since its track is confirmed
    sharp = [row for row in rows if _sharpness(row) > 40]
    assert len(sharp) == len(rows) * 2 / 3  # those of the pipelines without blur
    denied = picture[90:130, 480:520, 1].astype(float)
    for row in sharp:
        assert np.abs(_decoded(row) - denied).mean() > 20


def _decoded(png: bytes) -> Any:
    picture = Image.open(io.BytesIO(png)).convert("L").resize((40, 40))
    return np.asarray(picture, float)


def _sharpness(png: bytes) -> float:
    """The spread of a picture's pixels: ink on paper has much, a mosaic of a whole card little."""
    return float(_decoded(png).std())


def test_a_pipeline_with_a_preview_shows_its_last_frame(tmp_path: Path, short: Path) -> None:
    pipeline = {"source": {"video": str(short)}, "steps": [*FOLLOWED, READ], "preview": True}
    text = pipelines_text(tmp_path, dock=pipeline, hidden={**pipeline, "preview": False})
    with running_pipelines(tmp_path, write_agent(tmp_path), text) as it:
        it.wait()
        assert list(it.runner.previews) == ["dock"]
        document = it.runner.previews["dock"].document()
        picture = it.runner.previews["dock"].picture(document["frame"]["number"])
    assert document["frame"]["number"] == it.runner.pipelines["dock"].status.captured
    assert picture is not None
    with Image.open(io.BytesIO(picture)) as shown:
        assert shown.size == (digit_data.WIDTH, digit_data.HEIGHT)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have other heaps")
def test_blocks_as_large_as_pictures_leave_no_holes_in_the_heap(tmp_path: Path, short: Path) -> None:
    """Else the heap of each thread grows again and again, up to many times what one frame takes."""
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = (
        [ctypes.c_size_t],
        ctypes.c_void_p,
        [ctypes.c_void_p],
    )
    libc.free(libc.malloc(8 << 20))  # as a program does before; after it glibc no longer maps blocks up to this size
    with running_pipelines(
        tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, dock={"source": {"video": str(short)}})
    ) as it:
        it.wait()
        blocks = [libc.malloc(300_000) for _ in range(200)]  # more than what is free in the heap
    assert blocks[-1] % mmap.PAGESIZE == 2 * ctypes.sizeof(ctypes.c_size_t)  # it begins its mapping, after its size
    for block in blocks:
        libc.free(block)


def test_a_lost_source_is_a_problem_of_the_whole_and_health_says_which(tmp_path: Path, short: Path) -> None:
    pipelines = {
        "gate": {"source": {"video": "http://127.0.0.1:9/none"}, "steps": [*FOLLOWED]},
        "dock": {"source": {"video": str(short)}, "steps": [*FOLLOWED]},
    }
    with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, **pipelines)) as it:
        it.agent.describe_with("pipelines", it.runner.health)
        until(lambda: it.agent.health_document()["pipelines"]["dock"]["source"] == "ended", LIMIT_S)
        until(
            lambda: it.runner.pipelines["dock"].status.captured == int(digit_data.length_s(SHOWN[:3]) * digit_data.FPS),
            LIMIT_S,
        )
        until(lambda: it.agent.health_document()["pipelines"]["gate"]["source"] == "lost", LIMIT_S)
        dock = it.runner.pipelines["dock"]  # its source has ended, and its last frame may be among the steps
        until(lambda: dock.status.frames["answered"] == dock.status.captured, LIMIT_S)
        health = it.agent.health_document()
        metrics = it.agent.metrics.registry
        it.agent.metrics.export(it.runner.families)
        captured = metrics.get_sample_value("upwell_pipeline_captured_total", {"pipeline": "dock"})
        assert metrics.get_sample_value("upwell_pipeline_source_live", {"pipeline": "gate"}) == 0
    assert health["status"] == "degraded"
    assert [problem for problem in health["problems"] if problem.startswith("pipeline gate: the source is lost")]
    assert health["pipelines"]["dock"]["frames"] == {"answered": captured}


def test_a_source_that_broke_off_is_a_problem_of_the_whole_too(tmp_path: Path, short: Path) -> None:
    """An agent goes on without it, and nobody would see that."""
    pipelines = {name: {"source": {"video": str(short.with_name(name))}} for name in (short.name, "nothing.mp4")}
    renamed = {name.removesuffix(".mp4"): pipeline for name, pipeline in pipelines.items()}
    with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, **renamed)) as it:
        it.wait()
        problems = it.runner.health().problems
    assert problems == ["pipeline nothing: the source has ended: No such file or directory"]


@pytest.mark.slow
def test_with_dead_receivers_the_end_takes_a_few_seconds(tmp_path: Path) -> None:
    path = write_video(tmp_path / "still.mp4", [next(digit_data.video(SHOWN))] * 3)
    events = [{"name": "seen", "on": "frame"}]
    (tmp_path / "secret").write_text("of-the-hook")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        sinks = [
            {"mqtt": {"broker": f"mqtt://127.0.0.1:{port}", "topic": "a/{event}"}},
            {"mqtt": {"broker": "mqtt://127.0.0.1:9", "topic": "a/{event}"}},
            {"webhook": {"url": f"http://127.0.0.1:{port}/", "secret_file": str(tmp_path / "secret")}},
        ]
        pipeline = {"source": {"video": str(path)}, "steps": [*FOLLOWED], "events": events, "sinks": sinks}
        with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, dock=pipeline)) as it:
            it.wait()
            began_s = time.monotonic()
            it.runner.close()
            took_s = time.monotonic() - began_s
    assert took_s < FLUSH_S + 4.0
