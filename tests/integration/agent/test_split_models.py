"""Models that are awkward to split, and what callers get of them: always all that the whole gives."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.integration.agent.harness import write
from tests.integration.cloud.serving import Service, serving
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.cut_choice import cut_at
from upwell.shared.partition.split.split_file import SplitFacts
from upwell.shared.partition.split.split_model import UnsplitModel
from upwell.shared.partition.split.split_writer import write_split
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.tensors import Array

_RANDOM = np.random.default_rng(5)
_LIMIT_S = 10.0


def weights(**shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    made = _RANDOM.normal(0, 0.3, 10_000).astype(np.float32)
    return [numpy_helper.from_array(np.resize(made, shape), name) for name, shape in shapes.items()]


def matmul(*names: str) -> onnx.NodeProto:
    *inputs, output = names
    return helper.make_node("MatMul", inputs, [output], name=output)


def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Any) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def several_outputs(folder: Path) -> Path:
    """`early` is made long before the end; `mid` is an output and is read on."""
    nodes = [
        matmul("x", "w1", "a"), matmul("a", "w3", "early"), matmul("a", "w2", "mid"), matmul("mid", "w2", "b"),
        matmul("b", "w3", "late"),
    ]  # fmt: skip
    outputs = [value("late", "n", 4), value("early", "n", 4), value("mid", "n", 32)]
    constants = weights(w1=(16, 32), w2=(32, 32), w3=(32, 4))
    return save(folder / "several.onnx", nodes, [value("x", "n", 16)], outputs, constants)


def late_input(folder: Path) -> Path:
    """`gain` is read at the end alone, `picture` is uint8."""
    nodes = [
        helper.make_node("Cast", ["picture"], ["f"], to=TensorProto.FLOAT, name="f"),
        matmul("f", "w1", "a"), matmul("a", "w2", "b"), matmul("b", "w2", "c"),
        helper.make_node("Mul", ["c", "gain"], ["d"], name="d"), matmul("d", "w3", "y"),
    ]  # fmt: skip
    inputs = [value("picture", "n", 16, kind=TensorProto.UINT8), value("gain", "n", 32)]
    constants = weights(w1=(16, 32), w2=(32, 32), w3=(32, 4))
    return save(folder / "late.onnx", nodes, inputs, [value("y", "n", 4)], constants)


def whole_sum(folder: Path) -> Path:
    """A scalar crosses beside a row, so that a head of one row has no rows."""
    nodes = [
        matmul("x", "w1", "a"),
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0, name="s"),
        matmul("a", "w2", "b"),
        helper.make_node("Mul", ["b", "s"], ["c"], name="c"),
        matmul("c", "w3", "y"),
    ]
    constants = weights(w1=(16, 32), w2=(32, 32), w3=(32, 4))
    return save(folder / "sum.onnx", nodes, [value("x", 1, 16)], [value("y", 1, 4)], constants)


def detector(folder: Path) -> Path:
    """Its boxes go back to the caller's picture, of which a tail knows nothing."""
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["a"], pads=[1, 1, 1, 1], strides=[4, 4], name="a"),
        helper.make_node("Conv", ["a", "k2"], ["b"], pads=[1, 1, 1, 1], name="b"),
        helper.make_node("Conv", ["b", "k3"], ["c"], name="c"),
        helper.make_node("Sigmoid", ["c"], ["d"], name="d"),
        helper.make_node("Reshape", ["d", "shape"], ["raw"], name="raw"),
    ]
    constants = weights(k1=(8, 3, 3, 3), k2=(8, 8, 3, 3), k3=(14, 8, 1, 1))
    constants.append(numpy_helper.from_array(np.array([0, 14, 64], np.int64), "shape"))
    path = save(folder / "boxes.onnx", nodes, [value("x", "n", 3, 32, 32)], [value("raw", "n", 14, 64)], constants)
    path.with_suffix(".yaml").write_text(
        "version: 1\nsignature: {inputs: {image: {kind: image}}, outputs: {detections: {kind: detections}}}\n"
        "pre: [{decode: image}, {resize: {to: [32, 32], fit: contain}}, {normalize: {}}, {layout: NCHW},\n"
        "  {rename: {from: image, to: x}}]\npost: [{boxes: {from: raw, format: cxcywh, normalized: true}}]\n"
    )
    return path


