"""What the files start is what the program has: its subcommands and options, by the program's own parser."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.unit.deploy.manifests import DEPLOY, ROOT, container, documents, stages
from upwell.tools.cli import build_app

FENCED = re.compile(r"^```(?:sh)?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("deploy", "engines", "serving")]


def started() -> Iterator[tuple[str, list[str]]]:
    """Every command of `upwell` in the files, by where it is written, as its arguments."""
    for unit in DEPLOY.glob("systemd/*.service"):
        (line,) = re.findall(r"^ExecStart=/opt/upwell/bin/upwell (.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        yield unit.name, line.split()
    for name, steps in stages():
        yield from ((f"image {name}", json.loads(rest)) for word, rest in steps if word == "CMD")
    for name in ("service.yaml", "agent.yaml"):
        yield name, container(DEPLOY / "kubernetes" / name)["args"]
    (runtime,) = (one for one in documents(DEPLOY / "kserve" / "runtime.yaml") if one["kind"] == "ServingRuntime")
    yield "runtime.yaml", runtime["spec"]["containers"][0]["args"]
    for page in PAGES:
        for number, block in enumerate(FENCED.findall(page.read_text(encoding="utf-8"))):
            for line in re.findall(r"^(?:\$ |/opt/upwell/bin/)?upwell (.*)$", block.replace("\\\n", " "), re.MULTILINE):
                yield f"{page.name} {number}", shlex.split(line, comments=True)


COMMANDS = list(started())


def run(arguments: Sequence[str]) -> Result:
    return CliRunner().invoke(build_app(arguments), arguments)


def test_they_are_all_found() -> None:
    places = {place.split()[0] for place, _ in COMMANDS}
    assert {"upwell.service", "upwell-agent.service", "image", "service.yaml", "agent.yaml", "runtime.yaml"} <= places
    assert {"deploy.md", "engines.md", "serving.md"} <= places


@pytest.mark.parametrize(("place", "arguments"), COMMANDS, ids=[f"{place}: {' '.join(one)}" for place, one in COMMANDS])
def test_the_program_takes_it(place: str, arguments: list[str]) -> None:
    done = run([*arguments, "--help"])  # which parses all before it says anything
    assert done.exit_code == 0, f"{place}: {done.output}"


def test_a_misspelt_option_would_be_seen() -> None:
    assert run(["serve", "--configuration", "cloud.yaml", "--help"]).exit_code == 2
    assert run(["server", "--help"]).exit_code == 2


@pytest.mark.parametrize(("words", "completed"), [("upwell do", "doctor"), ("upwell policy ca", "calibrate")])
def test_a_shell_completes_commands(words: str, completed: str) -> None:
    asked = {"_UPWELL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = Path(sys.executable).with_name("upwell")
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == ([completed], "")
