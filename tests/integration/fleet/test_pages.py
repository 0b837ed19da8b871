"""Somebody who does what the pages say: from keys to a release, a service, a device, and a roll-out to it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.faults.programs import UPWELL, Program
from tests.page_reader import ROOT, Block, Reader, blocks, matches
from upwell.edge.bundle.archive import write_archive
from upwell.edge.bundle.bundle import MANIFEST_NAME, entry_of, sizes_in
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.tools.demo.digit_data import ASSETS

LIMIT_S = 60.0
SERVES = "upwell fleet serve -c fleet.yaml\n"
SAID_ID = "3f9c01ab"


def page(name: str) -> list[Block]:
    return blocks((ROOT / "docs" / name).read_text(encoding="utf-8"))


def until(ask: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not ask():
        assert time.monotonic() < until_s
        time.sleep(0.2)


class Shell:
    """A person at a terminal in `folder`."""

    def __init__(self, folder: Path, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.environment = {**Reader(folder).environment, **environment}

    def do(self, script: str) -> str:
        """What it prints; fails where a command does."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=self.environment, capture_output=True,
            text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout


def released(folder: Path) -> Path:
    """What docs/releases.md says up to its first release."""
    workstation = folder / "desk"
    model = Path(shutil.copytree(ASSETS / "edge" / "digits", folder / "digits"))
    manifest = new_manifest("digits", 3, {path: entry_of(model / path) for path in sizes_in(model)})
    (model / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    workstation.mkdir()
    write_archive(workstation / "digits-3.bundle.tar", model)
    (workstation / "policy.yaml").write_text("version: 1\n")
    for block in [one for one in page("releases.md") if one.language in ("sh", "console")][:3]:
        Reader(workstation).do(block)
    return workstation


def released_again(shell: Shell) -> None:
    (shell.folder / "policy.yaml").write_text("version: 1\ndefaults: {deadline: 3s}\n")
    shell.do("upwell release add releases --like 1 --policy policy.yaml")
    shell.do("upwell release sign releases --key targets.pem; upwell release publish releases --key online.pem")


@pytest.mark.slow
def test_a_reader_comes_from_a_service_to_a_device_and_rolls_a_release_out(tmp_path: Path) -> None:
    workstation = released(tmp_path)
    serve, person, device = (one.text for one in page("fleet.md")[:3])
    assert serve.endswith(SERVES)
    server = Shell(tmp_path / "server")
    here = serve.removesuffix(SERVES).replace("0.0.0.0:4320", "127.0.0.1:0").replace("fleet.example.com", "127.0.0.1")
    assert here.startswith("pip install 'upwell[fleet]'\n")
    server.do(here.partition("\n")[2].replace("names: [127.0.0.1]", "names: [127.0.0.1], poll: 1s"))
    with Program(["fleet", "serve", "-c", "fleet.yaml"], [UPWELL], cwd=str(server.folder)) as running:
        address = running.address()
        at_desk = Shell(workstation)
        for name in ("fleet-ca.pem", "token"):
            shutil.copy(server.folder / name, workstation)
        at_desk.do(person.replace("fleet.example.com:4320", address))
        exported = dict(re.findall(r"(UPWELL_\w+)=(\S+)", person.replace("fleet.example.com:4320", address)))
        at_desk.environment |= exported
        box = agent_of(tmp_path / "device", device.replace("fleet.example.com:4320", address), workstation)
        with Program(["agent", "-c", "agent.yaml"], cwd=str(box)) as agent:
            agent.find(r"(serving on)")
            until(lambda: "gate-7" in at_desk.do("upwell fleet devices"))
            looked_at(at_desk)
            released_again(at_desk)
            rolled_out(at_desk)


def agent_of(folder: Path, text: str, workstation: Path) -> Path:
    folder.mkdir()
    for name in ("fleet-ca.pem", "enrol-token"):
        shutil.copy(workstation / name, folder)
    shutil.copy(ASSETS / "edge/digits/model.onnx", folder)
    text = text.replace("/var/lib/upwell", "state").replace("state_dir", "listen: ['127.0.0.1:0'], state_dir")
    source = f"{{source: {workstation / 'releases'}, root: {workstation / 'releases/metadata/1.root.json'}, every: 1s}}"
    (folder / "agent.yaml").write_text(f"{text}release: {source}\n")
    return folder


def looked_at(shell: Shell) -> None:
    """Every command of the table, with names in the place of its words."""
    rows = re.findall(r"^\| `upwell fleet ([^|]+)`", (ROOT / "docs/fleet.md").read_text(), re.MULTILINE)
    real: Mapping[str, str] = {
        "devices": "devices --group cameras", "show": "show gate-7",
        "group": "group put cameras 'labels.site == \"hamburg\"'", "assign": "assign 1 --group cameras",
        "explain": "explain gate-7 nothing --wait 20", "tail": "tail", "label": "label gate-7 shelf=9",
        "token": "token list",
    }  # fmt: skip
    for word in ("group", "assign", "devices", "show", "tail", "label", "token"):
        assert any(row.startswith(word) for row in rows), word
        shell.do(f"upwell fleet {real[word]}")
    until(lambda: json.loads(shell.do("upwell fleet show gate-7 --json"))["release"] == 1)
    asked = subprocess.run(
        ["bash", "-c", f"upwell fleet {real['explain']}"], cwd=shell.folder, env=shell.environment,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (asked.returncode, "no request 'nothing'" in asked.stderr) == (1, True), asked.stderr


def rolled_out(shell: Shell) -> None:
    (block,) = [one for one in page("fleet.md") if one.language == "console"]
    rollout = SAID_ID
    commands = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)[1:]
    for command, output in zip(commands[::2], commands[1::2], strict=True):
        said = shell.do(command.replace(SAID_ID, rollout).replace("rollout 7", "rollout 2"))
        if found := re.search(r"roll-out ([0-9a-f]{8}) has started", said):
            rollout = found[1]
        lines = output.replace(SAID_ID, rollout).splitlines()
        assert not lines or matches(lines, said.splitlines()), (command, said)
    shown = json.loads(shell.do(f"upwell fleet rollouts {rollout} --json"))
    assert (shown["phase"], shown["halted_by"]) == ("halted", "taken back by ann")
    until(lambda: json.loads(shell.do("upwell fleet show gate-7 --json"))["release"] == 1)
