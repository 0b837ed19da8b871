"""What our service costs above the least a Python gRPC server can be, and what each of its shortcuts buys, in turn."""

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest

from upwell.shared.oip.codec.converters import parse_infer_response, serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest

ROUNDS = 300
WARM_UP = 30

PLAIN_SERVER = """
import sys
from concurrent import futures
import grpc, numpy as np, onnxruntime as ort
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb, open_inference_grpc_pb2_grpc as rpc
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
class Plain(rpc.GRPCInferenceServiceServicer):
    def ModelInfer(self, request, context):
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(request.inputs[0].shape)
        (y,) = session.run(None, {request.inputs[0].name: x})
        answer = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.outputs.add(name="y", datatype="FP32", shape=y.shape)
        answer.raw_output_contents.append(y.tobytes())
        return answer
server = grpc.server(futures.ThreadPoolExecutor(8))
rpc.add_GRPCInferenceServiceServicer_to_server(Plain(), server)
print("serving on 127.0.0.1:%d" % server.add_insecure_port("127.0.0.1:0"), file=sys.stderr, flush=True)
server.start()
server.wait_for_termination()
"""


@contextmanager
def serving(command: Sequence[str]) -> Iterator[Callable[[bytes], bytes]]:
    """Start a server of which the address is on its standard error, and give the call of its ModelInfer."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        found = next(match for line in process.stderr if (match := re.search(r"serving on (\S+)", line)))
        with grpc.insecure_channel(found[1]) as channel:
            call: Callable[[bytes], bytes] = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")  # type: ignore[assignment]  # without serializers it is bytes to bytes
            yield call
    finally:
        process.terminate()
        process.wait(20)
        if process.stderr:
            process.stderr.close()


WITHOUT = {
    "as it is": "",
    "gRPC's inner parts": "from upwell.shared.oip.grpc.fastpath import switch; switch.switch_on = bool",
    "what is remembered of requests": (
        "from upwell.shared.oip.codec import converters as c; c.parse_infer_request = c.parse_unfamiliar_request"
    ),
    "what is remembered of answers": (
        "from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb\n"
        "from upwell.shared.oip.codec import converters as c, tensor_contents as t, tensor_messages as m\n"
        "def parts(r):\n"
        "    message = pb.ModelInferResponse(model_name=r.model, model_version=r.version, id=r.id)\n"
        "    m.write_parameters(message.parameters, r.parameters)\n"
        "    raws = [m.write_tensor(message.outputs.add(), name, array) for name, array in r.outputs.items()]\n"
        "    return [t.append_raw_contents(message.SerializeToString(), c._RAW_OUTPUTS, raws)]\n"
        "c.answer_parts = parts"
    ),
    "streams told by events": (
        "from upwell.shared.oip.grpc.server import model_stream as stream\n"
        "from upwell.shared.oip.grpc.fastpath.inner_parts import _Waits\n"
        "stream.flow_of = lambda requests, _, *rest: _Waits(requests, *rest)"
    ),
    "the cheap flag": (
        "import threading; from upwell.shared.oip.grpc.server import servicer; servicer.Flag = threading.Event"
    ),
    "one at work at a time": "from upwell.cloud.workers import serving_process; serving_process.AT_WORK = None",
}
"""What is left out -> how, before `upwell serve` begins."""
SHORTCUT_ROUNDS, SHORTCUT_CALLS, AT_ONCE = 12, 400, 8


@contextmanager
def serving_without(patch: str, models: Path) -> Iterator[tuple[int, grpc.Channel]]:
    """Our service with a shortcut left out: its process, and a channel to it."""
    arguments = ["upwell", "serve", "--models", str(models), "--listen", "127.0.0.1:0"]
    program = f"{patch}\nimport sys; from upwell.tools.entry import main; sys.argv = {arguments!r}; main()"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            found = next(match for line in process.stderr if (match := re.search(r"serving on (\S+)", line)))
            with grpc.insecure_channel(found[1]) as channel:
                yield process.pid, channel
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """The processor time of a process, from its own clock (Linux)."""
    return time.clock_gettime(~pid << 3 | 2)


def ask(channel: grpc.Channel, request: bytes, count: int) -> None:
    call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    under_way: list[Any] = []
    for _ in range(count):
        if len(under_way) == AT_ONCE:
            under_way.pop(0).result()
        under_way.append(call.future(request))
    for one in under_way:
        one.result()


def ask_in_a_stream(channel: grpc.Channel, request: bytes, count: int) -> None:
    call: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    assert sum(1 for _ in call(iter([request] * count))) == count


@pytest.mark.benchmark
@pytest.mark.timeout(300)
def test_what_each_shortcut_buys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CPU time of the server for a request of 1 kB to a model that does nothing: eight calls at a time, a stream."""
    save_identity(tmp_path / "identity" / "1" / "model.onnx")
    request = serialize_infer_request(InferRequest("identity", {"x": np.ones((1, 256), np.float32)}, id="benchmark"))
    taken_us: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving_without(patch, tmp_path)) for name, patch in WITHOUT.items()}
        for turn in range(SHORTCUT_ROUNDS + 1):
            for name, (pid, channel) in servers.items():
                for kind, drive in (("calls", ask), ("stream", ask_in_a_stream)):
                    start_s = cpu_s(pid)
                    drive(channel, request, SHORTCUT_CALLS)
                    if turn:  # the first warms up
                        taken_us[name, kind].append(1e6 * (cpu_s(pid) - start_s) / SHORTCUT_CALLS)
    with capsys.disabled():
        print(f"\nCPU of the server for a request of 1 kB, {SHORTCUT_ROUNDS} rounds in turn; median, least to most, µs")
        for name in WITHOUT:
            for kind in ("calls", "stream"):
                found = taken_us[name, kind]
                more = statistics.median(a - b for a, b in zip(found, taken_us["as it is", kind], strict=True))
                print(
                    f"  without {name:30} {kind:6} {statistics.median(found):6.1f} "
                    f"({min(found):.1f} to {max(found):.1f}), {more:+.1f} in pairs"
                )


