"""Which execution providers are tried, and what is said of those that are not."""

from __future__ import annotations

import pytest

from upwell.cloud.engines.onnx_engine import (
    CPU,
    INSTALL,
    WantedProvider,
    choose_providers,
    device_of,
    full_name,
    short_name,
    wanted_providers,
    why_skipped,
)
from upwell.shared.errors import ModelFailed

TENSORRT, MIGRAPHX, CUDA, CANN, OPENVINO, COREML = tuple(INSTALL)[:-1]
GPU_BUILD = (TENSORRT, CUDA, CPU)


def test_the_order_is_the_documented_one() -> None:
    assert [short_name(name) for name in INSTALL] == [
        "tensorrt", "migraphx", "cuda", "cann", "openvino", "coreml", "cpu",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["cuda", "CUDA", "CUDAExecutionProvider", "cudaexecutionprovider"])
def test_short_and_full_names_are_the_same(text: str) -> None:
    assert full_name(text) == CUDA


@pytest.mark.parametrize(
    ("device", "providers", "wanted"),
    [
        ("cpu", (), WantedProvider((CPU,), first=True)),
        ("auto", (), WantedProvider(tuple(INSTALL), first=True)),
        ("cpu", ("auto",), WantedProvider(tuple(INSTALL), first=True)),
        ("cuda:1", (), WantedProvider((TENSORRT, MIGRAPHX, CUDA), first=True)),
        ("cuda", ("cuda", "cpu"), WantedProvider((CUDA, CPU), first=False)),
        ("npu:0", (), WantedProvider((CANN,), first=True)),
        ("xpu", (), WantedProvider((OPENVINO,), first=True)),
        ("mps", (), WantedProvider((COREML,), first=True)),
    ],
)
def test_settings_say_what_is_wanted(device: str, providers: tuple[str, ...], wanted: WantedProvider) -> None:
    assert wanted_providers(device, providers) == wanted


def test_automatic_choice_among_others_is_no_provider_that_is_missing() -> None:
    with pytest.raises(ModelFailed, match=r"^`providers: \[auto\]` must stand alone"):
        wanted_providers("cpu", ("cpu", "auto"))


def test_a_device_that_no_provider_serves_is_named() -> None:
    with pytest.raises(ModelFailed, match="has no device 'hpu'"):
        wanted_providers("hpu", ())


def test_of_a_choice_all_that_are_there_are_tried_in_order_and_the_cpu_takes_what_is_left() -> None:
    choice = choose_providers(GPU_BUILD, wanted_providers("auto", ()))
    assert choice.chains == ((TENSORRT, CUDA, CPU), (CUDA, CPU), (CPU,))
    assert set(choice.skipped) == {MIGRAPHX, CANN, OPENVINO, COREML}
    assert "migraphx is not in this onnxruntime: install AMD's onnxruntime-migraphx" in why_skipped(choice.skipped)


@pytest.mark.parametrize("device", ["cuda", "xpu:0"])
def test_the_cpu_alone_for_a_device_that_is_none_is_a_contradiction(device: str) -> None:
    with pytest.raises(ModelFailed, match=f"`providers` names only the CPU, but `device` is '{device}'"):
        wanted_providers(device, ("cpu",))
    for plain in ("cpu", "auto"):
        assert wanted_providers(plain, ("cpu",)) == WantedProvider((CPU,), first=False)


def test_a_device_gets_no_cpu_of_its_own() -> None:
    assert choose_providers(GPU_BUILD, wanted_providers("cuda", ())).chains == ((TENSORRT, CUDA, CPU), (CUDA, CPU))
    with pytest.raises(ModelFailed, match="openvino is not in this onnxruntime: pip install onnxruntime-openvino"):
        choose_providers(GPU_BUILD, wanted_providers("xpu", ()))


def test_tensorrt_without_cuda_beside_it_leaves_the_rest_to_the_cpu() -> None:
    assert choose_providers((TENSORRT, CPU), wanted_providers("cuda", ())).chains == ((TENSORRT, CPU),)


def test_providers_by_name_must_all_be_there() -> None:
    assert choose_providers(GPU_BUILD, WantedProvider((CUDA, TENSORRT), first=False)).chains == ((CUDA, TENSORRT, CPU),)
    assert choose_providers(GPU_BUILD, WantedProvider((CPU, CUDA, CUDA), first=False)).chains == ((CUDA, CPU),)
    with pytest.raises(ModelFailed, match=r"coreml is not in this onnxruntime: .*; it has tensorrt, cuda, cpu"):
        choose_providers(GPU_BUILD, WantedProvider((CUDA, COREML), first=False))


def test_a_provider_of_another_build_is_found_however_it_is_written() -> None:
    available = ("DnnlExecutionProvider", CPU)
    assert choose_providers(available, wanted_providers("cpu", ("dnnl",))).chains == (available,)


@pytest.mark.parametrize(
    ("provider", "device", "where"),
    [
        (CUDA, "cpu", "cuda"),  # `providers: [cuda]`
        (TENSORRT, "auto", "cuda"),
        (CUDA, "cuda:1", "cuda:1"),
        (CANN, "npu:0", "npu:0"),
        (COREML, "auto", "mps"),
        (CPU, "auto", "cpu"),
        (CPU, "cuda:1", "cpu"),
        (OPENVINO, "cpu", "cpu"),
        ("QNNExecutionProvider", "cpu", "cpu"),
        ("QNNExecutionProvider", "npu", "npu"),
    ],
)
def test_where_a_session_runs_follows_from_its_first_provider(provider: str, device: str, where: str) -> None:
    assert device_of(provider, device) == where
