"""A pipelines file that changes while an agent runs it: what is new takes over, what is as before goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.faults.programs import Program
from tests.faults.scene import until
from tests.pipelines_run import LIMIT_S, pipelines_text, running_pipelines, write_agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.run import pipeline_factory
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sources.base import Source
from upwell.pipelines.sources.source_opening import open_source
from upwell.shared.errors import ConfigError
from upwell.tools.demo import digit_data


class Site:
    """An agent with pipelines that look at folders, and the program that runs them."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self.file = folder / "pipelines.yaml"
        self.config = write_agent(folder)
        document = json.loads(self.config.read_text())
        document["agent"]["metrics"] = "127.0.0.1:0"
        if command == "agent":
            document["pipelines"] = "pipelines.yaml"
        self.config.write_text(json.dumps(document))
        arguments = ["-c", str(self.config)]
        self.arguments = ["agent", *arguments] if command == "agent" else ["run", str(self.file), *arguments]

    def pipeline(self, name: str, event: str = "seen", sink: str = "") -> dict[str, Any]:
        pictures = self.folder / f"in-{name}"
        pictures.mkdir(exist_ok=True)
        return {
            "source": {"folder": str(pictures)},
            "steps": [{"infer": {"model": "cards"}}],
            "events": [{"name": event, "on": "frame"}],
            "sinks": [{"jsonl": str(self.folder / (sink or f"{name}.jsonl"))}],
        }

    def put(self, text: str) -> None:
        """Move a new file into place."""
        draft = self.folder / "new.yaml"
        draft.write_text(text)
        os.replace(draft, self.file)

    def write(self, **pipelines: Mapping[str, Any]) -> None:
        self.put(pipelines_text(self.folder, **pipelines))

    def show(self, name: str, number: int) -> None:
        """A picture for the pipeline."""
        picture = self.folder / f"picture-{number}.png"
        Image.fromarray(next(digit_data.video(digit_data.cards(1)))).save(picture)
        os.replace(picture, self.folder / f"in-{name}" / picture.name)

    def events(self, file: str) -> list[str]:
        path = self.folder / file
        return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


def health(program: Program) -> Any:
    address = program.find(r"metrics on (http://127.0.0.1:\d+)/metrics")
    with urllib.request.urlopen(f"{address}/health", timeout=LIMIT_S) as reply:  # noqa: S310  our own server's address
        return json.loads(reply.read())


@pytest.mark.parametrize("command", ["agent", pytest.param("run", marks=pytest.mark.slow)])
def test_changed_pipelines_take_over_and_the_others_go_on(tmp_path: Path, command: str) -> None:
    site = Site(tmp_path, command)
    calm, dock, gate = (site.pipeline(name) for name in ("calm", "dock", "gate"))
    site.write(calm=calm, dock=dock, gate=gate)
    with Program(site.arguments) as program:
        until(lambda: set(health(program)["pipelines"]) == {"calm", "dock", "gate"}, LIMIT_S)
        for name in ("calm", "dock"):
            site.show(name, 1)
        until(lambda: site.events("calm.jsonl") == site.events("dock.jsonl") == ["seen"], LIMIT_S)
        site.write(calm=calm, dock=site.pipeline("dock", "placed", "other.jsonl"), yard=site.pipeline("yard"))
        until(lambda: set(health(program)["pipelines"]) == {"calm", "dock", "yard"}, LIMIT_S)
        for number, name in enumerate(("calm", "dock", "yard"), 2):
            site.show(name, number)
        until(lambda: site.events("calm.jsonl") == ["seen"] * 2, LIMIT_S)
        until(lambda: site.events("yard.jsonl") == ["seen"] and "placed" in site.events("other.jsonl"), LIMIT_S)
        assert health(program)["pipelines"]["calm"]["frames"] == {"answered": 2}  # counted on since the start
        site.put("version: 1\npipelines: {calm: {source: {folder: in}, steps: [{infer: {model: nobody}}]}}\n")
        problem = "the pipelines file is not in force: "
        until(lambda: any(problem in one for one in health(program)["problems"]), LIMIT_S)
        assert health(program)["status"] == "degraded"
        site.show("calm", 9)
        until(lambda: site.events("calm.jsonl") == ["seen"] * 3, LIMIT_S)
        site.write(calm=calm)
        until(lambda: health(program)["problems"] == [] and set(health(program)["pipelines"]) == {"calm"}, LIMIT_S)
        program.send(signal.SIGTERM)
        assert program.wait() == 0
    said = "".join(program.lines)
    assert "kept the previous pipelines: " in said
    assert "nobody" in said
    assert "Traceback" not in said