def save_identity(path: Path) -> None:
    """A model that gives back its input, FP32 [-1, 256]."""
    path.parent.mkdir(parents=True)
    side = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 256]) for name in "xy")
    x, y = side
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.benchmark
@pytest.mark.timeout(300)
def test_one_request_of_602_kb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "squeezenet" / "1" / "model.onnx"
    model.parent.mkdir(parents=True)
    shutil.copy(Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx", model)
    x = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    request = serialize_infer_request(InferRequest("squeezenet", {"data_0": x}, id="benchmark"))
    upwell = [
        str(Path(sys.executable).with_name("upwell")),
        "serve",
        "--models",
        str(tmp_path),
        "--listen",
        "127.0.0.1:0",
    ]
    times_s: dict[str, list[float]] = {"upwell": [], "plain": []}
    engine_ms = []
    with serving(upwell) as ours, serving([sys.executable, "-c", PLAIN_SERVER, str(model)]) as plain:
        for call in (ours, plain):
            for _ in range(WARM_UP):
                call(request)
        for _ in range(ROUNDS):
            for name, call in (("upwell", ours), ("plain", plain)):
                start_s = time.perf_counter()
                answer = call(request)
                times_s[name].append(time.perf_counter() - start_s)
                if name == "upwell":
                    engine_ms.append(float(parse_infer_response(answer).parameters["upwell.cloud_compute_ms"]))
    assert len(engine_ms) == ROUNDS
    with capsys.disabled():
        _report(times_s, statistics.median(engine_ms))


def _report(times_s: dict[str, list[float]], engine_ms: float) -> None:
    medians_ms = {name: 1e3 * statistics.median(values) for name, values in times_s.items()}
    pairs = sorted(ours / plain for ours, plain in zip(times_s["upwell"], times_s["plain"], strict=True))
    print(f"\n602 kB request, SqueezeNet, {ROUNDS} rounds in turn, one thread; the engine alone: {engine_ms:.2f} ms")
    for name, values in times_s.items():
        low, high = np.percentile(values, [10, 90]) * 1e3
        print(f"  {name:7} median {medians_ms[name]:.3f} ms, 10 % to 90 %: {low:.3f} to {high:.3f} ms")
    ratio = medians_ms["upwell"] / medians_ms["plain"]
    tenth = len(pairs) // 10
    spread = f"10 % to 90 %: {pairs[tenth]:.3f} to {pairs[-tenth]:.3f}"
    print(f"  ratio of medians {ratio:.3f}; pair by pair {statistics.median(pairs):.3f}, {spread}")
