"""What our service costs above the least a Python gRPC server can be: one FP32 [1, 3, 224, 224] request, in turn."""

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