def classifier(folder: Path) -> Path:
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["a"], pads=[1, 1, 1, 1], strides=[4, 4], name="a"),
        helper.make_node("Conv", ["a", "k2"], ["b"], strides=[4, 4], name="b"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], name="c"),
        helper.make_node("Flatten", ["c"], ["logits"], name="logits"),
    ]
    constants = weights(k1=(8, 3, 3, 3), k2=(10, 8, 3, 3))
    path = save(folder / "class.onnx", nodes, [value("x", "n", 3, 32, 32)], [value("logits", "n", 10)], constants)
    path.with_suffix(".yaml").write_text(
        "version: 1\nsignature: {inputs: {image: {kind: image}}, outputs: {scores: {kind: probabilities}}}\n"
        "pre: [{decode: image}, {resize: {to: [32, 32]}}, {normalize: {}}, {layout: NCHW},\n"
        "  {rename: {from: image, to: x}}]\npost: [{softmax: {from: logits, to: scores}}]\n"
    )
    return path


MODELS = {path.__name__: path for path in (several_outputs, late_input, whole_sum, detector, classifier)}


def by_route(route: str) -> dict[str, Any]:
    """A policy for every request."""
    return {"defaults": {"deadline": "5s"}, "rules": [{"name": "all", "match": {}, "route": route}]}


