"""`upwell pipeline schema`: it accepts what the loader accepts, and refuses much of what that refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.pipelines.config.test_wrong_files import RIGHT, WRONG, changed
from upwell.pipelines.commands.check_cli import schema
from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError

jsonschema = pytest.importorskip("jsonschema")

APP = typer.Typer()
APP.command()(schema)


@pytest.fixture(scope="module")
def validator() -> Any:
    done = CliRunner().invoke(APP, [])
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))
    return jsonschema.Draft202012Validator(json.loads(done.stdout))


def test_it_accepts_the_right_files(validator: Any) -> None:
    for text in RIGHT:
        assert [error.message for error in validator.iter_errors(read_tree(text, None).value)] == []


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("version: 1", "version: 2"),
        ("  dock:", "  dock 1:"),
        ("video: dock.mp4", "video: dock.mp4, camera: /dev/video0"),
        ("video: dock.mp4", "vidio: dock.mp4"),
        ("deadline: 200ms", "deadline: 200"),
        ("- track: {lost: 1s, min_score: 50%}", "- {track: {}, change: {}}"),
        ("- track: {lost: 1s, min_score: 50%}", "- {}"),
        ("min_score: 50%", "min_score: 50"),
        ("{line: [[0, 0.5], [1, 0.5]]}", "{line: [[0, 0.5], [1.5, 0.5]]}"),
        ("{line: [[0, 0.5], [1, 0.5]]}", "{lines: [[0, 0.5], [1, 0.5]]}"),
        ("on: cross gate", "on: crosses gate"),
        ("{jsonl: events.jsonl}", "{jsonl: 7}"),
    ],
)
def test_it_refuses_what_the_loader_refuses(validator: Any, written: str, instead: str) -> None:
    assert not validator.is_valid(read_tree(changed(written, instead), None).value)
    assert (written, instead) in {case[:2] for case in WRONG}


def test_it_can_be_written(tmp_path: Path) -> None:
    assert CliRunner().invoke(APP, ["--out", str(tmp_path / "p.json")]).exit_code == 0
    assert (tmp_path / "p.json").read_text() == CliRunner().invoke(APP, []).stdout
    done = CliRunner().invoke(APP, ["--out", str(tmp_path / "none" / "p.json")])
    assert isinstance(done.exception, ConfigError)
