"""What is peculiar to ONNX Runtime."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, save

from tests.unit.models_for_tests import (
    OPSET,
    endless,
    identity,
    linear,
    linear_elsewhere,
    linear_weights,
    refer,
    tensor,
)
from tests.unit.models_for_tests import save as save_model
from upwell.cloud.engines import onnx_engine
from upwell.cloud.engines.batch_checks_and_buckets import by_rows
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.onnx_engine import OnnxEngine
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import TensorSpec

LIMIT_S = 10.0


def load(
    path: Path, kind: int, shape: Sequence[str | int] = ("N", 2), op: str = "Identity", inputs: int = 1
) -> OnnxEngine:
    names = [f"x{place}" for place in range(inputs)]
    infos = [helper.make_tensor_value_info(name, kind, shape) for name in [*names, "y"]]
    graph = helper.make_graph([helper.make_node(op, names, ["y"])], "g", infos[:-1], infos[-1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path / "model.onnx")
    return OnnxEngine.load("m", path / "model.onnx", ModelSettings())


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int8", "int64", "uint32", "bool"])
def test_numbers_pass_unchanged(tmp_path: Path, dtype: str) -> None:
    engine = load(tmp_path, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    x = np.array([[1, 0], [1, 1]], dtype)
    answer = engine.run({"x0": x})["y"]
    assert answer.dtype == x.dtype
    np.testing.assert_array_equal(answer, x)


def test_text_goes_in_and_comes_out_as_bytes(tmp_path: Path) -> None:
    engine = load(tmp_path, TensorProto.STRING)
    assert engine.inputs == (TensorSpec("x0", "BYTES", (-1, 2)),)
    x = np.array([[b"dock", "größe".encode()], [b"", b"x" * 1000]], object)
    answer = engine.run({"x0": x})["y"]
    assert answer.dtype == object
    assert answer.tolist() == x.tolist()
    engine.warm_up(1)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    engine = load(tmp_path, TensorProto.STRING)
    with pytest.raises(InvalidRequest, match="'x0' must be UTF-8 text"):
        engine.run({"x0": np.array([[b"\xff", b""]], object)})


def test_bf16_says_at_load_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match=r"input 'x0' is BF16, which .* cannot exchange; export it as FP16 or FP32"):
        load(tmp_path, TensorProto.BFLOAT16)


def test_dimensions_that_two_inputs_share_are_checked_by_the_runtime(tmp_path: Path) -> None:
    engine = load(tmp_path, TensorProto.FLOAT, op="Add", inputs=2)
    x = np.zeros((2, 2), np.float32)
    with pytest.raises((InvalidRequest, ModelFailed)) as caught:
        engine.run({"x0": x, "x1": np.zeros((3, 2), np.float32)})
    assert "\n" not in str(caught.value)
    engine.run({"x0": x, "x1": x})


def test_a_model_of_any_size_is_warmed_up_only_with_real_requests(tmp_path: Path) -> None:
    load(tmp_path, TensorProto.FLOAT, ("N", "L")).warm_up(1)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07" * 50])
def test_a_broken_file_is_one_sentence_without_a_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFailed, match=r"^ONNX Runtime cannot load model\.onnx: ") as caught:
        OnnxEngine.load("m", path, ModelSettings())
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ModelSettings(device="cuda:0"), "tensorrt is not in this onnxruntime.*cuda is not in .*onnxruntime-gpu"),
        (ModelSettings(device="npu"), "cann is not in this onnxruntime: pip install onnxruntime-cann"),
        (ModelSettings(device="tpu"), "has no device 'tpu'; expected one of auto, cuda, npu, xpu, mps, cpu"),
        (ModelSettings(device="cpu:1"), "there is no device 'cpu:1': ONNX Runtime has one CPU"),
        (ModelSettings(providers=("cuda",)), "cuda is not in this onnxruntime.*; it has .*cpu"),
        (ModelSettings(providers=("nosuch", "cpu")), "nosuch is not in this onnxruntime: expected the name"),
    ],
)
def test_a_provider_that_is_not_there_is_never_replaced_in_silence(
    tmp_path: Path, settings: ModelSettings, says: str
) -> None:
    path = linear(tmp_path)
    with pytest.raises(ModelFailed, match=says):
        OnnxEngine.load("m", path, settings)


@pytest.mark.skipif("AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="not built in here")
@pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"), reason="1.24 and later tell"
)
def test_a_provider_that_starts_and_takes_no_node_is_no_provider(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="azure is not taking any node of the model"):
        OnnxEngine.load("m", linear(tmp_path), ModelSettings(providers=("azure",)))


def test_automatic_choice_says_what_it_took_and_why_not_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        engine = OnnxEngine.load("m", linear(tmp_path), ModelSettings(device="auto"))
    assert engine.run({"x": np.ones((2, 8), np.float32)})["scores"].shape == (2, 3)
    (text,) = [record.getMessage() for record in caplog.records if record.name.startswith("upwell")]
    assert text.startswith("model m runs on cpu (tensorrt is not in this onnxruntime")
    assert "coreml is not in this onnxruntime" in text


@pytest.mark.parametrize(
    ("domain", "operator"), [("evil.corp", "Run"), ("ai.onnx.contrib", "PyOp"), ("com.microsoft", "EPContext")]
)
def test_operators_of_libraries_and_compiled_programs_are_refused_by_name(
    tmp_path: Path, domain: str, operator: str
) -> None:
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    path = save_model(tmp_path / "model.onnx", [node], [tensor("x", [2])], [tensor("y", [2])], domains=[domain])
    with pytest.raises(ModelFailed, match=rf"uses {domain}:{operator}, which .* never loaded"):
        OnnxEngine.load("m", path, ModelSettings())


def test_functions_of_the_model_itself_are_its_own(tmp_path: Path) -> None:
    node = helper.make_node("Twice", ["x"], ["y"], domain="my.functions")
    path = save_model(tmp_path / "m.onnx", [node], [tensor("x", [2])], [tensor("y", [2])], domains=["my.functions"])
    model = onnx.load(str(path))
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    opsets = [helper.make_opsetid("", OPSET)]
    model.functions.append(helper.make_function("my.functions", "Twice", ["a"], ["b"], body, opsets))
    path.write_bytes(model.SerializeToString())
    answer = OnnxEngine.load("m", path, ModelSettings()).run({"x": np.array([1, 2], np.float32)})
    assert answer["y"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"ir_version": 99}, r"Unsupported model IR version: 99, max supported IR version: \d+$"),
        ({"opset": 99}, r"Current official support for domain ai\.onnx is till opset \d+\.$"),
    ],
)
def test_a_file_that_is_too_new_says_what_would_do(tmp_path: Path, versions: dict[str, int], says: str) -> None:
    path = linear(tmp_path)
    model = onnx.load(str(path))
    model.ir_version = versions.get("ir_version", model.ir_version)
    model.opset_import[0].version = versions.get("opset", OPSET)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFailed, match=says) as caught:
        OnnxEngine.load("m", path, ModelSettings())
    assert "onnxruntime_src" not in str(caught.value)


def test_a_model_without_outputs_says_so(tmp_path: Path) -> None:
    path = save_model(tmp_path / "model.onnx", [helper.make_node("Identity", ["x"], ["y"])], [tensor("x", [2])], [])
    with pytest.raises(ModelFailed, match=r"^model\.onnx has no outputs$"):
        OnnxEngine.load("m", path, ModelSettings())


@pytest.mark.parametrize("size", [1 << 30, 1 << 40])
def test_inputs_beyond_all_memory_are_one_error(tmp_path: Path, size: int) -> None:
    with pytest.raises(ModelFailed, match=rf"input 'x0' takes {4 * size * size} bytes; at most {2**31 - 1} fit into a"):
        load(tmp_path, TensorProto.FLOAT, ("N", size, size))


@pytest.mark.parametrize(
    ("entries", "dims"),
    [
        ({"offset": 1 << 40}, [4]),
        ({"offset": 8}, [4]),
        ({"offset": -8}, [4]),
        ({"offset": (1 << 63) - 8}, [4]),
        ({"offset": "abc"}, [4]),
        ({"length": 1 << 50}, [4]),
        ({"length": -1}, [4]),
        ({}, [5]),
        ({}, [1 << 40]),
        ({}, [1 << 33, 1 << 33]),
        ({}, [-4]),
    ],
)
def test_weights_that_do_not_lie_in_their_file_are_one_error_before_they_are_read(
    tmp_path: Path, entries: dict[str, int | str], dims: list[int]
) -> None:
    weights = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    refer(weights, "w.bin")
    del weights.external_data[:]
    for key, value in {"location": "w.bin", **entries}.items():
        weights.external_data.add(key=key, value=str(value))
    (tmp_path / "w.bin").write_bytes(bytes(16))
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [tensor("x", dims)], [tensor("y", dims)], [weights]
    )
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8), path)
    with pytest.raises(ModelFailed, match=r"^ONNX Runtime cannot load model\.onnx: ") as caught:
        OnnxEngine.load("m", path, ModelSettings())
    assert str(tmp_path) not in str(caught.value)


def test_what_fails_is_told_once_and_not_on_standard_error_past_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads a JSON log has no use for other lines, and a model's names may hold anything."""
    nodes = [
        helper.make_node("Squeeze", ["x"], ["z"], name="\x1b[31mforged"),
        helper.make_node("Reshape", ["z", "shape"], ["y"]),
    ]
    shape = {"shape": np.array([7, 3], np.int64)}
    path = save_model(tmp_path / "model.onnx", nodes, [tensor("x", ["n"])], [tensor("y", [7, 3])], shape)
    engine = OnnxEngine.load("m", path, ModelSettings())
    with pytest.raises(ModelFailed, match=r"ONNX Runtime failed: .*Reshape"):
        engine.run({"x": np.zeros(5, np.float32)})
    path.write_bytes(path.read_bytes().replace(b"Squeeze", b"Squeezf"))
    with pytest.raises(ModelFailed, match="ONNX Runtime cannot load"):
        OnnxEngine.load("m", path, ModelSettings())
    assert capfd.readouterr() == ("", "")


