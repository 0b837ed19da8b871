"""How a torch network is called, as far as a CPU shows it: the graph's buffers and turns with a recorder that runs."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from upwell.cloud.engines.torch.network_calls import (
    GraphCall,
    Tensors,
    check_compiler,
    check_graphs,
    forward_of,
    record_on,
)
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import TensorSpec

CPU = torch.device("cpu")


class ReplayedOnCpu:
    """Records a call as a device would: replays read the same inputs and write to the same outputs."""

    def __init__(self) -> None:
        self.replays = 0
        self.running = threading.Lock()

    def __call__(self, call: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        outputs = call()

        def replay() -> None:
            assert self.running.acquire(blocking=False), "two replays at a time"
            for own, new in zip(outputs, call(), strict=True):
                own.copy_(new)
            self.replays += 1
            self.running.release()

        return replay, outputs


def test_a_graph_reads_its_own_inputs_and_gives_copies() -> None:
    recorder = ReplayedOnCpu()
    step = GraphCall(lambda a, b: (a + b, a * b), [torch.zeros(3), torch.zeros(3)], recorder)
    given = torch.tensor([1.0, 2.0, 3.0])
    total, product = step([given, torch.tensor([4.0, 5.0, 6.0])])
    given.zero_()
    step([torch.ones(3), torch.ones(3)])
    assert total.tolist() == [5.0, 7.0, 9.0]
    assert product.tolist() == [4.0, 10.0, 18.0]
    assert recorder.replays == 2


def test_a_graph_keeps_the_network_whose_memory_its_replays_read() -> None:
    class Compiled:
        """Owns a constant, as what torch.compile makes."""

        def __init__(self) -> None:
            self.two = torch.full((3,), 2.0)

        def __call__(self, x: torch.Tensor) -> Tensors:
            return (x * self.two,)

    def record(call: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        return lambda: None, call()  # a real replay holds addresses, nothing of Python

    network = Compiled()
    kept = weakref.ref(network)
    step = GraphCall(network, [torch.zeros(3)], record)
    del network
    gc.collect()
    assert kept() is not None
    del step
    gc.collect()
    assert kept() is None


def test_a_graph_takes_one_call_at_a_time() -> None:
    step = GraphCall(lambda x: (x * 2,), [torch.zeros(64, 64)], ReplayedOnCpu())
    inputs = [torch.full((64, 64), float(value)) for value in range(64)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda x: step([x])[0], inputs))
    assert [float(one.min()) for one in answers] == [2.0 * value for value in range(64)]
    assert [float(one.max()) for one in answers] == [2.0 * value for value in range(64)]


def test_a_cpu_has_no_graphs() -> None:
    with pytest.raises(ModelFailed, match="`graphs: true` needs a device with graphs"):
        check_graphs(CPU)


class CudaWithoutDevice:
    """What `record_on` uses of torch.cuda, on the CPU; `said` is what happens, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def Stream(self, device: torch.device) -> str:  # noqa: N802  torch's name
        return f"stream of {device}"

    def CUDAGraph(self) -> CudaWithoutDevice:  # noqa: N802  torch's name
        return self

    def replay(self) -> None:
        self.said.append("replay")

    @contextmanager
    def graph(self, graph: CudaWithoutDevice, stream: str, capture_error_mode: str) -> Iterator[None]:
        assert graph is self
        self.said.append(f"capture on {stream}, {capture_error_mode}")
        yield
        self.said.append("captured")

    def stream(self, stream: str) -> Current:
        return Current(self.said, stream)


class Current:
    """Makes a stream the current one, as often as it is entered."""

    def __init__(self, said: list[str], stream: str) -> None:
        self._said, self._stream = said, stream

    def __enter__(self) -> None:
        self._said.append(f"on {self._stream}")

    def __exit__(self, *raised: object) -> None:
        self._said.append("off")


def test_cuda_is_warm_before_the_capture_and_needs_nothing_of_newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = CudaWithoutDevice()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: cuda.said.append("wait"))
    monkeypatch.delattr(torch.accelerator, "Graph", raising=False)
    device = torch.device("cuda:1")
    check_graphs(device)

    def call() -> Tensors:
        cuda.said.append("call")
        return (torch.ones(1),)

    replay, outputs = record_on(device)(call)
    warm = ["wait", "on stream of cuda:1", "call", "call", "call", "off"]
    captured = ["on stream of cuda:1", "capture on stream of cuda:1, thread_local", "call", "captured", "off", "wait"]
    assert cuda.said == warm + captured
    assert outputs[0].tolist() == [1.0]
    replay()
    assert cuda.said[-1] == "replay"


def test_other_devices_name_the_torch_that_has_their_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.accelerator, "Graph", raising=False)
    with pytest.raises(ModelFailed, match=r"on xpu needs torch\.accelerator\.Graph, available from torch 2\.12"):
        check_graphs(torch.device("xpu"))


def test_a_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelFailed, match=r"needs a C\+\+ compiler, but there is no no-such-compiler; install it"):
        check_compiler(CPU)
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ModelFailed, match=r"there is no (g\+\+|clang\+\+)"):
        check_compiler(CPU)
    check_compiler(torch.device("meta"))  # other devices bring their own


@pytest.mark.parametrize(
    ("precision", "inner"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32), (None, None)]
)
def test_only_floats_are_cast_and_outputs_come_back_as_declared(precision: object, inner: torch.dtype | None) -> None:
    class Looking(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> Tensors:
            assert x.dtype == (inner or torch.float64)
            assert n.dtype == torch.int32
            return x, n, x.to(torch.float16)

    outputs = [TensorSpec("x", "FP32", (2,)), TensorSpec("n", "INT32", (2,)), TensorSpec("h", "FP16", (2,))]
    forward = forward_of(Looking(), precision, outputs)  # type: ignore[arg-type]  # of the four that there are
    x, n, h = forward(torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.int32))
    assert x.dtype == (torch.float32 if precision else torch.float64)
    assert (n.dtype, h.dtype) == (torch.int32, torch.float16)
