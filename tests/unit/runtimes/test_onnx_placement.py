"""Execution providers: what they really took, what is required of them, and what happens when they fail.

The Azure provider is part of the plain CPU wheel and takes no node of an ordinary model, so it is a provider that is
loaded and listed and not used. Providers that take nodes need packages of their own: `tests/accelerators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.unit.models_for_tests import linear, linear_weights, save, slow, tensor, two_in_two_out
from upwell.edge.runtimes.base import Placement, Runtime
from upwell.edge.runtimes.fallback_runtime import FallbackRuntime
from upwell.edge.runtimes.onnx.node_assignment import AssignedNode, from_profile, kernels_in_profile, records_assignment
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.shared.tensors import Array

Require = Literal["must", "prefer"]

with_azure = pytest.mark.skipif(
    "AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="this onnxruntime has no Azure"
)


def load(path: Path, provider: str, require: Require = "prefer", library: Path | None = None) -> OnnxRuntime:
    return OnnxRuntime(path, None, AcceleratorOptions(provider=provider, require=require, library=library))


def refusal(path: Path, provider: str, require: Require = "prefer", library: Path | None = None) -> str:
    with pytest.raises(AcceleratorNotUsable) as error:
        load(path, provider, require, library)
    return str(error.value)


def assert_works(runtime: Runtime) -> None:
    x = np.ones((2, 8), np.float32)
    weights, bias = linear_weights()
    np.testing.assert_allclose(runtime.run({"x": x})["scores"], x @ weights + bias, rtol=1e-4)


def test_the_cpu_counts_its_nodes_where_the_runtime_tells(tmp_path: Path) -> None:
    assert OnnxRuntime(two_in_two_out(tmp_path)).placement == Placement(nodes=2 if records_assignment() else 0)


@with_azure
@pytest.mark.parametrize("name", ["azure", "Azure", "AzureExecutionProvider", "azureexecutionprovider"])
def test_a_provider_that_is_listed_and_takes_nothing_is_not_used(tmp_path: Path, name: str) -> None:
    assert refusal(two_in_two_out(tmp_path), name).startswith(f"{name} took none of the 2 nodes")


@with_azure
def test_must_names_the_nodes_left_on_the_cpu(tmp_path: Path) -> None:
    said = refusal(slow(tmp_path, size=4, layers=12), "azure", "must")
    assert "leaves 12 of 12 nodes on the CPU: layer_h1 (MatMul), " in said
    assert said.endswith(
        "and 2 more; the batch of 'x' is open, but many accelerators accept only fixed sizes: write `batch: 1`"
    )


@with_azure
@pytest.mark.parametrize("require", ["must", "prefer"])
def test_nodes_left_on_the_cpu_write_no_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], require: Require
) -> None:
    refusal(two_in_two_out(tmp_path), "azure", require)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("require", ["must", "prefer"])
def test_a_provider_that_is_not_there_is_a_reason(tmp_path: Path, require: Require) -> None:
    said = refusal(linear(tmp_path), "migraphx", require)
    assert "has no MIGraphXExecutionProvider" in said
    assert "CPUExecutionProvider" in said


@pytest.mark.parametrize(("content", "said"), [(None, "no such library"), (b"junk", "cannot be loaded")])
def test_a_plugin_library_that_is_none_is_a_reason(tmp_path: Path, content: bytes | None, said: str) -> None:
    library = tmp_path / "libplugin.so"
    if content is not None:
        library.write_bytes(content)
    found = refusal(linear(tmp_path), "SomeVendorProvider", library=library)
    assert said in found
    assert str(library) in found


def test_a_plugin_library_by_a_bare_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libplugin.so").write_bytes(b"junk")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    found = refusal(linear(tmp_path), "SomeVendorProvider", library=Path("libplugin.so"))
    assert found.startswith(f"{tmp_path / 'libplugin.so'} cannot be loaded")


@with_azure
def test_a_broken_model_is_a_reason_and_on_the_cpu_an_error(tmp_path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="vendor")
    path = save(tmp_path / "m.onnx", [node], [tensor("x", [2])], [tensor("y", [2])], domains=["vendor"])
    assert "AzureExecutionProvider refused the model" in refusal(path, "azure")
    with pytest.raises(ConfigError, match="cannot load the model"):
        OnnxRuntime(path)


@pytest.mark.parametrize(
    ("options", "instances"),
    [({}, 1), ({"instances": 3}, 3), ({"threads": 1}, usable_cores()), ({"threads": 1, "instances": 2}, 2)],
)
def test_runs_at_one_time(tmp_path: Path, options: Mapping[str, int], instances: int) -> None:
    assert OnnxRuntime(linear(tmp_path), RuntimeOptions.model_validate(options)).instances == instances


def test_a_profile_tells_where_the_nodes_ran_on_runtimes_without_the_record(tmp_path: Path) -> None:
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(str(two_in_two_out(tmp_path)), settings, providers=["CPUExecutionProvider"])
    nodes = from_profile(session)
    assert set(nodes) == {
        AssignedNode("add", "Add", "CPUExecutionProvider"),
        AssignedNode("mul", "Mul", "CPUExecutionProvider"),
    }


def test_copies_between_devices_are_no_nodes_of_the_model() -> None:
    def event(name: str, operator: str, provider: str) -> dict[str, Any]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "args": {"op_name": operator, "provider": provider}}

    events = [
        {"cat": "Session", "name": "model_run", "args": {}},
        event("conv", "Conv", "CUDAExecutionProvider"),
        event("Memcpy", "MemcpyToHost", "CUDAExecutionProvider"),
        event("nms", "NonMaxSuppression", "CPUExecutionProvider"),
        event("conv", "Conv", "CUDAExecutionProvider"),
    ]
    assert kernels_in_profile(events) == (
        AssignedNode("conv", "Conv", "CUDAExecutionProvider"),
        AssignedNode("nms", "NonMaxSuppression", "CPUExecutionProvider"),
    )


class LostDevice:
    """Stands in for a call on an accelerator whose device is gone: no provider here can be made to fail so."""

    def __call__(self, _: Mapping[str, Array]) -> dict[str, Array]:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : device lost")


def on_a_lost_device(path: Path) -> FallbackRuntime:
    runtime = OnnxRuntime(path)
    runtime._call = LostDevice()
    runtime.placement = Placement("npu", nodes=2, nodes_on_accelerator=2)
    return FallbackRuntime(path, runtime, lambda: OnnxRuntime(path))


def test_an_accelerator_that_fails_while_running_costs_no_answer(tmp_path: Path) -> None:
    runtime = on_a_lost_device(linear(tmp_path))
    for _ in range(2):
        assert_works(runtime)
    assert runtime.placement.nodes_on_accelerator == 0
    assert runtime.placement.reason == "npu failed while running; the model continues on the CPU: device lost"


def test_a_bad_request_does_not_cost_the_accelerator(tmp_path: Path) -> None:
    runtime = on_a_lost_device(two_in_two_out(tmp_path))
    with pytest.raises(InvalidRequest):
        runtime.run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((5, 3), np.float32)})
    assert runtime.placement.nodes_on_accelerator == 2
