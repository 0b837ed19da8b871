"""Execution providers: what they really took, what is required of them, and what happens when they fail.

The Azure provider is part of the plain CPU wheel and takes no node of an ordinary model, so it is a provider that is
loaded and listed and not used. Providers that take nodes need packages of their own.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.unit.models_for_tests import linear, linear_weights, save, slow, tensor, two_in_two_out
from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.onnx import OnnxRuntime
from upwell.edge.runtimes.onnx_evidence import AssignedNode, from_profile, kernels_in_profile, records_assignment
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import from_nodes, judge
from upwell.shared.errors import ConfigError, InvalidRequest

Require = Literal["must", "prefer", "cpu"]

with_azure = pytest.mark.skipif(
    "AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="this onnxruntime has no Azure"
)


def load(path: Path, provider: str, require: Require = "prefer", library: Path | None = None) -> OnnxRuntime:
    options: dict[str, str | int | float | bool] = {"backend_type": "htp"} if provider == "qnn" else {}
    accelerator = AcceleratorOptions(provider=provider, require=require, library=library, options=options)
    return OnnxRuntime(path, RuntimeOptions(accelerator=accelerator))


def assert_works(runtime: OnnxRuntime) -> None:
    x = np.ones((2, 8), np.float32)
    weights, bias = linear_weights()
    np.testing.assert_allclose(runtime.run({"x": x})["scores"], x @ weights + bias, rtol=1e-4)


def test_the_cpu_counts_its_nodes_where_the_runtime_tells(tmp_path: Path) -> None:
    assert OnnxRuntime(two_in_two_out(tmp_path)).placement == Placement(nodes=2 if records_assignment() else 0)


@with_azure
@pytest.mark.parametrize("name", ["azure", "Azure", "AzureExecutionProvider", "azureexecutionprovider"])
def test_a_provider_that_is_listed_and_takes_nothing_is_not_reported_as_used(tmp_path: Path, name: str) -> None:
    runtime = load(two_in_two_out(tmp_path), name)
    assert runtime.placement == Placement(name, nodes=2, reason=f"{name} took none of the 2 nodes")


@with_azure
def test_must_names_the_nodes_left_on_the_cpu(tmp_path: Path) -> None:
    path = slow(tmp_path, size=4, layers=12)
    with pytest.raises(ConfigError) as error:
        load(path, "azure", "must")
    assert str(path) in str(error.value)
    assert "leaves 12 of 12 nodes on the CPU: layer_h1 (MatMul), " in str(error.value)
    assert str(error.value).endswith("and 2 more")


def test_a_provider_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    runtime = load(linear(tmp_path), "migraphx")
    assert runtime.placement.nodes_on_accelerator == 0
    assert "has no MIGraphXExecutionProvider" in runtime.placement.reason
    assert "CPUExecutionProvider" in runtime.placement.reason
    assert_works(runtime)
    with pytest.raises(ConfigError, match=r"'migraphx' is a must and cannot be used: .*has no MIGraphX"):
        load(linear(tmp_path), "migraphx", "must")


def test_cpu_leaves_the_provider_alone(tmp_path: Path) -> None:
    assert load(two_in_two_out(tmp_path), "migraphx", "cpu").placement.accelerator == ""


@pytest.mark.parametrize(("content", "said"), [(None, "there is no library"), (b"junk", "cannot be loaded")])
def test_a_plugin_library_that_is_none_is_a_reason(tmp_path: Path, content: bytes | None, said: str) -> None:
    library = tmp_path / "libplugin.so"
    if content is not None:
        library.write_bytes(content)
    runtime = load(linear(tmp_path), "SomeVendorProvider", library=library)
    assert said in runtime.placement.reason
    assert str(library) in runtime.placement.reason
    assert_works(runtime)


@with_azure
def test_a_broken_model_is_the_models_fault_whatever_the_accelerator(tmp_path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="vendor")
    path = save(tmp_path / "m.onnx", [node], [tensor("x", [2])], [tensor("y", [2])], domains=["vendor"])
    with pytest.raises(ConfigError) as error:
        load(path, "azure")
    assert "cannot load the model" in str(error.value)
    assert "AzureExecutionProvider refused the model" in str(error.value)


def test_a_profile_tells_where_the_nodes_ran_on_runtimes_without_the_record(tmp_path: Path) -> None:
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(str(two_in_two_out(tmp_path)), settings, providers=["CPUExecutionProvider"])
    nodes = from_profile(session)
    assert set(nodes) == {
        AssignedNode("add (Add)", "CPUExecutionProvider"),
        AssignedNode("mul (Mul)", "CPUExecutionProvider"),
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
        AssignedNode("conv (Conv)", "CUDAExecutionProvider"),
        AssignedNode("nms (NonMaxSuppression)", "CPUExecutionProvider"),
    )


def test_must_holds_only_where_every_node_is_taken() -> None:
    wanted = AcceleratorOptions(provider="npu", require="must")
    judge(Path("m"), wanted, from_nodes(wanted, 3, ()))
    with pytest.raises(ConfigError, match=r"leaves 1 of 3 nodes on the CPU: nms$"):
        judge(Path("m"), wanted, from_nodes(wanted, 3, ("nms",)))
    with pytest.raises(ConfigError, match="cannot be used"):
        judge(Path("m"), wanted, from_nodes(wanted, 0, ()))
    judge(Path("m"), AcceleratorOptions(provider="npu"), from_nodes(wanted, 3, ("nms",)))


class LostDevice:
    """Stands in for a session on an accelerator whose device is gone: no provider here can be made to fail so."""

    def run(self, *_: object) -> list[Any]:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : device lost")


def on_a_lost_device(path: Path) -> OnnxRuntime:
    runtime = OnnxRuntime(path)
    runtime._session = LostDevice()
    runtime.placement = Placement("npu", nodes=2, nodes_on_accelerator=2)
    return runtime


def test_an_accelerator_that_fails_while_running_costs_no_answer(tmp_path: Path) -> None:
    runtime = on_a_lost_device(linear(tmp_path))
    for _ in range(2):
        assert_works(runtime)
    assert runtime.placement.nodes_on_accelerator == 0
    assert runtime.placement.reason == "npu failed while running, the model goes on on the CPU: device lost"


def test_a_bad_request_does_not_cost_the_accelerator(tmp_path: Path) -> None:
    runtime = on_a_lost_device(two_in_two_out(tmp_path))
    with pytest.raises(InvalidRequest):
        runtime.run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((5, 3), np.float32)})
    assert runtime.placement.nodes_on_accelerator == 2


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_a_plugin_provider_takes_nodes_in_every_session_of_the_process(tmp_path: Path) -> None:
    # Once registered, a plugin is listed like a built-in provider, and silently gives the CPU when named like one.
    for _ in range(2):
        runtime = load(linear(tmp_path, rows=2), "qnn", "must")
        assert runtime.placement.nodes_on_accelerator == runtime.placement.nodes > 0
        assert_works(runtime)


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_a_plugin_provider_that_takes_some_nodes_names_the_others(tmp_path: Path) -> None:
    nodes = [helper.make_node(*node) for node in (("Sigmoid", ["x"], ["h"], "sig"), ("Erf", ["h"], ["y"], "erf"))]
    path = save(tmp_path / "m.onnx", nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])])
    assert load(path, "qnn").placement == Placement("qnn", 2, 1, ("erf (Erf)",))
    with pytest.raises(ConfigError, match=r"leaves 1 of 2 nodes on the CPU: erf \(Erf\)"):
        load(path, "qnn", "must")
