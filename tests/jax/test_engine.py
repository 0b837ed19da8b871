"""What is peculiar to JAX: programs of trusted files, weights beside them, and nothing compiled once it serves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tests.jax.programs import BUCKETS, load, warmed, write  # noqa: E402  after the check for JAX
from upwell.cloud.batching.batcher import Batcher  # noqa: E402
from upwell.cloud.engines.jax_engine import JaxEngine  # noqa: E402
from upwell.cloud.engines.model_settings import ModelSettings  # noqa: E402
from upwell.shared.errors import InvalidRequest, ModelFailed  # noqa: E402
from upwell.shared.oip.dataplane import Call  # noqa: E402
from upwell.shared.tensors import TensorSpec  # noqa: E402

FACTOR = {"factor": np.array([2.0], np.float32)}
X = {"x": ("rows", 2)}


def scaled(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": inputs["x"] * weights["factor"]}


def rows_of(count: int) -> dict[str, Any]:
    return {"x": np.arange(2 * count, dtype=np.float32).reshape(count, 2)}


def described(dtype: str, count: int) -> bytes:
    """A safetensors file of four bytes of zeros, which its header takes for a `factor` of such numbers."""
    header = {"factor": {"dtype": dtype, "shape": [count], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The names of the compilations that JAX reports while the test runs."""
    events: list[str] = []

    def listen(event: str, duration_s: float, **_: object) -> None:
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.clear_event_listeners()


def test_once_warm_nothing_is_compiled_for_any_batch_size(tmp_path: Path, compiled: list[str]) -> None:
    write(tmp_path, scaled, X, FACTOR)
    engine = warmed(tmp_path)
    backend = [event for event in compiled if "backend_compile" in event]
    assert len(backend) >= len(BUCKETS), "JAX no longer reports what it compiles under this name"
    compiled.clear()
    batcher = Batcher(engine, ModelSettings(buckets=engine.buckets))
    for count in range(2 * BUCKETS[-1] + 2):
        batch = rows_of(count)
        np.testing.assert_array_equal(batcher.run(batch, Call()).outputs["y"], batch["x"] * 2)
    engine.warm_up(BUCKETS[-1])
    assert compiled == []


def test_before_it_is_warm_it_says_so_and_compiles_nothing(tmp_path: Path, compiled: list[str]) -> None:
    write(tmp_path, scaled, X, FACTOR)
    engine = load(tmp_path)
    compiled.clear()
    with pytest.raises(ModelFailed, match="call warm_up first"):
        engine.run(rows_of(2))
    assert compiled == []


def test_without_a_list_the_buckets_reach_up_to_the_largest_batch(tmp_path: Path, compiled: list[str]) -> None:
    digest = write(tmp_path, scaled, X, FACTOR)
    settings = ModelSettings("jax", max_batch=6, trusted=frozenset({digest}))
    engine = JaxEngine.load("m", tmp_path / "model.jax", settings)
    assert engine.buckets == (1, 4, 6)
    for rows in engine.buckets:
        engine.warm_up(rows)
    compiled.clear()
    batcher = Batcher(engine, ModelSettings(buckets=engine.buckets))
    for count in range(1, 7):
        assert len(batcher.run(rows_of(count), Call()).outputs["y"]) == count
    assert compiled == []


def test_a_model_without_rows_runs_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, scaled, {"x": (3, 2)}, FACTOR)
    engine = load(tmp_path)
    assert engine.inputs == (TensorSpec("x", "FP32", (3, 2)),)
    engine.warm_up(1)
    np.testing.assert_array_equal(engine.run(rows_of(3))["y"], rows_of(3)["x"] * 2)
    with pytest.raises(InvalidRequest, match=r"expected \[3, 2\]"):
        engine.run(rows_of(2))


@pytest.mark.parametrize(
    "dtype", ["int64", "uint64", "float64", "int32", "int8", "uint8", "bool", "float16", ml_dtypes.bfloat16]
)
def test_numbers_pass_unchanged_and_keep_their_width(tmp_path: Path, dtype: Any) -> None:
    write(tmp_path, lambda _, inputs: {"y": inputs["x"]}, X, dtype=dtype)
    engine = warmed(tmp_path)
    x = np.array([[0, 1], [1, 1], [0, 0]]).astype(dtype)
    if np.dtype(dtype).itemsize == 8:
        x[0, 0] = np.array(2**53 - 1).astype(dtype)
    answer = engine.run({"x": x})["y"]
    assert answer.dtype == x.dtype
    np.testing.assert_array_equal(answer, x)


