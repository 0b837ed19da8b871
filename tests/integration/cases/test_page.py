"""Somebody who does what docs/cases.md says: its files, then each of its commands in order, as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.faults.oracles import EDGE_BUNDLE, picture, pictures
from tests.page_reader import ROOT, blocks
from upwell.edge.bundle.bundle import MANIFEST_NAME
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.config.yaml import load_yaml
from upwell.shared.routing.policy.policy import Policy
from upwell.tools.cli import build_app

COUNT = 60
PAGE = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
COMMANDS = [line[2:].partition("  #")[0] for line in PAGE.splitlines() if line.startswith("$ upwell ")]


def bundle(at: Path) -> Path:
    """The digits model as one of helmets: the classes are those of the page's policy."""
    shutil.copytree(EDGE_BUNDLE, at, ignore=shutil.ignore_patterns(MANIFEST_NAME, "golden*"))
    labels = at / "labels.txt"
    labels.write_text("\n".join(["none", *labels.read_text().split()[1:]]) + "\n")
    return at


def labelled(folder: Path) -> None:
    """What a person makes of the tasks in Label Studio: here they always agree with the device."""
    tasks = json.loads((folder / "to-label/tasks.json").read_text())
    for task in tasks:
        task["annotations"] = [{"was_cancelled": False, "result": task["predictions"][0]["result"]}]
    (folder / "labelled.json").write_text(json.dumps(tasks))


def do(command: str, answer: str = "") -> str:
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(build_app(words), words, input=answer)
    assert done.exit_code == 0, (command, done.output, done.exception)
    return done.output


@pytest.mark.slow
def test_a_reader_of_the_page_collects_labels_exports_evaluates_and_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = {one.value: one.text for one in blocks(PAGE) if one.key == "title"}
    assert set(written) == {"policy.yaml", "agent.yaml"}
    bundle(tmp_path / "models/helmet")
    shutil.copytree(tmp_path / "models/helmet", tmp_path / "models/helmet-next")
    (tmp_path / "recent").mkdir()
    for index in range(200):
        (tmp_path / f"recent/{index}.png").write_bytes(picture(index))
    (tmp_path / "share").mkdir()
    (tmp_path / "cases.key").write_text(os.urandom(32).hex())  # as `openssl rand -hex 32` writes it
    (tmp_path / "policy.yaml").write_text(written["policy.yaml"])
    load_yaml(tmp_path / "policy.yaml", Policy)
    # A reader has more requests than this test, of which chance chooses more: one in two, and every hard one.
    more = written["policy.yaml"].replace("random: 0.1%", "random: 50%").replace("hard: 20%", "hard: 100%")
    (tmp_path / "policy.yaml").write_text(more)
    agent = written["agent.yaml"].replace("/mnt/share", "share")
    (tmp_path / "agent.yaml").write_text(agent + "policy: policy.yaml\n")
    reference, *_ = [one for one in COMMANDS if "model reference" in one]
    assert do(reference)
    with embedded_agent(tmp_path / "agent.yaml") as running:
        for index in range(COUNT):
            tags = {"camera": "dock", "person": str(index % 10)}
            running.infer("helmet", {"image": pictures([index])}, tags=tags)
        running.infer("helmet", {"image": pictures([0])}, tags={"kind": "face", "person": "7"})
    for command in COMMANDS:
        if command == reference:
            continue
        if "cases import" in command:
            labelled(tmp_path)
        if "evaluate" in command:  # everything is labelled by now, the evaluation set, too
            shutil.rmtree(tmp_path / "to-label")
            do("upwell cases export agent.yaml --set evaluation --format label-studio --out to-label")
            labelled(tmp_path)
            do("upwell cases import agent.yaml labelled.json --format label-studio")
        said = do(command, "y\n")
        if "cases list" in command:
            assert re.search(r"\bdock\b", said) or "hard" in said
        if "cases show" in command:
            assert (tmp_path / "sheet.html").read_text().count("<img") >= 1
        if "evaluate" in command:
            assert "gate passes" in said
    listed = json.loads(do("upwell cases list agent.yaml --json"))["cases"]
    assert listed
    assert all(one["tags"].get("person") != "7" for one in listed)
