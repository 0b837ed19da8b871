"""`upwell pipeline check` on real files, with the models of a real agent.yaml."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from upwell.pipelines.commands.check_cli import check
from upwell.shared.errors import ConfigError

pytest.importorskip("cel_expr_python")

APP = typer.Typer()
APP.command()(check)

PIPELINES = """\
version: 1
pipelines:
  dock:
    source: {video: dock.mp4, fps: 10, deadline: 200ms}
    steps:
      - change: {above: 1%, at_least: 10s}
      - infer: {model: people}
      - track: {}
      - zones: {door: [[0.4, 0.2], [0.6, 0.2], [0.6, 1], [0.4, 1]], gate: {line: [[0, 0.5], [1, 0.5]]}}
      - infer: {model: helmet, on: objects, where: 'object.label == "person"', once: track}
      - blur: {labels: [face]}
    events:
      - {name: no-helmet, on: enter door, where: 'object.helmet.label == "none"'}
      - {name: count, on: cross gate}
    sinks:
      - {jsonl: events.jsonl}
      - {mqtt: {broker: "mqtts://broker.local", topic: "site/dock/{event}"}}
    preview: true
"""
TOLD = """\
dock: video {folder}/dock.mp4 (keeps all, 10 frames/s, due 200ms after capture)
  -> change -> infer people -> track -> zones door, gate -> infer helmet on objects -> blur face
  -> no-helmet (enter door), count (cross gate)
  -> jsonl {folder}/events.jsonl, mqtt broker.local:8883
