"""Programs of torch.export: read without torch, cut anywhere, refused where code of their maker would have to run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.models.legal_cuts import prefix_cuts, random_downsets
from tests.models.torch_programs import BRANCHES, run
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.torch.torch_engine import TorchEngine
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.formats.torch_program import GRAPH_KEY, OPERATORS
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.split_model import split_model
from upwell.shared.partition.torch_graph import TorchModelFile


def test_bytes_behind_a_weight_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "long.pt2"
    with zipfile.ZipFile(BRANCHES) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            is_weight = "/data/weights/" in info.filename and not info.filename.endswith(".json")
            new.writestr(info.filename, old.read(info) + b"\0" * is_weight)
    graph = read_graph(BRANCHES)
    assert TorchModelFile.read(path).whole(graph).files == TorchModelFile.read(BRANCHES).whole(graph).files


def test_every_cut_gives_what_the_whole_gives_for_any_rows(tmp_path: Path) -> None:
    file, graph = TorchModelFile.read(BRANCHES), contract(read_graph(BRANCHES))
    picture = {"picture": np.random.default_rng(0).standard_normal((3, 1, 8, 8)).astype(np.float32)}
    expected = run(file.whole(graph), picture, tmp_path)
    assert {name: array.shape for name, array in expected.items()} == {"add_1": (3, 10), "argmax": (3,)}
    cuts = [frozenset(range(count)) for count in prefix_cuts(graph)]
    cuts += random_downsets(graph, Random(0), 5)
    assert len(cuts) > 5
    several = 0
    for edge in cuts:
        halves = split_model(file, graph, edge)
        several += len(halves.cut) > 1
        head = run(halves.head, picture, tmp_path)
        made = {**head, **run(halves.tail, {**picture, **head}, tmp_path)}
        for name, array in expected.items():
            np.testing.assert_array_equal(made[name], array)
    assert several, "a branch has cuts of several tensors"


def test_no_operator_needs_the_layout_in_memory_that_a_cut_loses() -> None:
    operators = [node.operator for node in TorchModelFile.read(BRANCHES).file.program.nodes]
    assert "aten.reshape.default" in operators
    assert "aten.view.default" not in operators


def rewritten(path: Path, into: Path, change: Callable[[Any], None], member: str = "models/model.json") -> Path:
    """The archive with one of its JSON texts changed."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(into, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(member):
                document = json.loads(data)
                change(document)
                data = json.dumps(document).encode()
            new.writestr(info.filename, data)
    return into


def at(document: Any, target: str) -> Any:
    nodes = document["graph_module"]["graph"]["nodes"]
    return next(one for one in nodes if one["target"].startswith(f"torch.ops.aten.{target}"))


def hostile_size(document: Any) -> None:
    for value in document["graph_module"]["graph"]["sym_int_values"].values():
        value["as_expr"]["expr_str"] = "__import__('os').system('touch hostile')"


def pickled(document: Any) -> None:
    document["config"]["first.weight"]["use_pickle"] = True


def too_large(document: Any) -> None:
    meta = document["config"]["first.weight"]["tensor_meta"]
    meta["sizes"], meta["strides"] = [{"as_int": 1 << 40}], [{"as_int": 0}]


def elsewhere(document: Any) -> None:
    document["config"]["first.weight"]["path_name"] = "../../../etc/passwd"


def in_place(document: Any) -> None:
    changed = at(document, "gelu")
    changed.update(target="torch.ops.aten.relu_.default")
    changed["inputs"][0]["arg"]["as_tensor"]["name"] = "view"


def wide(document: Any) -> None:
    values = document["graph_module"]["graph"]["tensor_values"]
    values["picture"]["sizes"][2] = values["picture"]["sizes"][0]


def trained(document: Any) -> None:
    (argument,) = (one for one in at(document, "dropout")["inputs"] if one["name"] == "train")
    argument["arg"]["as_bool"] = True


WEIGHTS = "model_weights_config.json"


def test_the_step_of_a_dimension_of_one_counts_for_nothing(tmp_path: Path) -> None:
    def far(document: Any) -> None:
        meta = document["config"]["first.weight"]["tensor_meta"]
        assert meta["sizes"][1]["as_int"] == 1
        meta["strides"][1]["as_int"] = 1 << 80

    path = rewritten(BRANCHES, tmp_path / "far.pt2", far, WEIGHTS)
    graph = read_graph(BRANCHES)
    assert TorchModelFile.read(path).whole(graph).files == TorchModelFile.read(BRANCHES).whole(graph).files


