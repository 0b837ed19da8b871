"""`upwell partition split` on real models: halves that load, that a service serves at once, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from typer.testing import CliRunner, Result

from tests.integration.agent.harness import agent_process, write
from tests.integration.cloud.serving import serving
from tests.models.int8 import quantized
from tests.models.make_mobilenet_tflite import PATH as MOBILENET
from tests.models.residual_digits import build_residual_digits
from tests.models.tflite_recomposing import towers
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.oip.dataplane import InferRequest, ModelMetadata
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Graph
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.tensors import Array
from upwell.tools.partition.plan_cli import plan
from upwell.tools.partition.profile_cli import profile
from upwell.tools.partition.split_cli import split

LIMIT_S = 20.0

app = typer.Typer(pretty_exceptions_enable=False)
app.command("split")(split)
app.command("plan")(plan)
app.command("profile")(profile)


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["split", *map(str, arguments)])


def done(*arguments: object) -> Any:
    """What it prints with `--json`."""
    result = run(*arguments, "--json")
    assert result.exception is None, (result.output, result.exception)
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model for any number of rows."""
    path = tmp_path_factory.mktemp("digits") / "digits.onnx"
    onnx.save(build_residual_digits(dynamic_batch=True), path)
    return path


@pytest.fixture(scope="module")
def digits_int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits_int8")
    onnx.save(quantized(build_residual_digits(dynamic_batch=True), folder), folder / "digits.onnx")
    return folder / "digits.onnx"


def pictures(rows: int) -> Array:
    return np.random.default_rng(0).random((rows, 1, 8, 8), np.float32)


