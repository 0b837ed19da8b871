"""Answers that are not what their signature says: said, and served all the same."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.models_for_tests import linear
from upwell.edge.models.plausible_outputs import implausible
from upwell.edge.observe.agent_health import document, summary
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.signature.signature import LogicalOutput, OutputKind
from upwell.shared.tensors import TensorSpec
from upwell.tools.bundle.bundle_packing import PackRequest, packed


def said(numbers: Any, kind: OutputKind = "probabilities") -> tuple[str, ...]:
    output = LogicalOutput("scores", kind, TensorSpec("scores", "FP32", (-1, 3)))
    return implausible([output], {"scores": np.array(numbers, np.float32)})


@pytest.mark.parametrize(
    "numbers",
    [
        [[0.2, 0.3, 0.5]],
        [[1, 0, 0], [0, 0, 1]],
        [[0.25, 0.25, 0.4961]],  # int8
        [[1 / 1000] * 1000],
        [[0.7]],  # of the second of two classes
        [[np.nan, 0, 0]],
        np.zeros((0, 3)),
    ],
)
def test_probabilities_are_let_be(numbers: Any) -> None:
    assert said(numbers) == ()


@pytest.mark.parametrize(
    "numbers", [[[-3.2, 0.1, 4.1]], [[0, 0, 0]], [[0.5, 0.5, 0.5]], [[1.5]], [[0.2, 0.3, 0.5], [9, 1, 0]]]
)
def test_logits_that_are_called_probabilities_are_found(numbers: Any) -> None:
    (remark,) = said(numbers)
    assert "for logits write `kind: logits`, or a `softmax` in `post`" in remark
    assert said(numbers, "logits") == ()


def bundle(folder: Path, kind: str, post: list[Any]) -> Path:
    target = folder / "bundle"
    target.mkdir()
    linear(folder).rename(target / "model.onnx")
    inputs = {"x": {"kind": "tensor", "dtype": "FP32", "shape": [-1, 8]}}
    text = {"signature": {"inputs": inputs, "outputs": {"y": {"kind": kind}}}, "post": post}
    (target / "model.yaml").write_text(json.dumps(text))
    return target


@pytest.mark.parametrize(
    ("kind", "post", "is_odd"),
    [
        ("probabilities", [], True),
        ("logits", [], False),
        ("probabilities", [{"softmax": {"to": "y"}}], False),
    ],
)
def test_an_agent_says_so_at_its_start_and_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, post: list[Any], is_odd: bool
) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(json.dumps({"models": {"m": {"edge": {"bundle": str(bundle(tmp_path, kind, post))}}}}))
    with embedded_agent(config) as agent:
        assert agent.infer("m", {"x": np.zeros((1, 8), np.float32)}).route == "edge"
        (health,) = agent.health()
        found = document([health], {}, [], {}, {})
        assert found["status"] == "ok"  # no error
        assert bool(found["models"]["m"]["report"]["remarks"]) is is_odd
        assert ("kind: logits" in summary(health)) is is_odd
    lines = [one for one in caplog.records if "on a run with zeros output 'y'" in one.getMessage()]
    assert [one.levelno for one in lines] == [logging.WARNING] * is_odd


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_packing_says_so_too(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    folder = bundle(tmp_path, kind, [])
    with packed(folder, PackRequest("m", 1), tmp_path / "out", lambda _: None):
        pass
    assert ("in the golden vectors output 'y' is `kind: probabilities`" in caplog.text) is (kind == "probabilities")
