"""Torch networks, exported by `upwell model export` and cut: every legal cut gives what torch itself gives."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
import torch

from tests.models.legal_cuts import prefix_cuts, random_downsets
from tests.models.onnx_recomposing import CutModel, random_feed, recomposed, relative_error, session_of
from tests.models.onnx_recomposing import run as onnx_run
from tests.models.torch_networks import SIZE, MobileNetV2, ResNet18
from tests.models.torch_programs import run as torch_run
from tests.models.torch_programs import saved
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.split_model import split_model
from upwell.shared.partition.torch_graph import TorchModelFile
from upwell.tools.export.torch_to_device import TorchNetwork, exported
from upwell.tools.partition.tiers import for_device

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


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("network", [ResNet18, MobileNetV2])
def test_every_legal_cut_of_a_program_with_its_head_as_onnx_and_its_tail_in_torch(
    tmp_path: Path, network: type[ResNet18] | type[MobileNetV2]
) -> None:
    torch.manual_seed(0)
    module = network().warm_up()
    path = saved(module, (torch.randn(2, 3, SIZE, SIZE),), tmp_path / "whole.pt2")
    file, graph = TorchModelFile.read(path), contract(read_graph(path))
    picture = {"picture": np.random.default_rng(1).standard_normal((3, 3, SIZE, SIZE), np.float32)}
    with torch.inference_mode():
        expected = {graph.outputs[0]: module(torch.from_numpy(picture["picture"])).numpy()}
    cuts = [frozenset(range(count)) for count in prefix_cuts(graph)] + random_downsets(graph, Random(0), 5)
    errors = []
    for edge in cuts:
        halves = split_model(file, graph, edge)
        head = session_of(for_device(halves.head, "onnx").files["model.onnx"])
        made = onnx_run(head, picture)
        assert tuple(made) == halves.cut
        errors.append(relative_error(torch_run(halves.tail, made, tmp_path), expected))
    print(f"{network.__name__}: {len(errors)} cuts, largest relative error against torch {max(errors):.2g}")
    assert len(errors) > 25
    assert max(errors) <= LARGEST_ERROR