def test_several_inputs_and_outputs_go_by_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        lambda _, inputs: {"sum": inputs["b"] + inputs["a"], "a": inputs["a"][:, 0]},
        {"b": ("rows", 2), "a": ("rows", 2)},
    )
    engine = warmed(tmp_path)
    a, b = rows_of(3)["x"], rows_of(3)["x"] ** 2
    outputs = engine.run({"b": b, "a": a})
    np.testing.assert_array_equal(outputs["sum"], a + b)
    np.testing.assert_array_equal(outputs["a"], a[:, 0])
    with pytest.raises(InvalidRequest, match=r"different numbers of rows: \{'a': 3, 'b': 2\}"):
        engine.run({"a": a, "b": b[:2]})


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_it_runs_where_it_is_told(tmp_path: Path, device: str) -> None:
    write(tmp_path, scaled, X, FACTOR)
    engine = warmed(tmp_path, device)
    (weight,) = engine._weights.values()  # type: ignore[union-attr]  # nothing else tells where it lies
    assert weight.devices() == {jax.devices("cpu")[int(device[-1])]}
    np.testing.assert_array_equal(engine.run(rows_of(3))["y"], rows_of(3)["x"] * 2)


@pytest.mark.parametrize(
    ("device", "platforms", "says"),
    [
        ("cpu:7", ("cpu",), "there is no device 'cpu:7'; JAX finds .*0.*1"),
        ("tpu", ("cpu",), "exported for cpu, but `device` is 'tpu'; export it for that too"),
        ("tpu", ("cpu", "tpu"), "device 'tpu' is not usable: "),
        ("cpu", ("tpu",), "exported for tpu, but `device` is 'cpu'"),
    ],
)
def test_a_device_that_is_not_there_is_named(
    tmp_path: Path, device: str, platforms: tuple[str, ...], says: str
) -> None:
    write(tmp_path, scaled, X, FACTOR, platforms=platforms)
    with pytest.raises(ModelFailed, match=says):
        load(tmp_path, device)


@pytest.mark.parametrize("platforms", [("cpu",), ("tpu", "cpu", "cuda")])
def test_auto_is_an_accelerator_that_the_program_is_for_and_else_the_cpu(
    tmp_path: Path, platforms: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, scaled, X, FACTOR, platforms=platforms)
    with caplog.at_level("INFO"):
        engine = warmed(tmp_path, "auto")
    np.testing.assert_array_equal(engine.run(rows_of(3))["y"], rows_of(3)["x"] * 2)
    assert "model m runs on cpu:0" in caplog.messages


def test_auto_without_a_device_of_the_program_s_is_no_device(tmp_path: Path) -> None:
    write(tmp_path, scaled, X, FACTOR, platforms=("tpu", "cuda"))
    with pytest.raises(ModelFailed, match="exported for tpu, cuda, but JAX finds none of these here"):
        load(tmp_path, "auto")


def test_inputs_beyond_all_memory_are_one_error(tmp_path: Path) -> None:
    write(tmp_path, lambda _, inputs: {"y": inputs["x"][:, 0, 0]}, {"x": ("rows", 1 << 30, 1 << 30)})
    with pytest.raises(ModelFailed, match=r"input 'x' of shape \[1, 1073741824, 1073741824\] does not fit into memory"):
        warmed(tmp_path)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({}, "does not fit the program: factor is missing$"),
        ({"factor": np.ones(3, np.float32)}, r"factor has shape \[3\], the program \[1\]"),
        ({"factor": np.ones(1, np.float64)}, "factor is F64, the program takes F32$"),
        (described("F8_E4M3", 4), "factor is F8_E4M3, the program takes F32$"),
        (described("U32", 1), "factor is U32, the program takes F32$"),
        (described("F32", 2), "not a readable safetensors file"),
        (None, "no model.safetensors beside it; the program names 1 weights"),
        (b"no weights", "model.safetensors is not a readable safetensors file"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, weights: Any, says: str) -> None:
    from safetensors.numpy import save

    write(tmp_path, scaled, X, FACTOR)
    path = tmp_path / "model.safetensors"
    path.unlink()
    if weights is not None:
        path.write_bytes(weights if isinstance(weights, bytes) else save(weights))
    with pytest.raises(ModelFailed, match=says):
        load(tmp_path)


