"""`upwell run` and `upwell pipeline draw-zones` as processes: what they say, what they serve, and how they end."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.faults.programs import Program
from tests.faults.scene import until
from tests.pipelines_run import FOLLOWED, LIMIT_S, pipelines_text, write_agent, write_video
from upwell.shared.errors import EXIT_FAILED
from upwell.tools.demo import digit_data


def page(address: str, name: str) -> Any:
    with urllib.request.urlopen(f"{address}/{name}", timeout=LIMIT_S) as reply:  # noqa: S310  our own server's address
        return json.loads(reply.read())


def test_zones_are_drawn_on_the_first_picture_of_a_file_without_a_model(tmp_path: Path) -> None:
    path = write_video(tmp_path / "cards.mp4", digit_data.video(digit_data.cards(1)))
    file = tmp_path / "pipelines.yaml"
    file.write_text(pipelines_text(tmp_path, dock={"source": {"video": str(path)}, "steps": [*FOLLOWED]}))
    with Program(["pipeline", "draw-zones", str(file)]) as program:
        address = program.find(r"draw on (http://127.0.0.1:\d+)/preview\?draw=zones")
        until(lambda: page(address, "preview/dock.json")["frame"] is not None, LIMIT_S)
        assert page(address, "preview/dock.json")["frame"]["number"] == 1
        program.send(signal.SIGINT)
        assert program.wait() == 0


def test_a_picture_on_which_zones_are_drawn_stays_in_its_folder(tmp_path: Path) -> None:
    """No model has been asked about it."""
    (tmp_path / "in").mkdir()
    Image.fromarray(next(digit_data.video(digit_data.cards(1)))).save(tmp_path / "in" / "a.png")
    file = tmp_path / "pipelines.yaml"
    source = {"folder": str(tmp_path / "in"), "done": "move"}
    file.write_text(pipelines_text(tmp_path, dock={"source": source, "steps": [*FOLLOWED]}))
    with Program(["pipeline", "draw-zones", str(file)]) as program:
        address = program.find(r"draw on (http://127.0.0.1:\d+)/preview\?draw=zones")
        until(lambda: page(address, "preview/dock.json")["frame"] is not None, LIMIT_S)
        program.send(signal.SIGINT)
        assert program.wait() == 0
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.png"]


def test_a_run_is_looked_at_and_ends_in_good_order_at_sigterm(tmp_path: Path) -> None:
    pictures = tmp_path / "in"
    pictures.mkdir()
    source = {"folder": str(pictures)}
    agent = json.loads(write_agent(tmp_path).read_text())
    agent["agent"]["metrics"] = "127.0.0.1:0"
    (tmp_path / "agent.yaml").write_text(json.dumps(agent))
    file = tmp_path / "pipelines.yaml"
    file.write_text(pipelines_text(tmp_path, dock={"source": source, "steps": [*FOLLOWED], "preview": True}))
    with Program(["run", str(file), "-c", str(tmp_path / "agent.yaml")]) as program:
        address = program.find(r"preview on (http://127.0.0.1:\d+)/preview")
        program.find(r"running (dock)")
        assert page(address, "health")["pipelines"]["dock"]["frames"] == {}
        assert page(address, "preview.json") == {"pipelines": ["dock"]}
        program.send(signal.SIGTERM)
        assert program.wait() == 0
    assert "source has ended" not in "".join(program.lines)


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [True, False])
def test_events_that_no_sink_took_are_lost_without_a_folder_and_then_it_is_an_error(
    tmp_path: Path, is_kept: bool
) -> None:
    (tmp_path / "dock.jsonl").mkdir()
    video = write_video(tmp_path / "still.mp4", [next(digit_data.video(digit_data.cards(1)))] * 3)
    agent = json.loads(write_agent(tmp_path).read_text())
    if not is_kept:
        del agent["agent"]["state_dir"]
    (tmp_path / "agent.yaml").write_text(json.dumps(agent))
    pipeline = {"source": {"video": str(video)}, "steps": [*FOLLOWED], "events": [{"name": "seen", "on": "frame"}]}
    file = tmp_path / "pipelines.yaml"
    file.write_text(pipelines_text(tmp_path, dock=pipeline))
    with Program(["run", str(file), "-c", str(tmp_path / "agent.yaml")]) as program:
        assert program.wait() == (0 if is_kept else EXIT_FAILED)
    fate = "kept for the next start" if is_kept else "lost"
    assert f"not taken by the sink jsonl:{tmp_path / 'dock.jsonl'} are {fate}" in "".join(program.lines)


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    sources = {
        "film": ({"video": str(tmp_path / "nothing.mp4")}, "No such file or directory"),
        "pictures": ({"folder": str(tmp_path / "nothing"), "watch": False}, "there is no such folder"),
    }
    file = tmp_path / "pipelines.yaml"
    written = {name: {"source": source, "steps": [*FOLLOWED]} for name, (source, _) in sources.items()}
    file.write_text(pipelines_text(tmp_path, **written))
    with Program(["run", str(file), "-c", str(write_agent(tmp_path))]) as program:
        assert program.wait() == EXIT_FAILED
    said = "".join(program.lines)
    for name, (_, why) in sources.items():
        assert f"pipeline {name}: the source has ended: {why}" in said
