"""The policy file of a running agent: what is taken over, what is refused, and that nothing half-written is read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.unit.models_for_tests import identity
from upwell.edge import Agent
from upwell.edge.policy import policy_file
from upwell.edge.policy.policy_file import PolicyFile
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.platform.watched_files import REST_IN_PLACE_S
from upwell.shared.routing.policy.policy import Policy


class Watched:
    """A policy file with everything that was taken from it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "policy.yaml"
        self.write("50ms")
        self.taken: list[Policy] = []
        self.now_s = 0.0
        self.file = PolicyFile(self.path, self.take, lambda: self.now_s)

    def take(self, policy: Policy) -> str:
        self.taken.append(policy)
        return ""

    def write(self, deadline: str) -> None:
        self.put(f"defaults: {{deadline: {deadline}}}\n")

    def put(self, text: str) -> None:
        """Written in place, as some editors do."""
        self.path.write_text(text)

    def settle(self) -> None:
        """Look until the file has rested, written in place or not."""
        self.file.poll()
        self.now_s += REST_IN_PLACE_S
        self.file.poll()

    def deadlines_s(self) -> list[float]:
        return [policy.settings(None, None).deadline_s for policy in self.taken]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_model_without_scores_is_told_of_once_however_many_rules_there_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity(tmp_path)
    names = "".join(f"  - {{name: r{n}, match: {{tags: {{a: b{n}}}}}, route: edge}}\n" for n in range(3))
    (tmp_path / "policy.yaml").write_text(f"rules:\n{names}")
    (tmp_path / "agent.yaml").write_text("policy: policy.yaml\nmodels: {m: {edge: {file: identity_fp32.onnx}}}\n")
    with caplog.at_level(logging.INFO), Agent.from_config(tmp_path / "agent.yaml"):
        pass
    assert sum("model m: no request counts as hard" in line for line in caplog.messages) == 1


def test_a_change_is_taken_once_it_has_settled(watched: Watched) -> None:
    watched.settle()
    assert watched.taken == []
    watched.write("200ms")
    watched.file.poll()
    watched.file.poll()
    assert watched.taken == []
    watched.now_s += REST_IN_PLACE_S
    watched.file.poll()
    assert watched.deadlines_s() == [0.2]
    watched.settle()
    assert watched.deadlines_s() == [0.2]
    assert watched.file.policy is watched.taken[0]


def test_a_file_moved_into_place_is_taken(watched: Watched) -> None:
    other = watched.path.with_name("new.yaml")
    other.write_text("defaults: {deadline: 70ms}\n")  # as long as before: size alone would not show it
    os.utime(other, ns=(watched.path.stat().st_atime_ns, watched.path.stat().st_mtime_ns))
    os.replace(other, watched.path)
    watched.settle()
    assert watched.deadlines_s() == [0.07]


def test_a_file_that_still_grows_is_not_read_though_it_is_valid(watched: Watched) -> None:
    text = "defaults: {deadline: 1s}\nrules:\n- {name: private, match: {}, egress: deny}\n"
    for end in range(25, len(text), 10):
        watched.put(text[:end])
        watched.file.poll()
    assert watched.taken == []
    watched.put(text)
    watched.settle()
    assert [rule.name for rule in watched.file.policy.rules] == ["private"]


def test_what_changes_while_it_is_read_is_not_taken(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_yaml

    def slowly(path: Path, model: type[Policy]) -> Policy:
        policy = load(path, model)
        watched.write("300ms")
        monkeypatch.setattr(policy_file, "load_yaml", load)
        return policy

    watched.write("2h")
    watched.file.poll()
    watched.now_s += REST_IN_PLACE_S
    monkeypatch.setattr(policy_file, "load_yaml", slowly)
    watched.file.poll()
    assert watched.taken == []
    watched.settle()
    assert watched.deadlines_s() == [0.3]


def test_a_wrong_file_keeps_the_former_policy_and_says_every_problem_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.put("defaults: {deadline: 5}\nrule: []\n")
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            watched.settle()
    assert watched.taken == []
    _, record = caplog.records  # the first says that it is written in place
    assert "defaults.deadline" in record.getMessage()
    assert "2:1: rule: unknown key" in record.getMessage()
    watched.write("80ms")
    watched.settle()
    assert watched.deadlines_s() == [0.08]


def test_a_file_that_is_gone_keeps_the_former_policy(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.path.unlink()
    for _ in range(3):
        watched.settle()
    assert watched.taken == []
    assert len(caplog.records) == 1
    watched.write("90ms")
    watched.settle()
    assert watched.deadlines_s() == [0.09]


def test_the_same_policy_written_anew_changes_nothing(watched: Watched) -> None:
    watched.put("# only a comment more\ndefaults: {deadline: 50ms}\n")
    watched.settle()
    assert watched.taken == []


def test_a_wrong_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("defaults: 5\n")
    with pytest.raises(ConfigError):
        PolicyFile(tmp_path / "policy.yaml", lambda _: "")
