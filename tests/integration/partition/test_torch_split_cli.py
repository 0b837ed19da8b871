"""A program of torch.export by the commands: profiled, planned, split, verified, and answered by agent and service."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.in_process import InProcess
from tests.integration.agent.harness import write
from tests.integration.cloud.serving import serving
from tests.models.torch_programs import BRANCHES, branches
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.routing.reasons import Route


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_program_is_profiled_planned_split_verified_and_served(tmp_path: Path, in_process: InProcess) -> None:
    program = branches(tmp_path / "net.pt2")
    for tier in ("edge", "cloud"):
        done = in_process("partition", "profile", program, "--tier", tier, "--points", "3", "--runs", "3", "--out",
                          tmp_path / f"{tier}.json")  # fmt: skip
        assert done.code == 0, done.err
    planned = in_process("partition", "plan", "--edge", tmp_path / "edge.json", "--cloud", tmp_path / "cloud.json",
                         "--uplink", "8Mbps", "--rtt", "20ms", "--json")  # fmt: skip
    assert set(json.loads(planned.out)["placement"].values()) <= {"edge", "cloud"}
    halves = tmp_path / "halves"
    done = in_process("partition", "split", program, "--cut", "2", "--out", halves, "--json")
    assert done.code == 0, done.err
    (cut,) = json.loads(done.out)["cuts"]
    assert len(cut["tensors"]) >= 1
    for whole in (program, halves / "whole.onnx"):
        done = in_process("partition", "verify", halves, "--whole", whole, "--json")
        assert done.code == 0, done.out + done.err
    again = in_process("partition", "split", program, "--cut", "3", "--out", halves)
    assert again.code == 0, again.err
    assert [one.name for one in (halves / "heads").iterdir()] == ["c3"]
    _answers(program, halves, tmp_path)


def _answers(program: Path, halves: Path, folder: Path) -> None:
    """The device runs the head, engine torch the tail, and both say what torch says."""
    picture = np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32)
    module = torch.export.load(program).module()
    with torch.inference_mode():
        scores, best = (one.numpy() for one in module(torch.from_numpy(picture)))
    with serving("--models", halves / "tails", "--engine", "torch", "--listen", "127.0.0.1:0") as service:
        config = write(folder, "agent.yaml", {
            "agent": {"name": "device"},
            "cloud": {"endpoint": service.address},
            "policy": str(write(folder, "policy.yaml", {
                "defaults": {"deadline": "20s"}, "rules": [{"name": "all", "match": {}, "route": "split"}]})),
            "models": {"net": {"edge": {"file": str(halves / "whole.onnx")}, "split": str(halves)}},
        })  # fmt: skip
        with embedded_agent(config) as agent:
            answer = agent.infer("net", {"picture": picture}, deadline_s=20.0)
    assert (answer.route, answer.cut, answer.degraded) == (Route.SPLIT, "c3", False)
    np.testing.assert_allclose(answer.outputs["add_1"], scores, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(answer.outputs["argmax"], best)


def test_a_fixed_row_a_codec_and_missing_packages_are_said_in_one_line(tmp_path: Path, in_process: InProcess) -> None:
    out = tmp_path / "halves"
    for arguments, without, said in (
        (("--cut", "2", "--codec", "fp16"), (), "codecs apply only to ONNX"),
        (("--cut", "2", "--heads", "tflite"), ("litert_torch",), "pip install litert-torch"),
        (("--cut", "2"), ("onnxscript",), "pip install 'upwell[export]'"),
        (("--cut", "99"), (), "the head would have 99"),
    ):
        done = in_process("partition", "split", BRANCHES, "--out", out, *arguments, without=without)
        assert (done.code, out.exists()) == (2, False)
        assert said in done.err
        assert [one.name for one in tmp_path.iterdir()] == []