@pytest.mark.parametrize(
    ("change", "member", "said"),
    [
        (lambda one: at(one, "tanh").update(target="torch.ops.aten.from_file.default"), "", "aten.from_file.default"),
        (lambda one: at(one, "tanh").update(target="torch.ops.aten.rand_like.default"), "", "aten.rand_like.default"),
        (lambda one: at(one, "tanh").update(target="os.system"), "", "os.system"),
        (lambda one: at(one, "tanh").update(target=["x"]), "", "not supported"),
        (in_place, "", r"'view' is changed in place.*run_decompositions"),
        (wide, "", "only the rows"),
        (hostile_size, "", "only multiples of the rows"),
        (trained, "", "in training"),
        (lambda one: one["schema_version"].update(major=99), "", "version 99"),
        (lambda one: one.pop("graph_module"), "", "not as torch writes it"),
        (lambda one: at(one, "tanh")["inputs"][0].update(arg={"as_ints": ["x"]}), "", "not as torch writes it"),
        (lambda one: one["graph_module"]["graph"]["nodes"].reverse(), "", "which nothing before it produces"),
        (pickled, WEIGHTS, "is pickled"),
        (too_large, WEIGHTS, "larger than its stored data"),
        (elsewhere, WEIGHTS, "is missing"),
        (lambda one: one["config"].pop("first.weight"), WEIGHTS, "'first.weight' is missing"),
        (lambda one: one.update(config=[]), WEIGHTS, "not as torch writes it"),
    ],
)
def test_a_program_that_is_wrong_or_hostile_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], None],
    member: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = rewritten(BRANCHES, tmp_path / "bad.pt2", change, member or "models/model.json")
    with pytest.raises(ConfigError, match=said) as caught:
        read_graph(bad)
    assert "\n" not in caught.value.problems[0].message
    assert not (tmp_path / "hostile").exists()


def test_a_weight_of_a_size_that_the_archive_only_claims_is_refused(tmp_path: Path) -> None:
    bad = rewritten(BRANCHES, tmp_path / "bad.pt2", too_large, WEIGHTS)
    with zipfile.ZipFile(bad, "a") as archive:
        for info in archive.infolist():
            if "/data/weights/" in info.filename and not info.filename.endswith(".json"):
                info.file_size = 4 << 40
        archive.writestr("written again", b"")
    with pytest.raises(ConfigError, match="it is compressed, which torch never does"):
        read_graph(bad)


def test_damaged_archives_are_refused_in_one_line(tmp_path: Path) -> None:
    data = BRANCHES.read_bytes()
    bad = tmp_path / "bad.pt2"
    with zipfile.ZipFile(tmp_path / "packed.pt2", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a/models/model.json", " " * (1 << 20))
    for damaged in (b"", data[:1000], data[: len(data) // 2], b"\x80\x02c", (tmp_path / "packed.pt2").read_bytes()):
        bad.write_bytes(damaged)
        with pytest.raises(ConfigError, match="not a program that can be split") as caught:
            read_graph(bad)
        assert "\n" not in caught.value.problems[0].message
    for place in range(0, len(data), len(data) // 40):
        bad.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        assert "\n" not in refused(bad)


def refused(path: Path) -> str:
    """Why the file is; empty where what is damaged is not read."""
    try:
        TorchModelFile.read(path).whole(read_graph(path))
    except ConfigError as error:
        return error.problems[0].message
    return ""


def program_file(path: Path, **changes: Any) -> Path:
    """A safetensors file with a program that doubles."""
    tensor = {"name": "x", "datatype": "FP32", "shape": ["rows", 2]}
    graph = {
        "inputs": [tensor],
        "outputs": [{**tensor, "name": "y"}],
        "nodes": [
            {
                "operator": "aten.mul.Tensor",
                "arguments": {"self": {"tensor": "x"}, "other": {"tensor": "two"}},
                "outputs": ["y"],
            }
        ],
        "weights": ["two"],
        **changes,
    }
    save_file({"two": torch.tensor(2.0)}, path, {GRAPH_KEY: json.dumps(graph)})
    return path


def call(operator: str, **arguments: Any) -> Any:
    return [{"operator": operator, "arguments": arguments, "outputs": ["y"]}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": call("aten.from_file.default", filename="/etc/passwd")}, "not supported"),
        ({"nodes": call("prim.system.default")}, "not supported"),
        ({"nodes": call("aten.relu.default", self={"tensor": "z"})}, "which nothing before it produces"),
        ({"nodes": call("aten.relu.default", own={"tensor": "x"})}, "has no argument 'own'"),
        ({"nodes": call("aten.relu.default", self={"tensor": "x", "code": "1"})}, "nodes"),
        ({"nodes": []}, "nothing produces the output"),
        ({"weights": ["two", "three"]}, "lacks 'three'"),
        ({"weights": ["two", "x"]}, "produced twice"),
        ({"version": 2}, "version"),
        ({"nodes": call("aten.full.default", size=[{"size": "columns"}], fill_value=1)}, "needs the size 'columns'"),
        ({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]}, "BYTES"),
        ({"more": 1}, "more"),
    ],
)
def test_a_tail_that_is_wrong_or_hostile_is_not_served(tmp_path: Path, changes: Any, said: str) -> None:
    path = program_file(tmp_path / "model.safetensors", **changes)
    with pytest.raises(ModelFailed, match=said):
        TorchEngine.load("tail", path, ModelSettings(engine="torch"))


def test_every_listed_operator_is_one_of_this_torch() -> None:
    for operator in OPERATORS:
        _, name, overload = operator.split(".")
        found = getattr(getattr(torch.ops.aten, name), overload)
        assert not found._schema.is_mutable, operator
