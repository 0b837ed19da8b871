"""The example of texts: trained, served on both sides, and asked over loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.page_reader import ROOT
from upwell.edge.agent import Agent
from upwell.tools.demo.demonstration import CloudProcess

SENT = 600
MARGIN = 0.2
"""Between the figures of 20 % and 40 % that the example prints."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hard_texts_go_up_and_make_the_answers_better(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "examples/text/make_models.py", tmp_path], capture_output=True, text=True, check=True
    )
    assert "held-out sentences" in made.stdout
    lines = [json.loads(line) for line in (tmp_path / "heldout.jsonl").read_text("utf-8").splitlines()[:SENT]]
    labels = np.array([line["label"] for line in lines])
    texts = np.array([line["text"].encode() for line in lines], object)
    (tmp_path / "policy.yaml").write_text(
        f"version: 1\ndefaults: {{deadline: 5s, hard: {{measure: margin, below: {MARGIN}}}}}\n"
    )
    with CloudProcess(tmp_path / "cloud", "onnx", tmp_path / "cloud.log") as cloud:
        for name, above in (("alone", ""), ("hybrid", f"cloud: {{endpoint: '{cloud.endpoint}'}}\n")):
            side = ", cloud: {model: texts}" if above else ""
            (tmp_path / f"{name}.yaml").write_text(
                f'version: 1\nagent: {{listen: ["127.0.0.1:0"], state_dir: {name}}}\n{above}policy: policy.yaml\n'
                f"models: {{texts: {{edge: {{file: edge/texts/model.onnx}}{side}}}}}\n"
            )
        right, shares = {}, {}
        for name in ("alone", "hybrid"):
            with Agent.from_config(tmp_path / f"{name}.yaml") as agent:
                answers = [agent.infer("texts", {"text": texts[row : row + 1]}) for row in range(SENT)]
            classes = np.array([answer.outputs["scores"][0].argmax() for answer in answers])
            right[name] = float((classes == labels).mean())
            shares[name] = float(np.mean([answer.route == "cloud" for answer in answers]))
    print(right, shares)
    assert shares["alone"] == 0
    assert 0.1 < shares["hybrid"] < 0.6
    assert right["hybrid"] > right["alone"] + 0.02
