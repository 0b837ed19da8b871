"""A policy is taken over whole or not at all: no pause of a writer, and no cut of the file, loses an egress rule."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import sampled
from tests.unit.edge.agents import MODEL, UNSURE, Scene, rows_of, scene
from upwell.edge.policy.policy_file import PolicyFile
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.platform.watched_files import REST_IN_PLACE_S
from upwell.shared.routing.policy.policy import Policy

EXAMPLE = """\
version: 1
timezone: Europe/Berlin
defaults:
  deadline: 100ms
  hard: {measure: margin, below: 0.35}
  budget: {cloud_requests: 100/min}
models:
  digits: {deadline: 50ms}
rules:
  - {name: night, match: {hours: "22:00-06:00"}, set: {hard: {below: 0.2}}}
  - name: private
    match:
      tags: {privacy: device}
    egress: deny
  - {name: site, match: {tags: {privacy: site}}, egress: deny}
"""
CHANGED = EXAMPLE.replace("50ms", "60ms").replace("0.35", "0.4")
STEP_S = 1.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Running:
    """A real agent with its policy file, looked at once a second of virtual time."""

    def __init__(self, at: Scene, path: Path) -> None:
        self.at, self.path, self.clock = at, path, Clock()
        path.write_text(EXAMPLE)
        self.file = PolicyFile(path, at.agent._take_policy, self.clock)
        at.agent.router.replace_policy(self.file.policy)
        at.agent._policy_file = self.file

    def run(self, seconds: float) -> None:
        """Time passes; at each look the egress rules of both versions hold."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.clock.now_s = min(until_s, self.clock.now_s + STEP_S)
            self.file.poll()
            for privacy in ("device", "site"):
                assert self.at.agent.router.verdict(MODEL, {"privacy": privacy}, (1,)).egress_rule

    def write(self, text: str) -> None:
        """In place; whatever the resolution of the file system's clock, it shows."""
        self.path.write_text(text)
        os.utime(self.path, ns=(0, int(1e9 * (self.clock.now_s + 1)) + len(text)))

    @property
    def deadline_s(self) -> float:
        return self.at.agent.router.policy.settings("digits", None).deadline_s


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with scene() as at:
        yield Running(at, tmp_path / "policy.yaml")


@pytest.mark.parametrize(
    "pause_s", sampled([0.1, 0.5, 0.9, 1.0, 1.1, 1.9, 2.0, 2.5, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0], 3)
)
def test_a_writer_that_pauses_at_each_line_is_waited_for(running: Running, pause_s: float) -> None:
    lines = CHANGED.splitlines(keepends=True)
    for count in range(len(lines) + 1):
        running.write("".join(lines[:count]))
        running.run(pause_s)
        assert running.deadline_s == 0.05
    running.run(REST_IN_PLACE_S + 2 * STEP_S)
    assert running.deadline_s == 0.06
    assert running.file.problem == ""


@pytest.mark.parametrize("end", sampled(range(len(CHANGED) + 1), 19))
def test_no_cut_of_the_file_loses_an_egress_rule(running: Running, end: int) -> None:
    running.write(CHANGED[:end])
    running.run(REST_IN_PLACE_S + 3 * STEP_S)
    if end < len(CHANGED) - 1:
        assert running.deadline_s == 0.05
        assert running.file.problem


@pytest.mark.parametrize("text", ["", "{}\n", "version: 1\n", "rules: []\n"])
def test_an_empty_policy_moved_into_place_is_refused_and_says_what_to_do(
    running: Running, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = running.path.with_name("new.yaml")
    other.write_text(text)
    os.replace(other, running.path)
    running.run(3.0)
    assert running.file.problem
    assert "kept the previous policy" in caplog.text
    if text:
        assert f"replaces: {running.at.agent.router.digest}" in caplog.text
        assert "'private', 'site'" in caplog.text
    page = running.at.agent.health_document()
    assert page["status"] == "degraded"
    assert page["problems"] == [f"the policy file is not in force: {running.file.problem}"]
    assert running.at.agent.metrics.registry.get_sample_value("upwell_policy_refused") == 1.0


def test_a_file_moved_into_place_takes_over_within_two_looks(running: Running) -> None:
    other = running.path.with_name("new.yaml")
    other.write_text(CHANGED)
    os.replace(other, running.path)
    running.run(2.0)
    assert running.deadline_s == 0.06
    assert running.at.agent.metrics.registry.get_sample_value("upwell_policy_refused") == 0.0


def test_a_file_that_grows_after_it_came_is_waited_for_as_one_in_place(running: Running) -> None:
    running.path.unlink()
    running.run(1.0)
    running.write(CHANGED[:-40])
    running.run(30.0)
    assert running.deadline_s == 0.05
    running.write(CHANGED)
    running.run(REST_IN_PLACE_S + 2 * STEP_S)
    assert running.deadline_s == 0.06


def test_who_names_the_policy_in_force_may_drop_its_rules(running: Running) -> None:
    digest = running.at.agent.router.digest
    other = running.path.with_name("new.yaml")
    for named, is_taken in ((f"sha256:{'0' * 64}", False), (digest, True)):
        other.write_text(f"defaults: {{deadline: 1s, hard: {{below: 1.0}}}}\nreplaces: {named}\n")
        assert load_yaml(other, Policy).digest != digest
        os.replace(other, running.path)
        running.clock.now_s += 1
        running.file.poll()
        running.clock.now_s += 1
        running.file.poll()
        assert (not running.at.agent.router.verdict(MODEL, {"privacy": "device"}, (1,)).egress_rule) is is_taken
    assert running.at.infer(rows_of(UNSURE), tags={"privacy": "device"}).reason == "hard"


def test_writing_in_place_is_warned_of_once(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    for end in (20, 40, 60):
        running.write(CHANGED[:end])
        running.run(2.0)
    assert caplog.text.count("is being written in place") == 1
    assert "mv" in caplog.text
    assert REST_IN_PLACE_S > 30.0


@pytest.mark.parametrize("end", sampled(range(0, 130, 3), 4))
def test_no_cut_of_a_file_that_may_drop_rules_drops_one(running: Running, end: int) -> None:
    """The digest is the last of the file, so a cut one has none, or none that is whole."""
    digest = running.at.agent.router.digest
    text = f"version: 1\ndefaults: {{deadline: 1s}}\nreplaces: {digest}"
    running.write(text[: min(end, len(text) - 1)])
    running.run(REST_IN_PLACE_S + 3 * STEP_S)
    assert running.file.problem


def test_where_else_than_at_the_end_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"replaces: sha256:{'0' * 64}\nversion: 1\n")
    with pytest.raises(ConfigError, match=r"1:.*replaces: expected as the last key"):
        load_yaml(path, Policy)