def answer(model: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    """What a model file gives in the runtime of the device."""
    runtime = load_runtime(model, RuntimeOptions(threads=1))
    outputs = runtime.run({spec.name: feed[spec.name] for spec in runtime.inputs})
    runtime.close()
    return outputs


def asked(address: str, tail: str, feed: Mapping[str, Array]) -> tuple[ModelMetadata, dict[str, Array]]:
    client = OipClient(address)
    try:
        return client.metadata(tail, LIMIT_S), dict(client.infer(InferRequest(tail, feed), LIMIT_S).outputs)
    finally:
        client.close()


@pytest.mark.parametrize(("kind", "nodes", "datatype"), [("float", 2, "FP32"), ("int8", 3, "UINT8")])
def test_a_service_serves_the_tails_at_once(
    digits: Path, digits_int8: Path, tmp_path: Path, kind: str, nodes: int, datatype: str
) -> None:
    model = digits if kind == "float" else digits_int8
    (cut,) = done(model, "--cut", nodes, "--out", tmp_path / "out")["cuts"]
    assert len(cut["tensors"]) == 2
    assert {one["datatype"] for one in cut["tensors"]} == {datatype}
    head = tmp_path / "out" / cut["head"]
    with serving("--models", tmp_path / "out" / "tails") as service:
        for rows in (1, 3):
            feed = {"picture": pictures(rows)}
            middle = answer(head, feed)
            assert sum(array.nbytes for array in middle.values()) == rows * cut["sent_bytes"]
            metadata, outputs = asked(service.address, cut["tail"], middle)
            assert {(one.name, one.datatype) for one in metadata.inputs} == {
                (one["name"], one["datatype"]) for one in cut["tensors"]
            }
            whole = answer(model, feed)["scores"]
            np.testing.assert_allclose(outputs["scores"], whole, atol=1e-5 * np.abs(whole).max(), rtol=0)


def test_the_name_of_a_tail_tells_cut_and_digest_and_changes_with_either(digits: Path, tmp_path: Path) -> None:
    names = []
    for number, (cut, model) in enumerate([("2", digits), ("3", digits), ("3", _another(digits, tmp_path))]):
        facts = done(model, "--cut", cut, "--out", tmp_path / str(number), "--name", "digits")
        assert facts["whole"] == model_digest(model).removeprefix("sha256:")
        names.append(facts["cuts"][0]["tail"])
    prefixes = [name.rsplit("--", 1)[0] for name in names]
    assert prefixes == ["digits--c2", "digits--c3", "digits--c3"]
    assert len({name.rsplit("--", 1)[1] for name in names}) == 3


def _another(model: Path, folder: Path) -> Path:
    """The same network with other weights."""
    path = folder / "another.onnx"
    onnx.save(build_residual_digits(seed=1, dynamic_batch=True), path)
    assert path.stat().st_size == model.stat().st_size
    return path


def test_a_description_goes_to_both_halves(digits: Path, tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    model.write_bytes(digits.read_bytes())
    labels = [f"digit {number}" for number in range(10)]
    (tmp_path / "names.txt").write_text("\n".join(labels))
    (tmp_path / "digits.yaml").write_text(
        "signature:\n"
        "  inputs: {image: {kind: image}}\n"
        "  outputs: {odds: {kind: probabilities, labels: names.txt}}\n"
        "pre: [{decode: {from: image, color: gray}}, {resize: {to: [8, 8]}}, {normalize: {}}, {layout: NCHW}]\n"
        "post: [{softmax: {to: odds}}]\n"
    )
    (cut,) = done(model, "--cut", 3, "--out", tmp_path / "out")["cuts"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)
    files = {"head": tmp_path / "out" / cut["head"], "whole": model}
    with _agent(files, tmp_path) as address, serving("--models", tmp_path / "out" / "tails") as service:
        metadata, middle = asked(address, "head", {"image": pixels})
        assert [one.name for one in metadata.inputs] == ["image"]
        _, outputs = asked(service.address, cut["tail"], middle)
        _, whole = asked(address, "whole", {"image": pixels})
    assert list(outputs) == ["odds"]
    np.testing.assert_allclose(outputs["odds"].sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(outputs["odds"], whole["odds"], atol=1e-5)
    tail = tmp_path / "out" / "tails" / cut["tail"] / "1"
    assert (tail / "labels.txt").read_text().splitlines() == labels
    assert "labels.txt" in (tail / "model.yaml").read_text()


@contextmanager
def _agent(models: Mapping[str, Path], folder: Path) -> Iterator[str]:
    """The address of an agent that serves these files on a free port."""
    sides = {name: {"edge": {"file": str(path), "threads": 1}} for name, path in models.items()}
    config = write(folder, "agent.yaml", {"agent": {"name": "gateway", "listen": ["127.0.0.1:0"]}, "models": sides})
    with agent_process(config) as running:
        yield running.addresses[0]


def test_tails_of_a_tflite_model_are_served_by_an_agent(tmp_path: Path) -> None:
    facts = done(MOBILENET, "--cut", "CONV_2D_9", "--out", tmp_path / "out", "--name", "mobilenet")
    (remark,) = facts["remarks"]
    assert "no engine for TFLite" in remark
    (cut,) = facts["cuts"]
    feed = {"image": np.random.default_rng(0).random((1, 96, 96, 3), np.float32)}
    middle = answer(tmp_path / "out" / cut["head"], feed)
    tail = tmp_path / "out" / "tails" / cut["tail"] / "1" / "model.tflite"
    with _agent({cut["tail"]: tail}, tmp_path) as address:
        metadata, outputs = asked(address, cut["tail"], middle)
    assert {(one.name, one.datatype) for one in metadata.inputs} == {(name, "INT8") for name in middle}
    np.testing.assert_array_equal(outputs["scores"], answer(MOBILENET, feed)["scores"])


# --- plans


def plan_of(graph: Graph, edge: Sequence[int], **more: Any) -> dict[str, Any]:
    """What `upwell partition plan --json` prints for a plan with these nodes on the edge."""
    placement = {node.name: "edge" if index in edge else "cloud" for index, node in enumerate(graph.nodes)}
    facts = {"total_s": 1.0, "placement": placement, "sent": []}
    return {**facts, "baselines": {"edge_only_s": None, "cloud_only_s": None}, **more}


def piece(graph: Graph, name: str, edge: Sequence[int], edge_s: float, cloud_s: float) -> dict[str, Any]:
    """A part of the envelope."""
    times = {"edge_s": edge_s, "cloud_s": cloud_s, "base_s": edge_s + cloud_s}
    bounds = {"bytes": 10, "from_bps": None, "to_bps": None}
    return {"name": name, "placement": plan_of(graph, edge)["placement"], **times, **bounds}


@pytest.fixture
def graph(digits: Path) -> Graph:
    return contract(read_graph(digits))


def test_the_cut_of_a_plan_with_its_times(digits: Path, graph: Graph, tmp_path: Path) -> None:
    everywhere = range(len(graph.nodes))
    envelope = [
        piece(graph, "all", everywhere, 0.9, 0),
        piece(graph, "c3", range(3), 0.3, 0.4),
        piece(graph, "c5", range(5), 0.5, 0.2),
        piece(graph, "none", (), 0, 0.7),
    ]
    digest = model_digest(digits)
    path = write(tmp_path, "plan.json", plan_of(graph, range(5), envelope=envelope, model=digest))
    (cut,) = done(digits, "--plan", path, "--out", tmp_path / "one")["cuts"]
    assert (cut["name"], cut["edge_s"], cut["cloud_s"]) == ("c5", 0.5, 0.2)
    cuts = done(digits, "--plan", path, "--all", "--out", tmp_path / "all")["cuts"]
    assert [(one["name"], one["edge_s"], one["cloud_s"]) for one in cuts] == [("c3", 0.3, 0.4), ("c5", 0.5, 0.2)]
    for one in cuts:
        assert (tmp_path / "all" / one["head"]).is_file()


def test_a_plan_that_counts_on_a_codec_says_so(digits: Path, graph: Graph, tmp_path: Path) -> None:
    sent = [{"tensor": "relu6", "from": "edge", "to": "cloud", "bytes": 2048, "codec": "fp16"}]
    path = write(tmp_path, "plan.json", plan_of(graph, range(3)) | {"sent": sent})
    (remark,) = done(digits, "--plan", path, "--out", tmp_path / "out")["remarks"]
    assert "sent as fp16" in remark
    assert done(digits, "--plan", path, "--out", tmp_path / "out", "--codec", "fp16")["remarks"] == []


def test_two_cuts_with_as_many_nodes_have_names_of_their_own(tmp_path: Path) -> None:
    model = tmp_path / "towers.tflite"
    towers(tmp_path, depth=2)
    graph = contract(read_graph(model))
    first, *_, second = [index for index, node in enumerate(graph.nodes) if node.inputs == graph.inputs]
    envelope = [piece(graph, "a", [first], 0.1, 0.2), piece(graph, "b", [second], 0.2, 0.1)]
    path = write(tmp_path, "plan.json", plan_of(graph, [first], envelope=envelope))
    cuts = done(model, "--plan", path, "--all", "--out", tmp_path / "out")["cuts"]
    assert [one["name"] for one in cuts] == ["c1", "c1-2"]
    assert cuts[0]["tensors"] != cuts[1]["tensors"]
    assert cuts[0]["raw_inputs"] == cuts[1]["raw_inputs"] == ["x"]


def test_the_answer_to_a_cost_graph_is_a_plan(digits: Path, graph: Graph, tmp_path: Path) -> None:
    """Whatever its tiers are called."""
    costs = {
        "tiers": ["dock", "hall"],
        "nodes": [
            {"name": one.name, "inputs": one.inputs, "outputs": one.outputs, "cost_s": {"dock": 1 + at, "hall": 3}}
            for at, one in enumerate(graph.nodes)
        ],
        "tensors": {name: {"bytes": tensor.size_bytes()} for name, tensor in graph.tensors.items()},
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "input_tier": "dock",
        "output_tier": None,
        "links": [{"from": "dock", "to": "hall", "bps": 1e6, "fixed_s": 0, "return_bps": 1e6}],
    }
    result = CliRunner().invoke(app, ["plan", "--graph", str(write(tmp_path, "costs.json", costs)), "--json"])
    assert result.exception is None, result.exception
    path = tmp_path / "plan.json"
    path.write_text(result.stdout)
    on_dock = sum(tier == "dock" for tier in json.loads(result.stdout)["placement"].values())
    (cut,) = done(digits, "--plan", path, "--out", tmp_path / "out")["cuts"]
    assert 0 < on_dock < len(graph.nodes)
    assert cut["name"] == f"c{on_dock}"


def test_plans_that_are_none_of_this_model_are_refused(digits: Path, graph: Graph, tmp_path: Path) -> None:
    good = plan_of(graph, range(3))
    first, last = graph.nodes[0].name, graph.nodes[-1].name
    wrong = {
        "digests differ": {"model": "0" * 64},
        "nothing to split": plan_of(graph, ()),
        "uses 3 tiers (edge, gate, cloud)": {"placement": {**good["placement"], graph.nodes[1].name: "gate"}},
        "in addition 1 nodes: 'other'": {"placement": {**good["placement"], "other": "edge"}},
        f"lacks 1 nodes: {last!r}": {"placement": {k: v for k, v in good["placement"].items() if k != last}},
        "not a cut": {"placement": {**good["placement"], first: "cloud"}},
        "baselines: it is not a plan": {"baselines": 3},
    }
    for why, changed in wrong.items():
        path = write(tmp_path, "plan.json", {**good, **changed})
        text = refused(digits, "--plan", path, "--out", tmp_path / "out")
        assert str(path) in text
        assert why in text or why.startswith("baselines"), text
        assert not (tmp_path / "out").exists()
    path = write(tmp_path, "plan.json", plan_of(graph, ()))
    assert "nothing to write" in refused(digits, "--plan", path, "--all", "--out", tmp_path / "out")
    assert "no such file" in refused(digits, "--plan", tmp_path / "missing", "--out", tmp_path / "out").lower()


# --- the folder


def test_a_folder_that_it_wrote_is_replaced_and_another_is_left_alone(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done(digits, "--cut", 2, "--out", out)
    done(digits, "--cut", 3, "--out", out)
    assert [one.name for one in (out / "heads").iterdir()] == ["c3"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out"]
    (out / "notes.txt").write_text("mine")
    assert "other files" in refused(digits, "--cut", 2, "--out", out)
    assert (out / "notes.txt").read_text() == "mine"
    foreign = tmp_path / "foreign"
    (foreign / "heads").mkdir(parents=True)
    assert "other files" in refused(digits, "--cut", 2, "--out", foreign)
    assert "this is a file" in refused(digits, "--cut", 2, "--out", out / "notes.txt")
    assert "there is no folder" in refused(digits, "--cut", 2, "--out", tmp_path / "a" / "b")


def test_what_fails_half_way_leaves_nothing_and_what_was_there(digits: Path, digits_int8: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = done(digits, "--cut", 2, "--out", out)
    assert "nothing to encode" in refused(digits_int8, "--cut", 3, "--codec", "fp16", "--out", out)
    assert json.loads((out / "split.json").read_text())["whole"] == before["whole"]
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_wrong_use(digits: Path, graph: Graph, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    plan_file = write(tmp_path, "plan.json", plan_of(graph, range(3)))
    for arguments in (
        (),
        ("--cut", "2", "--plan", plan_file),
        ("--cut", "2", "--all"),
        ("--cut", "2", "--data", plan_file),
    ):
        assert run(digits, *out, *arguments).exit_code == 2
    assert "at most" in refused(digits, "--cut", 2, *out, "--name", "a b")
    assert "expected a number from 1 to" in refused(digits, "--cut", 0, *out)
    assert "expected a number from 1 to" in refused(digits, "--cut", len(graph.nodes), *out)
    assert "no node 'nowhere'" in refused(digits, "--cut", "nowhere", *out)
    assert "needs --data" in refused(digits, "--cut", 2, "--codec", "int8", *out)
    assert "--data" in refused(digits, "--cut", 2, "--codec", "fp16", "--data", plan_file, *out)
    assert "ONNX models" in refused(MOBILENET, "--cut", 2, "--codec", "fp16", *out)
    assert not (tmp_path / "out").exists()


# --- codecs


@pytest.mark.parametrize(("codec", "share", "least", "most"), [("fp16", 2, 0, 2e-3), ("int8", 4, 1e-4, 0.1)])
def test_a_codec_sends_less_and_says_what_it_costs(
    digits: Path, tmp_path: Path, codec: str, share: int, least: float, most: float
) -> None:
    (plain,) = done(digits, "--cut", 3, "--out", tmp_path / "plain")["cuts"]
    data = tmp_path / "samples.npz"
    np.savez(data, picture=pictures(12))
    (cut,) = done(digits, "--cut", 3, "--out", tmp_path / "out", "--codec", codec, "--data", data)["cuts"]
    assert cut["sent_bytes"] * share == plain["sent_bytes"]
    assert least < cut["codec_error"] < most
    middle = answer(tmp_path / "out" / cut["head"], {"picture": pictures(12)})
    outputs = answer(tmp_path / "out" / "tails" / cut["tail"] / "1" / "model.onnx", middle)
    whole = answer(digits, {"picture": pictures(12)})["scores"]
    assert np.abs(outputs["scores"] - whole).max() <= 1.01 * cut["codec_error"] * np.abs(whole).max()


def test_a_codec_that_ruins_a_sample_does_not_claim_to_lose_nothing(tmp_path: Path) -> None:
    """What is small beside another sample becomes 0, and its share of the sum 0 / 0."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        shares (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 0, 0, 1}, int64[1] axes = {1}> {
            z = MatMul (x, w)
            sum = ReduceSum (z, axes)
            y = Div (z, sum)
        }""")
    onnx.save(model, tmp_path / "shares.onnx")
    np.savez(tmp_path / "samples.npz", x=np.array([[1000, 1000], [1, 1]], np.float32))
    arguments = (tmp_path / "shares.onnx", "--cut", 1, "--codec", "int8", "--data", tmp_path / "samples.npz", "--out")
    (cut,) = done(*arguments, tmp_path / "out")["cuts"]
    assert cut["codec_error"] is None
    assert "relative error inf on the samples" in run(*arguments, tmp_path / "out").output
    np.savez(tmp_path / "samples.npz", x=np.array([[1, 1], [np.nan, 1]], np.float32))
    assert "expected two numbers" in refused(*arguments, tmp_path / "out")


def test_samples_may_be_what_callers_give(digits: Path, tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    model.write_bytes(digits.read_bytes())
    (tmp_path / "digits.yaml").write_text(
        "signature: {inputs: {image: {kind: image}}, outputs: {scores: {kind: logits}}}\n"
        "pre: [{decode: {from: image, color: gray}}, {resize: {to: [8, 8]}}, {normalize: {}}, {layout: NCHW}]\n"
    )
    data = tmp_path / "samples.npz"
    np.savez(data, image=np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8))
    arguments = (model, "--cut", 3, "--out", tmp_path / "out", "--codec", "int8", "--data", data)
    (cut,) = done(*arguments)["cuts"]
    assert 0 < cut["codec_error"] < 0.1
    np.savez(data, other=np.zeros((1, 1, 8, 8), np.float32))
    text = refused(*arguments)
    assert "it has 'other'; the model takes 'image'" in text
    assert "--data" in text


def test_what_a_person_reads(digits: Path, tmp_path: Path) -> None:
    result = run(digits, "--cut", 3, "--out", tmp_path / "out", "--name", "digits")
    assert result.exception is None
    assert "c3" in result.output
    assert "FP32 [-1, 16, 8, 8]" in result.output
    assert "digits--c3--" in result.output
    assert result.stderr == ""


def _small(path: Path, sizes: Sequence[int | str], nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> Path:
    shape = ["n", 2, *sizes]
    x, *made = (onnx.helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, shape) for one in ("x", *outputs))
    graph = onnx.helper.make_graph(nodes, "g", [x], made)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_bytes_of_open_dimensions_are_said_to_be_too_few(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("AveragePool", [one], [other], kernel_shape=[1, 1]) for one, other in ("xa", "ay")]
    (remark,) = done(_small(tmp_path / "m.onnx", ["h", "w"], nodes, ["y"]), "--cut", 1, "--out", tmp_path / "out")[
        "remarks"
    ]
    assert "cut c1: open dimensions of 'a' count as 1 in the bytes sent" in remark
    fixed = _small(tmp_path / "f.onnx", [4, 4], nodes, ["y"])
    assert done(fixed, "--cut", 1, "--out", tmp_path / "out")["remarks"] == []


@pytest.mark.parametrize("which", [(), ("--all",), ("--codec", "fp16")])
def test_bytes_of_open_dimensions_are_those_that_the_plan_was_measured_with(tmp_path: Path, which: list[str]) -> None:
    nodes = [onnx.helper.make_node("AveragePool", [one], [other], kernel_shape=[1, 1]) for one, other in ("xa", "ay")]
    model, given = tmp_path / "m.onnx", tmp_path / "given.npz"
    graph = contract(read_graph(_small(model, ["h", "w"], nodes, ["y"])))
    np.savez(given, x=np.zeros((3, 2, 5, 7), np.float32))
    profiles = []
    for tier in ("edge", "cloud"):
        out = tmp_path / f"{tier}.json"
        asked = ["--tier", tier, "--rows", "3", "--runs", "3", "--inputs", str(given), "--out", str(out)]
        assert CliRunner().invoke(app, ["profile", str(model), *asked]).exception is None
        profiles += [f"--{tier}", str(out)]
    planned = CliRunner().invoke(app, ["plan", *profiles, "--uplink", "8Mbps", "--rtt", "1ms", "--json"])
    middle = piece(graph, "c1", [0], 0.1, 0.2)
    facts = json.loads(planned.stdout) | {"placement": middle["placement"], "envelope": [middle]}
    found = done(model, "--plan", write(tmp_path, "plan.json", facts), *which, "--out", tmp_path / "out")
    ((tensor,),) = (cut["tensors"] for cut in found["cuts"])
    assert (tensor["shape"], tensor["bytes"]) == ([-1, 2, -1, -1], 2 * 5 * 7 * (2 if "fp16" in which else 4))
    assert not any("count as 1" in remark for remark in found["remarks"])


def test_a_cut_that_nothing_crosses_is_refused(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"]), onnx.helper.make_node("Sigmoid", ["x"], ["z"])]
    model = _small(tmp_path / "m.onnx", [4, 4], nodes, ["y", "z"])
    path = write(tmp_path, "plan.json", plan_of(contract(read_graph(model)), [0]))
    for where in (["--cut", 1], ["--plan", path]):
        assert "the tail takes nothing from the head" in refused(model, *where, "--out", tmp_path / "out")
    assert "nothing to write" in refused(model, "--plan", path, "--all", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_of_a_plan_with_such_a_cut_the_others_are_written(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("AveragePool", [one], [other], kernel_shape=[1, 1]) for one, other in ("xy", "xa", "az")
    ]
    model = _small(tmp_path / "m.onnx", [4, 4], nodes, ["y", "z"])
    graph = contract(read_graph(model))
    envelope = [piece(graph, str(edge), edge, 0.1, 0.2) for edge in ([0], [1], [0, 1])]
    path = write(tmp_path, "plan.json", plan_of(graph, [0], envelope=envelope))
    cuts = done(model, "--plan", path, "--all", "--out", tmp_path / "out")["cuts"]
    assert [(one["name"], [tensor["name"] for tensor in one["tensors"]]) for one in cuts] == [
        ("c1", ["a"]),
        ("c2", ["a"]),
    ]
