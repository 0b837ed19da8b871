"""External delegates, by a software delegate with the real interface: evidence, requirements and failures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import BuiltinOperator

from tests.unit.tflite_for_tests import Op, T, add, mul, save, two_in_two_out
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite import TfliteRuntime
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.tensors import Array

Require = Literal["must", "prefer", "cpu"]


class Loader:
    """Loads models with the software delegate in one TFLite package."""

    def __init__(self, package: Any, library: Path) -> None:
        self._package = package
        self.library = library

    def __call__(
        self, model: Path, require: Require = "prefer", library: Path | None = None, **options: str | int
    ) -> TfliteRuntime:
        accelerator = AcceleratorOptions(
            provider="software", require=require, library=library or self.library, options=options
        )
        return TfliteRuntime(model, RuntimeOptions(package=self._package, accelerator=accelerator))


@pytest.fixture(params=["ai_edge_litert", "tflite_runtime"])
def load(request: pytest.FixtureRequest, software_delegate: Path) -> Loader:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} has no wheel for this Python")
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


def assert_works(runtime: TfliteRuntime, count: int = 2) -> None:
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
    assert runtime.placement.left_on_cpu == ("1 MUL",)
    assert_works(runtime)


@pytest.mark.parametrize("claim", ["all", str(BuiltinOperator.ADD), str(BuiltinOperator.MUL)])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_evidence_is_what_the_delegate_itself_reports(
    load: Loader, tmp_path: Path, claim: str, length: int
) -> None:
    report = tmp_path / "report.txt"
    runtime = load(chain(tmp_path, length), claim=claim, report=str(report))
    reported = {int(node) for node in report.read_text().split()} if report.exists() else set()
    left = {int(label.split()[0]) for label in runtime.placement.left_on_cpu}
    assert runtime.placement.nodes == length
    assert runtime.placement.nodes_on_accelerator == len(reported)
    assert (left == set(range(length)) - reported) if reported else runtime.placement.reason != ""


def test_must_refuses_a_partial_placement_and_names_the_nodes(load: Loader, tmp_path: Path) -> None:
    path = chain(tmp_path, 30)
    with pytest.raises(ConfigError) as error:
        load(path, "must", claim=str(BuiltinOperator.ADD))
    text = str(error.value)
    assert str(path) in text
    assert "leaves 15 of 30 nodes on the CPU: 0 MUL, 2 MUL" in text
    assert text.endswith("18 MUL and 5 more")


def test_must_refuses_a_delegate_that_takes_nothing(load: Loader, model: Path) -> None:
    with pytest.raises(ConfigError, match="leaves 2 of 2 nodes on the CPU: 0 ADD, 1 MUL"):
        load(model, "must", claim="")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"claim": ""}, "software took none of the 2 nodes", id="takes nothing"),
        pytest.param({"claim": "all", "fail_prepare": 1}, "told to fail in prepare", id="fails in prepare"),
        pytest.param({"nonsense": 1}, "unknown option", id="unknown option"),
    ],
)
def test_prefer_runs_on_the_cpu_and_says_why(load: Loader, model: Path, options: dict[str, Any], said: str) -> None:
    runtime = load(model, "prefer", **options)
    assert runtime.placement.accelerator == "software"
    assert runtime.placement.nodes == 2
    assert runtime.placement.nodes_on_accelerator == 0
    assert said in runtime.placement.reason
    assert_works(runtime)


@pytest.mark.parametrize("options", [{"claim": "all", "fail_prepare": 1}, {"nonsense": 1}])
def test_must_refuses_a_delegate_that_fails(load: Loader, model: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'software' is a must and cannot be used"):
        load(model, "must", **options)


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
    runtime = load(model, "prefer", library=library)
    assert str(library) in runtime.placement.reason
    assert_works(runtime)
    with pytest.raises(ConfigError, match="cannot be used"):
        load(model, "must", library=library)


def test_cpu_leaves_the_delegate_alone(load: Loader, model: Path) -> None:
    runtime = load(model, "cpu", library=Path("/nowhere/lib.so"))
    assert runtime.placement.accelerator == ""
    assert_works(runtime)


def test_an_accelerator_without_a_library_is_a_mistake_in_the_file(load: Loader, model: Path) -> None:
    options = RuntimeOptions(accelerator=AcceleratorOptions(provider="software"))
    with pytest.raises(ConfigError, match="needs `library`"):
        TfliteRuntime(model, options)


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
    with pytest.raises(InvalidRequest, match="does not take these shapes"):
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


def test_a_model_that_only_the_accelerator_could_run_tells_both_reasons(load: Loader, tmp_path: Path) -> None:
    custom = [T("x", (1, 3)), T("y", (1, 3))]
    path = save(tmp_path / "compiled.tflite", custom, [Op("vendor-op", (0,), (1,))], [0], [1])
    with pytest.raises(ConfigError) as error:
        load(path, "prefer", library=tmp_path / "missing.so")
    assert "vendor-op" in str(error.value)
    assert "missing.so" in str(error.value)
