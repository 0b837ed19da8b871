"""External delegates, by a software delegate with the real interface: evidence, requirements and failures."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import BuiltinOperator

from tests.unit.tflite_for_tests import TFLITE_PACKAGES, T, add, mul, save, two_in_two_out
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import Array

Require = Literal["must", "prefer", "cpu"]


class Loader:
    """Loads models with the software delegate in one TFLite package."""

    def __init__(self, package: Any, library: Path) -> None:
        self._package = package
        self.library = library

    def __call__(
        self, model: Path, require: Require = "prefer", library: Path | None = None, **options: str | int
    ) -> Runtime:
        accelerator = AcceleratorOptions(
            provider="software", require=require, library=library or self.library, options=options
        )
        return load_runtime(model, RuntimeOptions(package=self._package), accelerator)


@pytest.fixture(params=TFLITE_PACKAGES)
def load(request: pytest.FixtureRequest, software_delegate: Path) -> Loader:
    return Loader(request.param, software_delegate)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return two_in_two_out(tmp_path)


def chain(directory: Path, length: int) -> Path:
    """Alternating ADD and MUL of the running value with the input: many partitions for a delegate of one kind."""
    tensors = [T(f"t{index}", (-1, 3)) for index in range(length + 1)]
    operators = [(add if index % 2 else mul)(index, 0, index + 1) for index in range(length)]
    return save(directory / f"chain_{length}.tflite", tensors, operators, [0], [length])


def threes(count: int = 2) -> Array:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3) + 1


def assert_works(runtime: Runtime, count: int = 2) -> None:
    a = threes(count)
    answer = runtime.run({"a": a, "b": a})
    np.testing.assert_array_equal(answer["sum"], a + a)
    np.testing.assert_array_equal(answer["product"], a * a)


@pytest.mark.parametrize("static_only", [0, 1])
def test_a_delegate_that_takes_everything_is_reported_and_computes(load: Loader, model: Path, static_only: int) -> None:
    runtime = load(model, "must", claim="all", static_only=static_only)
    placement = runtime.placement
    assert (placement.accelerator, placement.nodes, placement.nodes_on_accelerator) == ("software", 2, 2)
    assert placement.left_on_cpu == ()
    assert placement.reason == ""
    for count in (1, 4, 2):
        assert_works(runtime, count)


def test_what_is_left_on_the_cpu_is_named(load: Loader, model: Path) -> None:
    runtime = load(model, "prefer", claim=str(BuiltinOperator.ADD))
    assert (runtime.placement.nodes, runtime.placement.nodes_on_accelerator) == (2, 1)
    assert runtime.placement.left_on_cpu == ("1 MUL product",)
    assert_works(runtime)


def test_must_refuses_a_partial_placement_and_names_the_nodes(load: Loader, tmp_path: Path) -> None:
    path = chain(tmp_path, 30)
    with pytest.raises(AcceleratorNotUsable) as error:
        load(path, "must", claim=str(BuiltinOperator.ADD))
    text = str(error.value)
    assert "'software' is required but leaves 15 of 30 nodes on the CPU: 0 MUL t1, 2 MUL t3" in text
    assert text.endswith("18 MUL t19 and 5 more")


def test_must_refuses_a_delegate_that_takes_nothing(load: Loader, model: Path) -> None:
    with pytest.raises(AcceleratorNotUsable, match="leaves 2 of 2 nodes on the CPU: 0 ADD sum, 1 MUL product"):
        load(model, "must", claim="")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"claim": ""}, "none of the 2 nodes|leaves 2 of 2 nodes", id="takes nothing"),
        pytest.param({"claim": "all", "fail_prepare": 1}, "told to fail in prepare", id="fails in prepare"),
        pytest.param({"nonsense": 1}, "unknown option", id="unknown option"),
    ],
)
@pytest.mark.parametrize("require", ["prefer", "must"])
def test_a_delegate_that_cannot_be_used_is_a_reason_and_never_the_cpu(
    load: Loader, model: Path, require: Require, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(AcceleratorNotUsable, match=said):
        load(model, require, **options)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("content", [None, b"", b"not a library", "no delegate"])
def test_a_library_that_is_no_delegate_is_a_reason(
    load: Loader, model: Path, tmp_path: Path, content: bytes | str | None
) -> None:
    library = tmp_path / "lib.so"
    if isinstance(content, bytes):
        library.write_bytes(content)
    elif content is not None:
        spec = importlib.util.find_spec("_ctypes")
        assert spec is not None
        assert spec.origin is not None
        library = Path(spec.origin)
    with pytest.raises(AcceleratorNotUsable, match=re.escape(str(library))):
        load(model, library=library)


def test_a_delegate_without_a_library_is_a_reason(model: Path) -> None:
    with pytest.raises(AcceleratorNotUsable, match="'software' needs `library`"):
        load_runtime(model, RuntimeOptions(), AcceleratorOptions(provider="software"))


@pytest.mark.parametrize("require", ["prefer", "must"])
def test_a_delegate_that_fails_while_running_costs_no_answer(load: Loader, model: Path, require: Require) -> None:
    runtime = load(model, require, claim="all", fail_after=2)
    for _ in range(2):
        assert_works(runtime)
    assert runtime.placement.nodes_on_accelerator == 2
    for count in (2, 3):
        assert_works(runtime, count)
    assert runtime.placement.nodes_on_accelerator == 0
    assert "failed while running" in runtime.placement.reason
    assert "told to fail in invoke" in runtime.placement.reason


def test_a_bad_request_does_not_cost_the_delegate(load: Loader, model: Path) -> None:
    runtime = load(model, "prefer", claim="all")
    with pytest.raises(InvalidRequest, match="does not accept these shapes"):
        runtime.run({"a": threes(2), "b": threes(3)})
    assert_works(runtime)
    assert runtime.placement.nodes_on_accelerator == 2


def test_a_device_that_is_gone_when_it_is_opened_again_costs_no_answer(
    load: Loader, model: Path, tmp_path: Path
) -> None:
    device = tmp_path / "device"
    device.touch()
    runtime = load(model, "prefer", claim="all", device=str(device))
    with pytest.raises(InvalidRequest):
        runtime.run({"a": threes(2), "b": threes(3)})
    device.unlink()
    assert_works(runtime)
    assert runtime.placement.nodes_on_accelerator == 0
    assert "no such device" in runtime.placement.reason


@pytest.mark.parametrize("static_only", [0, 1])
def test_shapes_that_a_delegate_refuses_run_on_the_cpu_and_all_others_stay(
    load: Loader, model: Path, static_only: int
) -> None:
    runtime = load(model, "prefer", claim="all", most_rows=4, static_only=static_only)
    for count in (2, 8, 4, 8, 1, 5):
        assert_works(runtime, count)
        assert runtime.placement.nodes_on_accelerator == 2
    assert runtime.placement.refused == {((8, 3), (8, 3)), ((5, 3), (5, 3))}
    assert runtime.placement.reason.startswith("software refuses 'a' [5, 3], 'b' [5, 3], which the CPU runs: ")