"""
WARNING = "whole frames sent to the cloud for 'people' are not blurred yet; step 6 blurs"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines.yaml"
    path.write_text(PIPELINES)
    (tmp_path / "dock.mp4").touch()
    return path


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    for name, output in (
        ("people", "kind: detections, labels: [person, face]"),
        ("helmet", "kind: probabilities, labels: [none, hard]"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.yaml").write_text(
            f"signature: {{inputs: {{image: {{kind: image}}}}, outputs: {{out: {{{output}}}}}}}\n"
        )
    path = tmp_path / "agent.yaml"
    path.write_text(
        "cloud: {endpoint: '127.0.0.1:1'}\n"
        "models:\n  people: {edge: {bundle: people}, cloud: {model: people}}\n  helmet: {edge: {bundle: helmet}}\n"
    )
    return path


def test_a_good_file_is_told_in_a_few_lines(pipelines: Path) -> None:
    done = run(pipelines)
    assert (done.exit_code, done.stdout) == (0, TOLD.replace("{folder}", str(pipelines.parent)))
    assert json.loads(run(pipelines, "--json").stdout) == {
        "file": str(pipelines), "ok": True, "pipelines": ["dock"], "problems": [], "warnings": [],
    }  # fmt: skip


def test_the_models_of_the_agent_are_looked_at_without_loading_one(pipelines: Path, agent: Path) -> None:
    before = {name for name in sys.modules if name.partition(".")[0] in ("onnxruntime", "ai_edge_litert")}
    done = run(pipelines, "-c", agent)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (
        0, f"warning: {pipelines}:7:24: pipelines.dock.steps[1].infer.model: {WARNING}",
    )  # fmt: skip
    assert {name for name in sys.modules if name.partition(".")[0] in ("onnxruntime", "ai_edge_litert")} == before
    pipelines.write_text(PIPELINES.replace("model: people}", "model: helmet}").replace("[face]", "[fase]"))
    done = run(pipelines, "-c", agent)
    assert done.exit_code == 1
    assert done.stdout == (
        f"error: {pipelines}:8:16: pipelines.dock.steps[2].track: track needs objects, but model 'helmet' gives "
        "probabilities and no boxes; expected an earlier `infer` with a detector\n"
    )


def test_every_problem_is_told_with_its_place_and_the_exit_code_says_so(pipelines: Path) -> None:
    pipelines.write_text(PIPELINES.replace("200ms", "200").replace("track: {}", "trak: {}").replace("mqtts:", "mqtt:"))
    done = run(pipelines)
    assert done.exit_code == 1
    places = [line.split(": ")[1].removeprefix(str(pipelines)) for line in done.stdout.splitlines()]
    assert places == [":4:50", ":8:9", ":17:25"]
    found = json.loads(run(pipelines, "--json").stdout)
    assert (found["ok"], found["pipelines"], found["warnings"]) == (False, [], [])
    assert found["problems"][1] == {
        "line": 8, "column": 9, "key": "pipelines.dock.steps[2].trak", "message": "unknown key; did you mean 'track'?",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "column", "told"),
    [
        ("video: dok.mp4", 21, "error: video: there is no file {}/dok.mp4; did you mean 'dock.mp4'?"),
        ("video: recordigs/1.mp4", 21, "error: video: there is no folder {}/recordigs; did you mean 'recordings'?"),
        ("video: recordings", 21, "error: video: {}/recordings is not a file"),
        ("folder: record, watch: false", 22, "error: folder: there is no folder {}/record; did you mean 'recordings'?"),
        ("folder: quite-another", 22, "warning: folder: there is no folder {}/quite-another"),
        ("camera: /dev/nul", 22, "warning: camera: there is no device /dev/nul; did you mean 'null'?"),
    ],
)  # fmt: skip
def test_a_source_that_is_not_there_is_told_with_the_name_that_was_meant(
    pipelines: Path, source: str, column: int, told: str
) -> None:
    (pipelines.parent / "recordings").mkdir()
    pipelines.write_text(PIPELINES.replace("video: dock.mp4", source))
    done = run(pipelines)
    kind, key, text = told.format(pipelines.parent).split(": ", 2)
    first = f"{kind}: {pipelines}:4:{column}: pipelines.dock.source.{key}: {text}"
    assert (done.exit_code, done.stdout.splitlines()[0]) == (int(kind == "error"), first)
    assert ("-> change" in done.stdout) == (kind == "warning")


def test_a_link_to_nothing_is_not_said_to_be_what_was_meant(pipelines: Path) -> None:
    source = pipelines.with_name("dock.mp4")
    source.unlink()
    source.symlink_to("gone.mp4")
    first = f"error: {pipelines}:4:21: pipelines.dock.source.video: there is no file {source}"
    assert run(pipelines).stdout.splitlines() == [first]


def test_a_source_that_only_the_agent_may_look_at_is_not_said_to_be_missing(
    pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Path.stat

    def looked(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "dock.mp4":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return found(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", looked)
    assert run(pipelines).exit_code == 0


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("{folder: .}, sinks: [{webhook: {url: 'https://b', secret_file: a.pm}}]", "sinks[0].webhook.secret_file"),
        ("{folder: .}, sinks: [{jsonl: e}, {mqtt: {broker: 'mqtts://b', topic: t, ca: a.pm}}]", "sinks[1].mqtt.ca"),
        ("{mqtt: {broker: 'mqtts://b', topic: t, user: u, password_file: a.pm}}", "source.mqtt.password_file"),
        (
            "{series: {mqtt: {broker: 'mqtts://b', topic: t, cert: a.pem, key: a.pm}, fields: [x], rate: 1, size: 1}}",
            "source.series.mqtt.key",
        ),
    ],
)
def test_a_file_with_a_secret_that_is_not_there_is_told(pipelines: Path, source: str, key: str) -> None:
    """Else `run` is the first to tell."""
    pipelines.with_name("a.pem").touch()
    pipelines.write_text(f"pipelines: {{m: {{source: {source}}}}}\n")
    done = run(pipelines)
    assert done.exit_code == 1
    told = [line.partition("pipelines.m.")[2] for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert told == [f"{key}: there is no file {pipelines.parent}/a.pm; did you mean 'a.pem'?"]
    pipelines.with_name("a.pm").touch()
    assert run(pipelines).exit_code == 0


def test_samples_that_are_not_there_are_told_beside_every_other_problem(pipelines: Path, agent: Path) -> None:
    series = "{series: {file: motor.csv, fields: [x], rate: 1, size: 1}}"
    pipelines.write_text(f"pipelines: {{m: {{source: {series}, steps: [{{infer: {{model: peple}}}}]}}}}\n")
    lines = run(pipelines, "-c", agent).stdout.splitlines()
    assert [line.partition("pipelines.m.")[2] for line in lines] == [
        f"source.series.file: there is no file {pipelines.parent}/motor.csv",
        "steps[0].infer.model: agent.yaml has no model 'peple'; did you mean 'people'?",
    ]


def test_a_misspelt_field_of_an_answer_is_told_with_its_place(pipelines: Path, agent: Path) -> None:
    pipelines.write_text(PIPELINES.replace("object.helmet.label ==", "object.helmet.lable =="))
    done = run(pipelines, "-c", agent)
    assert (done.exit_code, done.stdout) == (
        1,
        f"error: {pipelines}:13:50: pipelines.dock.events[0].where: object.helmet.lable: answers of model 'helmet' "
        "have no field 'lable'; did you mean 'label'?\n",
    )
    assert run(pipelines).exit_code == 0  # without models nobody knows


def test_a_file_that_is_not_there_is_wrong_use(pipelines: Path) -> None:
    assert isinstance(run(pipelines.with_name("none.yaml")).exception, ConfigError)
    assert isinstance(run(pipelines, "-c", pipelines.with_name("none.yaml")).exception, ConfigError)


def test_neither_a_password_nor_what_a_terminal_obeys_is_printed(pipelines: Path) -> None:
    pipelines.write_text(PIPELINES.replace("video: dock.mp4", 'video: "rtsp://dock:secret@cam.local/main?key=secret"'))
    assert "dock: video rtsp://cam.local/main (keeps latest" in run(pipelines).stdout
    for wrong in ("rtsp://dock:secret@cam.local:port/main", "rtsp://dock:secret@", "ftp://dock:secret@cam.local"):
        pipelines.write_text(PIPELINES.replace("video: dock.mp4", f'video: "{wrong}"'))
        done = run(pipelines)
        assert (done.exit_code, "secret" in done.stdout) == (1, False)
    pipelines.write_text(PIPELINES.replace("[face]", '["\\e[31m"]'))
    assert "\x1b" not in run(pipelines).stdout
