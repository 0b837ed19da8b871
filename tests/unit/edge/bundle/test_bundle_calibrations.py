"""Calibrations that travel with a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from upwell.edge.bundle.bundle import CALIBRATIONS_NAME
from upwell.edge.bundle.bundle_calibrations import calibrations_text, load_calibrations
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy

HERE, ELSEWHERE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
POLICY = f"""version: 1
calibrations:
- {{model: digits, edge_digest: '{HERE}', measure: margin, below: 0.25, cloud_share: 20%}}
- {{model: digits, edge_digest: '{HERE}', measure: entropy, above: 0.5, max_risk: 2%, confidence: 90%, temperature: 1.5,
   evidence: {{requests: 100, from: log.jsonl}}}}
- {{model: digits, edge_digest: '{ELSEWHERE}', measure: margin, below: 0.3, cloud_share: 20%}}
- {{model: digits, measure: margin, below: 0.4, cloud_share: 30%}}
- {{model: other, measure: margin, below: 0.5, cloud_share: 20%}}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def test_those_of_the_bundles_models_go_along_as_they_are(tmp_path: Path, policy: Path) -> None:
    (tmp_path / CALIBRATIONS_NAME).write_text(calibrations_text(policy, {HERE}, "digits"))
    everything = load_yaml(policy, Policy).calibrations
    assert load_calibrations(tmp_path) == (everything[0], everything[1], everything[3])


def test_the_same_calibrations_give_the_same_text(policy: Path) -> None:
    assert calibrations_text(policy, {HERE, ELSEWHERE}, "x") == calibrations_text(policy, {ELSEWHERE, HERE}, "x")


def test_a_policy_without_any_is_an_error(policy: Path) -> None:
    with pytest.raises(ConfigError, match="none of its calibrations is for a model of this bundle"):
        calibrations_text(policy, {"sha256:0"}, "none")


def test_a_bundle_may_have_none(tmp_path: Path) -> None:
    assert load_calibrations(tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 2\ncalibrations: []", "version"),
        ("calibrations: [{model: a, measure: margin, below: 1}]", "cloud_share"),
        ("calibrations: []\nextra: 1", "extra"),
        ("version: 1", "calibrations"),
        ("calibrations: [{a}, {a}]".replace("{a}", "{model: a, measure: margin, below: 1, cloud_share: 1%}"), "two"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / CALIBRATIONS_NAME).write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_calibrations(tmp_path)
    assert caught.value.problems[0].path == tmp_path / CALIBRATIONS_NAME