def test_a_name_that_is_no_text_is_one_error(tmp_path: Path) -> None:
    path = identity(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x0a\x01x", b"\x0a\x01\xff"))
    assert path.read_bytes() != data
    with pytest.raises(ModelFailed, match="whose name is not UTF-8"):
        OnnxEngine.load("m", path, ModelSettings())


def test_weights_that_are_overwritten_change_no_answer_of_the_model_in_force(tmp_path: Path) -> None:
    """Nor does a file that is shorter for a moment end the process, which a mapping of it would."""
    path = linear_elsewhere(tmp_path, "./parts/w.bin")
    places = tmp_path / "parts" / "w.bin"
    places.parent.mkdir()
    places.write_bytes(linear_weights(0, 8, 3)[0].tobytes())
    engine = OnnxEngine.load("m", path, ModelSettings())
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    before = engine.run({"x": x})["scores"]
    with places.open("r+b") as file:
        file.write(bytes(places.stat().st_size))
    np.testing.assert_array_equal(engine.run({"x": x})["scores"], before)
    os.truncate(places, 0)
    np.testing.assert_array_equal(engine.run({"x": x})["scores"], before)


def test_weights_outside_the_folder_are_refused_by_the_engine_alone_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = linear_elsewhere(tmp_path / "model", "../w.bin")
    (tmp_path / "w.bin").write_bytes(linear_weights(0, 8, 3)[0].tobytes())
    with pytest.raises(ModelFailed, match=r"external weights '\.\./w\.bin' are refused"):
        OnnxEngine.load("m", path, ModelSettings())


@pytest.mark.parametrize("rows", ["rows", 3])
def test_a_run_that_never_ends_can_be_stopped_and_harms_no_other(tmp_path: Path, rows: str | int) -> None:
    engine: Any = by_rows(OnnxEngine.load("m", endless(tmp_path, rows), ModelSettings()), (3,))
    never, ends = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    (run, stop), (other, stop_other) = engine.stoppable_run(), engine.stoppable_run()
    stop_other()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, {"x": never})
        np.testing.assert_array_equal(engine.run({"x": ends})["y"], ends)
        with pytest.raises(TimeoutError):
            running.result(0.2)
        stop()
        with pytest.raises(ModelFailed, match="terminate"):
            running.result(LIMIT_S)
    with pytest.raises(ModelFailed, match="terminate"):
        other({"x": never})
    np.testing.assert_array_equal(engine.run({"x": ends})["y"], ends)


def test_a_model_that_never_ends_on_zeros_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_engine, "_WARM_UP_LIMIT_S", 0.1)
    engine = OnnxEngine.load("m", endless(tmp_path, most=-1.0), ModelSettings())
    with pytest.raises(ModelFailed, match="a run with zeros takes more than 0 s"):
        engine.warm_up(1)