def test_pipelines_that_are_being_changed_are_not_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`upwell run` ends when all are over; while its only pipeline is replaced there is none."""

    def text(event: str) -> str:
        pipeline = {"source": {"folder": str(tmp_path)}, "events": [{"name": event, "on": "frame"}]}
        return pipelines_text(tmp_path, dock=pipeline)

    said: list[bool] = []
    asking: list[threading.Thread] = []
    with running_pipelines(tmp_path, write_agent(tmp_path), text("seen")) as it:

        def opened(*arguments: Any) -> Source:
            asking.append(threading.Thread(target=lambda: said.append(it.runner.is_over)))
            asking[-1].start()
            asking[-1].join(0.2)  # it may have to wait for the change
            return open_source(*arguments)

        monkeypatch.setattr(pipeline_factory, "open_source", opened)
        it.runner.change(parse_pipelines(text("read"), tmp_path / "pipelines.yaml")[0])
        for thread in asking:
            thread.join()
    assert said == [False]


def test_a_pipeline_that_could_not_be_started_again_is_started_by_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the file that was there before; and until then `upwell run` does not end."""

    def text(event: str) -> str:
        pipeline = {"source": {"folder": str(tmp_path)}, "events": [{"name": event, "on": "frame"}]}
        return pipelines_text(tmp_path, dock=pipeline)

    def config(event: str) -> PipelinesConfig:
        return parse_pipelines(text(event), tmp_path / "pipelines.yaml")[0]

    def fail(*_: Any) -> Source:
        raise ConfigError.at(None, "the password is being replaced")

    with running_pipelines(tmp_path, write_agent(tmp_path), text("seen")) as it:
        with monkeypatch.context() as patched:
            patched.setattr(pipeline_factory, "open_source", fail)
            with pytest.raises(ConfigError, match="the password is being replaced"):
                it.runner.change(config("read"))
        assert it.runner.pipelines == {}
        assert not it.runner.is_over
        it.runner.change(config("seen"))
        assert set(it.runner.pipelines) == {"dock"}


def test_frames_go_on_while_a_dead_receiver_that_is_replaced_has_its_last_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("of-the-hook")

    def config(*sinks: Mapping[str, Any]) -> str:
        source = {"folder": str(tmp_path / "in")}
        return pipelines_text(
            tmp_path, dock={"source": source, "events": [{"name": "seen", "on": "frame"}], "sinks": sinks}
        )

    dead = {"webhook": {"url": "http://127.0.0.1:9/", "secret_file": str(tmp_path / "secret")}}
    flush = Outbox.flush
    were_running: list[list[bool]] = []
    with running_pipelines(tmp_path, write_agent(tmp_path), config(dead)) as it:

        def noted(outbox: Outbox, timeout_s: float, names: Sequence[str]) -> bool:
            were_running.append([not one.is_stopped for one in it.runner.pipelines.values()])
            return flush(outbox, 0.1, names)

        Image.new("RGB", (64, 48)).save(tmp_path / "in" / "1.png")
        until(lambda: any("accepts no events" in one for one in it.runner.health().problems), LIMIT_S)
        with monkeypatch.context() as patched:
            patched.setattr(Outbox, "flush", noted)
            changed = config({"jsonl": str(tmp_path / "dock.jsonl")})
            it.runner.change(parse_pipelines(changed, tmp_path / "pipelines.yaml")[0])
        assert were_running == [[True]]
        until(lambda: it.events("dock") != [], LIMIT_S)


def test_where_a_new_sink_cannot_be_opened_the_former_pipelines_are_back(tmp_path: Path) -> None:
    site = Site(tmp_path, "agent")
    site.write(dock=site.pipeline("dock"))
    with Program(site.arguments) as program:
        until(lambda: "dock" in health(program)["pipelines"], LIMIT_S)
        bad = site.pipeline("dock", "placed")
        bad["sinks"] = [{"mqtt": {"broker": "mqtts://localhost", "topic": "a", "ca": str(tmp_path / "none.pem")}}]
        site.write(dock=bad)
        until(lambda: any("not in force" in one for one in health(program)["problems"]), LIMIT_S)
        site.show("dock", 1)
        until(lambda: site.events("dock.jsonl") == ["seen"], LIMIT_S)


def test_a_pipelines_file_that_is_wrong_at_first_ends_the_agent_before_a_model_is_loaded(tmp_path: Path) -> None:
    site = Site(tmp_path, "agent")
    site.put("version: 1\npipelines: {dock: {source: {}}}\n")
    with Program(site.arguments) as program:
        assert program.wait() == 2
    assert "pipelines.dock.source" in "".join(program.lines)
