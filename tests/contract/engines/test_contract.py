"""What every engine does in the same way, the fake included."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from upwell.cloud.engines.base import Engine
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec

pytestmark = [
    pytest.mark.timeout(600),  # torch compiles its own headers first, once for each user of the machine
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # torch's own use
]

X = np.array([[1, 2], [3, 4]], np.float32)


def test_it_says_what_it_takes_and_gives_and_what_is_behind_it(engine: Engine) -> None:
    assert engine.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    assert engine.outputs == (TensorSpec("y", "FP32", (-1, 2)),)
    name, version = engine.version.split()
    assert name in ("fake", "jax", "onnxruntime", "torch")
    assert version[0].isdigit()


@pytest.mark.parametrize("rows", [1, 2, 33])
def test_all_rows_of_a_batch_are_answered_in_order(engine: Engine, rows: int) -> None:
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    outputs = engine.run({"x": x})
    assert list(outputs) == ["y"]
    assert outputs["y"].dtype == np.float32
    np.testing.assert_array_equal(outputs["y"], x * 2)


def test_an_engine_that_is_prepared_for_some_numbers_of_rows_takes_no_others(engine: Engine) -> None:
    others = [rows for rows in (0, 4, 32, 34) if rows not in engine.buckets]
    assert list(engine.buckets) == sorted(set(engine.buckets))
    for rows in others:
        batch = {"x": np.ones((rows, 2), np.float32)}
        if engine.buckets:
            with pytest.raises(
                InvalidRequest, match=f"a batch of {rows} rows, but the model is prepared for 1, 2, 3, 33"
            ):
                engine.run(batch)
        else:
            assert engine.run(batch)["y"].shape == (rows, 2)
    np.testing.assert_array_equal(engine.run({"x": X})["y"], X * 2)


def test_read_only_and_strided_inputs_are_taken_and_left_alone(engine: Engine) -> None:
    frozen = np.frombuffer(X.tobytes(), np.float32).reshape(2, 2)
    np.testing.assert_array_equal(engine.run({"x": frozen})["y"], X * 2)
    backing = np.array(X[:, ::-1])
    np.testing.assert_array_equal(engine.run({"x": backing[:, ::-1]})["y"], X * 2)
    np.testing.assert_array_equal(backing[:, ::-1], X)


def test_a_result_is_not_touched_by_the_next_run(engine: Engine) -> None:
    first = engine.run({"x": X})["y"]
    kept = first.copy()
    engine.run({"x": X + 5})
    np.testing.assert_array_equal(first, kept)
    first += 1  # nor does the model see what becomes of it
    np.testing.assert_array_equal(engine.run({"x": X})["y"], kept)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({}, "'x' is missing"),
        ({"z": X}, "'x' is missing"),
        ({"x": X, "z": X}, "unknown input 'z'; the inputs are x"),
        ({"x": X.astype(np.float64)}, "'x' is float64, expected FP32"),
        ({"x": X.astype(">f4")}, "expected FP32"),
        ({"x": X[:, :1]}, r"'x' has shape \[2, 1\], expected \[-1, 2\]"),
        ({"x": X[0]}, r"'x' has shape \[2\], expected \[-1, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_next_run_works(
    engine: Engine, batch: dict[str, Array], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        engine.run(batch)
    np.testing.assert_array_equal(engine.run({"x": X})["y"], X * 2)


def test_warming_up_changes_nothing(engine: Engine) -> None:
    engine.warm_up(1)
    engine.warm_up(engine.buckets[-1] if engine.buckets else 4)
    np.testing.assert_array_equal(engine.run({"x": X})["y"], X * 2)


def test_many_threads_may_run_at_once(engine: Engine) -> None:
    batches = [np.full((3, 2), value, np.float32) for value in range(200)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda x: engine.run({"x": x})["y"], batches))
    np.testing.assert_array_equal(answers, [x * 2 for x in batches])


def test_after_close_nothing_runs_and_closing_again_is_harmless(engine: Engine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(ModelFailed, match="closed"):
        engine.run({"x": X})