def test_a_part_may_lie_beside_the_weights_of_the_whole(tmp_path: Path) -> None:
    write(tmp_path, scaled, X, {**FACTOR, "other": np.ones((3, 3), np.float32)})
    digest = write(tmp_path, lambda weights, inputs: {"y": inputs["x"] * weights["factor"]}, X, FACTOR)
    assert digest
    engine = warmed(tmp_path)
    np.testing.assert_array_equal(engine.run(rows_of(2))["y"], rows_of(2)["x"] * 2)


def test_weights_in_bf16_are_read(tmp_path: Path) -> None:
    weights = {"factor": np.array([2.0], ml_dtypes.bfloat16)}
    write(tmp_path, lambda w, inputs: {"y": inputs["x"] * w["factor"].astype(np.float32)}, X, weights)
    engine = warmed(tmp_path)
    np.testing.assert_array_equal(engine.run(rows_of(2))["y"], rows_of(2)["x"] * 2)


@pytest.mark.parametrize(
    ("function", "inputs", "says"),
    [
        (lambda _, i: i["x"], X, "the outputs of its function must be a dictionary"),
        (lambda _, i: {"y": {"z": i["x"]}}, X, "the outputs of its function must be a dictionary"),
        (lambda *_: {}, X, "at least one input and one output"),
        (lambda _, i: {"y": i["x"].sum()}, X, r"'y' has shape \[\]; all inputs and outputs need rows"),
        (lambda _, i: {"y": i["x"]}, {"x": ("rows", "length")}, r"\[rows, length\]; only the rows"),
        (lambda _, i: {"y": i["x"].ravel()}, X, r"\[2\*rows\]; only the rows"),
        (lambda _, i: i, {"x": ("a", 2), "y": ("b", 2)}, "its inputs have rows a, b; all must have the same"),
        (lambda _, i: {"y": i["x"] + i["s"], "s": i["x"]}, {**X, "s": (2,)}, r"'s' has shape \[2\]; all"),
        (lambda _, i: {"y": i["x"].astype("float8_e4m3fn")}, X, "output 'y' is float8_e4m3fn, which no request"),
    ],
)
def test_a_program_that_cannot_be_served_says_why(tmp_path: Path, function: Any, inputs: Any, says: str) -> None:
    write(tmp_path, function, inputs)
    with pytest.raises(ModelFailed, match=says):
        load(tmp_path)


def test_another_form_of_function_is_refused(tmp_path: Path) -> None:
    exported = jax.export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), np.float32))
    (tmp_path / "model.jax").write_bytes(exported.serialize())
    with pytest.raises(ModelFailed, match=r"its function must take exactly two dictionaries, \(weights, inputs\)"):
        load(tmp_path)


def test_a_file_that_nobody_vouched_for_is_not_deserialized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = write(tmp_path, scaled, X, FACTOR)
    monkeypatch.setattr(jax.export, "deserialize", lambda _: pytest.fail("it was deserialized"))
    with pytest.raises(ModelFailed, match=f"listed under serve.trusted in cloud.yaml; .* add {digest}$"):
        JaxEngine.load("m", tmp_path / "model.jax", ModelSettings("jax"))


def test_a_file_that_is_changed_after_it_was_listed_is_another(tmp_path: Path) -> None:
    digest = write(tmp_path, scaled, X, FACTOR)
    write(tmp_path, lambda weights, inputs: {"y": inputs["x"] + weights["factor"]}, X, FACTOR)
    with pytest.raises(ModelFailed, match=r"must be listed under serve\.trusted") as caught:
        JaxEngine.load("m", tmp_path / "model.jax", ModelSettings("jax", trusted=frozenset({digest})))
    assert digest not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no program", bytes(range(256)) * 16])
def test_a_trusted_file_that_is_no_program_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.jax").write_bytes(content)
    with pytest.raises(ModelFailed, match=r"^model\.jax is not a program that JAX \S+ reads: ") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
