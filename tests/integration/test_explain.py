"""`upwell explain`: beside the running agent, after it, and where there is nothing to tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.unit.edge.request_traces import answer, request_trace, signals
from upwell.edge.commands.explain_cli import explain
from upwell.edge.observe.flight_recorder import FOLDER_NAME, FlightRecorder, UnknownRequest
from upwell.shared.errors import ConfigError, Refused
from upwell.shared.routing.reasons import Reason

AGENT = "version: 1\nagent: {state_dir: state}\nmodels: {digits: {edge: {file: model.onnx}}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT)
    return path


@pytest.fixture
def recorder(tmp_path: Path) -> Any:
    recorder = FlightRecorder(tmp_path / "state" / FOLDER_NAME)
    yield recorder
    recorder.close()


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(explain)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_an_answer_is_told_from_signals_to_reason(config: Path, recorder: FlightRecorder) -> None:
    recorder.note(request_trace("0123abcd", {"camera": "dock"}, signals=signals({"camera": "dock"}, has_cloud=True)))
    recorder.last(1)  # written; the recorder still runs
    result = run("0123", "-c", config)
    assert result.exit_code == 0, result.output
    headings = ["request", "signals", "policy", "decided on arrival", "predicted and actual", "outcome"]
    assert [line for line in result.output.splitlines() if not line.startswith(" ")] == headings
    for part in ("id 0123abcd", "camera=dock", "no rule set it", "hard by margin, threshold 0.75", "10.0 ms"):
        assert part in result.output
    assert "reason easy: The device answered and was sure enough." in result.output


def test_json_is_the_record_alone(config: Path, recorder: FlightRecorder) -> None:
    recorder.note(request_trace("a"))
    recorder.close()
    found = json.loads(run("a", "-c", config, "--json").stdout)
    assert found["answer"]["reason"] == "easy"
    listed = json.loads(run("--last", 5, "-c", config, "--json").stdout)
    assert listed == [found]


def test_the_last_are_listed_the_newest_first(config: Path, recorder: FlightRecorder) -> None:
    recorder.note(request_trace("first"))
    recorder.note(request_trace("second", answer=answer("second", Reason.CLOUD_DEADLINE)))
    recorder.note(request_trace("third", answer=None, error=("Refused", "busy")))
    recorder.close()
    lines = run("--last", 2, "-c", config).output.splitlines()
    assert len(lines) == 3
    assert re.search(r"third +digits +error +Refused", lines[1])
    assert re.search(r"second +digits +edge +cloud_deadline +12\.0 ms +yes", lines[2])


def test_an_unknown_id_is_one_sentence(config: Path, recorder: FlightRecorder) -> None:
    recorder.note(request_trace("a"))
    recorder.close()
    result = run("nope", "-c", config)
    assert isinstance(result.exception, UnknownRequest)  # exit code 1 of `upwell`
    assert not isinstance(result.exception, ConfigError)
    assert re.fullmatch(r"no request 'nope' is recorded: the recorder has .* back to [-\d :.+]+", str(result.exception))


def test_an_agent_that_never_ran_has_nothing(config: Path) -> None:
    assert str(run("a", "-c", config).exception) == "no request 'a' is recorded: the recorder is empty"
    assert json.loads(run("--last", 3, "-c", config, "--json").stdout) == []


@pytest.mark.parametrize("arguments", [(), ("a", "--last", 3)])
def test_either_an_id_or_a_number(config: Path, arguments: tuple[object, ...]) -> None:
    result = run(*arguments, "-c", config)
    assert isinstance(result.exception, ConfigError)
    assert "expected the id of a request or an event, or --last N" in str(result.exception)


def test_without_a_state_dir_it_says_what_is_missing(config: Path) -> None:
    config.write_text(AGENT.replace("state_dir: state", "name: x"))
    result = run("a", "-c", config)
    assert isinstance(result.exception, ConfigError)
    assert "agent.state_dir: not set" in str(result.exception)


def test_a_folder_that_cannot_be_read_is_said(config: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FOLDER_NAME).write_text("no folder")
    result = run("a", "-c", config)
    assert isinstance(result.exception, ConfigError)
    assert "cannot be read" in str(result.exception)


def test_damaged_records_are_said_and_spoil_no_others(config: Path, recorder: FlightRecorder, tmp_path: Path) -> None:
    folder = tmp_path / "state" / FOLDER_NAME
    recorder.close()
    folder.mkdir(parents=True)
    (folder / "00000001.jsonl").write_bytes(b'\xff\n{"id": "late", "time": 1e300}\n{"id": "none", "time": NaN}\n')
    for arguments in (("--last", 5), ("--last", 5, "--json")):
        refused = run(*arguments, "-c", config).exception
        assert isinstance(refused, UnknownRequest)
        assert str(refused) == f"nothing in {folder} can be read: its files are damaged"
    after = FlightRecorder(folder)
    after.note(request_trace("good"))
    after.close()
    listed = run("--last", 5, "-c", config)
    assert listed.exit_code == 0
    assert len(listed.output.splitlines()) == 2


def test_what_a_caller_wrote_cannot_reach_the_terminal(config: Path, recorder: FlightRecorder) -> None:
    evil = "\x1b[31mred\x07"
    recorder.note(request_trace(evil, {evil: "a\nrequest"}, answer=None, error=(Refused.__name__, evil)))
    recorder.close()
    for arguments in ((evil,), ("--last", 1)):
        output = run(*arguments, "-c", config).output
        assert "\x1b" not in output
        assert "\x07" not in output
        assert "\nrequest\n" not in output.partition("\n")[2]
