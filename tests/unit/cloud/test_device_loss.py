"""A device that a process has lost: which errors say so, and what the service does then. None was seen on hardware."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.engines.base import DeviceLost
from upwell.cloud.engines.device_loss import run_error
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.service.cloud_service import CloudService
from upwell.cloud.service.model_loader import CloudModel
from upwell.shared.errors import ModelFailed, Unavailable
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array

REQUEST = InferRequest("m", {"x": np.ones((1, 2), np.float32)})


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.",
        "CUDA error: device-side assert triggered",
        "HIP error: unspecified launch failure",
        "Non-zero status code returned while running Gather node. CUDA failure 700: an illegal memory access was "
        "encountered ; GPU=0 ; hostname=a ; expr=cudaStreamSynchronize(stream); ",
        "CUDA error cudaErrorIllegalAddress:an illegal memory access was encountered",
        "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "CUDA error: uncorrectable ECC error encountered",
        "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
    ],
)
def test_after_such_an_error_only_a_new_process_can_use_the_device(text: str) -> None:
    found = run_error("it failed", RuntimeError(text), "cuda:0")
    assert (type(found), str(found)) == (DeviceLost, "it failed")
    assert type(run_error("it failed", RuntimeError(text), "cpu")) is ModelFailed


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: invalid argument",
        "CUDNN failure 3000: CUDNN_STATUS_BAD_PARAM",
        "a misaligned address in the file",
        "mat1 and mat2 shapes cannot be multiplied",
        "",
    ],
)
def test_after_any_other_the_next_run_may_succeed(text: str) -> None:
    assert type(run_error("it failed", RuntimeError(text), "cuda:0")) is ModelFailed


def test_a_service_that_has_lost_a_device_says_so_once_and_takes_no_more() -> None:
    def fail(_: Mapping[str, Array]) -> dict[str, Array]:
        raise DeviceLost("CUDA error: an illegal memory access was encountered")

    engine, calls = FakeEngine(fail), list[str]()
    processor = Processor(None, engine.inputs, engine.outputs, "onnx")
    settings = ModelSettings()
    model = CloudModel("m", "1", "fake", "sha256:0", settings, engine, processor, Batcher(engine, settings))
    service = CloudService([model], on_device_lost=lambda: calls.append("lost"))
    assert service.ready()
    with pytest.raises(Unavailable, match="the device is lost until the service has restarted: CUDA error"):
        service.infer(REQUEST, Call())
    assert (service.ready(), service.device_is_lost, calls) == (False, True, ["lost"])
    with pytest.raises(Unavailable, match="draining"):
        service.infer(REQUEST, Call())
    assert service.drain(10.0)
    assert (calls, len(engine.batches)) == (["lost"], 1)


def test_a_service_that_drains_already_is_not_told_to_drain() -> None:
    """The second signal would end it at once."""
    calls: list[str] = []

    def fail(_: Mapping[str, Array]) -> dict[str, Array]:
        assert not service.drain(0.0)  # by now it has a request
        raise DeviceLost("CUDA error: device-side assert triggered")

    engine, settings = FakeEngine(fail), ModelSettings()
    processor = Processor(None, engine.inputs, engine.outputs, "onnx")
    model = CloudModel("m", "1", "fake", "sha256:0", settings, engine, processor, Batcher(engine, settings))
    service = CloudService([model], on_device_lost=lambda: calls.append("lost"))
    with pytest.raises(Unavailable, match="the device is lost"):
        service.infer(REQUEST, Call())
    assert (service.device_is_lost, calls) == (True, [])
