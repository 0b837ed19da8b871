"""Torch networks, exported by `upwell model export` and cut: every legal cut gives what torch itself gives."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from tests.models.onnx_recomposing import CutModel, random_feed, recomposed, relative_error, session_of
from tests.models.torch_networks import MobileNetV2, ResNet18
from upwell.tools.export.device import TorchNetwork, exported

LARGEST_ERROR = 1e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("network", [ResNet18, MobileNetV2])
def test_every_legal_cut_of_an_exported_network(tmp_path: Path, network: type[ResNet18] | type[MobileNetV2]) -> None:
    torch.manual_seed(0)
    module = network().warm_up()
    cut = CutModel(onnx.ModelProto.FromString(exported(TorchNetwork.of(module), ".onnx")), tmp_path)
    feed = random_feed(session_of(cut.path), rows=2)
    with torch.inference_mode():
        expected = {"scores": module(torch.from_numpy(feed["picture"])).numpy()}
    errors = [relative_error(recomposed(cut.split(edge), feed), expected) for edge in cut.edges(0)]
    print(f"{network.__name__}: {len(errors)} cuts, largest relative error against torch {max(errors):.2g}")
    assert len(errors) > 15
    assert max(errors) <= LARGEST_ERROR
