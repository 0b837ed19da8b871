"""What is peculiar to ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.onnx import OnnxEngine
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import TensorSpec


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
    with pytest.raises(InvalidRequest, match="'x0' must hold UTF-8 text"):
        engine.run({"x0": np.array([[b"\xff", b""]], object)})


def test_bf16_says_at_load_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match=r"input 'x0' is tensor\(bfloat16\).*export it as one of"):
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


def test_another_device_than_the_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="`device: cpu`, not on 'cuda:0'"):
        OnnxEngine.load("m", tmp_path / "model.onnx", ModelSettings(device="cuda:0"))