class Halves:
    """Every cut of every model: `models` and `facts` by name such as `late_input-2`; tails are served."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.served = folder, folder / "served"
        self.served.mkdir()
        self.models: dict[str, Path] = {}
        self.facts: dict[str, SplitFacts] = {}
        for name, make in MODELS.items():
            path = make(folder)
            graph = contract(read_graph(path))
            whole = UnsplitModel.open(path, graph, name)
            for count in range(1, len(graph.nodes)):
                cut = cut_at(str(count), graph)
                key = f"{name}-{count}"
                self.models[key] = path
                self.facts[key] = write_split(folder / key, whole, [(cut, whole.divide(cut.edge))]).facts
                for tail in (folder / key / "tails").iterdir():
                    tail.rename(self.served / tail.name)

    def agent(self, address: str, policy: Mapping[str, Any], names: Sequence[str], *, edge: bool = True) -> AgentCore:
        """An agent that serves these, each with its one head."""
        models = {
            name: {
                "split": str(self.folder / name),
                **({"edge": {"file": str(self.models[name]), "threads": 1, "instances": 1}} if edge else {}),
            }
            for name in names
        }
        config = {"cloud": {"endpoint": address}, "policy": str(write(self.folder, "policy.yaml", policy))}
        return embedded_agent(write(self.folder, "agent.yaml", {**config, "models": models}))

    def of(self, model: str) -> list[str]:
        """The names of its cuts."""
        return [name for name in self.models if name.rpartition("-")[0] == model]


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Halves:
    return Halves(tmp_path_factory.mktemp("awkward"))


@pytest.fixture(scope="module")
def service(halves: Halves) -> Iterator[Service]:
    with serving("--models", halves.served) as service:
        yield service


def request_and_answer(path: Path, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Random inputs, and what the whole gives for each row."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(rows)
    inputs: dict[str, Array] = {}
    for one in session.get_inputs():
        array = random.integers(0, 256, (rows, *one.shape[1:])).astype(np.uint8)
        inputs[one.name] = array if "uint8" in one.type else (array / np.float32(256)).astype(np.float32)
    names = [one.name for one in session.get_outputs()]
    each = [session.run(names, {name: a[row : row + 1] for name, a in inputs.items()}) for row in range(rows)]
    return inputs, {name: np.concatenate(parts) for name, parts in zip(names, zip(*each, strict=True), strict=True)}


def same(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> bool:
    return set(found) == set(wanted) and all(np.allclose(found[name], wanted[name], 1e-4, 1e-5) for name in wanted)


@pytest.mark.parametrize("model", ["several_outputs", "late_input", "whole_sum"])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_output_comes_whichever_half_makes_it(halves: Halves, service: Service, model: str, rows: int) -> None:
    """One row goes by every cut. Of several, a head that cannot take them leaves them to the device."""
    names, left = halves.of(model), False
    with halves.agent(service.address, by_route("split"), names) as agent:
        for name in names:
            inputs, wanted = request_and_answer(halves.models[name], rows)
            answer = agent.infer(name, inputs, deadline_s=_LIMIT_S)
            assert same(answer.outputs, wanted), name
            (head,) = agent.model(name).heads
            left |= not head.takes(rows)
            assert (answer.route is Route.SPLIT) == head.takes(rows), name
            assert answer.reason is (Reason.RULE if head.takes(rows) else Reason.NO_SPLIT)
    assert left is (model == "whole_sum" and rows > 1)


def test_without_the_whole_the_head_gives_what_it_makes(halves: Halves, service: Service) -> None:
    names = halves.of("several_outputs")
    with halves.agent(service.address, by_route("split"), names, edge=False) as agent:
        for name in names:
            inputs, wanted = request_and_answer(halves.models[name], 2)
            assert same(agent.infer(name, inputs, deadline_s=_LIMIT_S).outputs, wanted), name
            metadata = AgentDataplane(agent).metadata(name)
            assert {one.name for one in metadata.inputs} == set(inputs)
            assert {one.name for one in metadata.outputs} == set(wanted)


def test_a_cut_that_only_the_whole_could_prepare_is_no_way_without_it(halves: Halves, service: Service) -> None:
    with pytest.raises(ConfigError, match="no head can be used"):
        halves.agent(service.address, by_route("split"), ["late_input-1"], edge=False)
    with pytest.raises(ConfigError, match="no head can be used"):
        halves.agent(service.address, by_route("split"), ["detector-1"], edge=False)


def pictures() -> Array:
    """Two rows: an encoded picture each, of different sizes."""
    found = np.empty(2, np.object_)
    for row, size in enumerate(((90, 120, 3), (50, 40, 3))):
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(row).integers(0, 256, size, np.uint8)).save(file, "JPEG")
        found[row] = file.getvalue()
    return found


@pytest.mark.parametrize("model", ["detector", "classifier"])
def test_pictures_are_prepared_once_and_answered_as_by_the_whole(halves: Halves, service: Service, model: str) -> None:
    names = halves.of(model)
    with halves.agent(service.address, by_route("edge"), names[:1]) as agent:
        wanted = agent.infer(names[0], {"image": pictures()}, deadline_s=_LIMIT_S)
        assert wanted.route is Route.EDGE
    (expected,) = wanted.outputs.values()
    assert model == "classifier" or (expected[..., 4] > 0).any()
    with halves.agent(service.address, by_route("split"), names) as agent:
        for name in names:
            answer = agent.infer(name, {"image": pictures()}, deadline_s=_LIMIT_S)
            assert answer.route is Route.SPLIT
            assert same(answer.outputs, wanted.outputs)


def test_a_device_with_heads_alone_takes_pixels_and_says_what_it_takes(halves: Halves, service: Service) -> None:
    names = halves.of("classifier")[:1]
    pixels = np.random.default_rng(3).integers(0, 256, (40, 50, 3), np.uint8)
    with halves.agent(service.address, by_route("split"), names, edge=False) as agent:
        answer = agent.infer(names[0], {"image": pixels}, deadline_s=_LIMIT_S)
        assert (answer.route, answer.outputs["scores"].shape) == (Route.SPLIT, (1, 10))
        metadata = AgentDataplane(agent).metadata(names[0])
        assert [(one.name, one.datatype) for one in metadata.inputs] == [("image", "BYTES")]
        assert [one.name for one in metadata.outputs] == ["scores"]
