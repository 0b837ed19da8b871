"""What every server is asked: a model, one request, and the answer of the bare session to it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import onnx
import onnxruntime

from tests.models.mobilenet import build_mobilenet_v2
from upwell.shared.oip.codec.converters import parse_infer_response, serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.tensors import Array

ROOT = Path(__file__).parents[3]
_DIGITS = ROOT / "shared" / "upwell" / "tools" / "demo" / "assets" / "edge" / "digits" / "model.onnx"
SERVICE = "/inference.GRPCInferenceService"

STREAM_ANSWER = 0x12
"""First byte of a ModelStreamInferResponse without an error: the tag of its field `infer_response`."""


class WrongAnswer(Exception):
    """A server did not give the bare session's answer."""


@dataclass(frozen=True)
class Work:
    """One model and one request to it; every tensor is FP32.

    `model` lies in a repository as our service reads it. `least_rate` and `most_p99` are what is asked of us as
    ratios to Triton; `most_p99` is infinite where nothing is asked.
    """

    name: str
    title: str
    model: Path
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    request: bytes
    least_rate: float
    most_p99: float

    @property
    def size_bytes(self) -> int:
        """Of the request's tensors."""
        return sum(array.nbytes for array in self.inputs.values())


def prepare(repository: Path) -> tuple[Work, Work]:
    """Both models, written into `repository`: MobileNetV2 with 602 kB requests, and digits with 1 kB."""
    random = np.random.default_rng(0)
    mobilenet, digits = (repository / name / "1" / "model.onnx" for name in ("mobilenet", "digits"))
    for path in (mobilenet, digits):
        path.parent.mkdir(parents=True)
    onnx.save(build_mobilenet_v2(), mobilenet)
    shutil.copy(_DIGITS, digits)
    picture = {"picture": random.random((1, 3, 224, 224), np.float32)}
    rows = {"x": random.random((4, 1, 8, 8), np.float32)}
    return (
        _work("mobilenet", "MobileNetV2 FP32, random weights, 602 kB requests", mobilenet, picture, 0.95, 1.1),
        _work("digits", "INT8 digits, four rows, 1 kB requests", digits, rows, 0.85, float("inf")),
    )


def _work(name: str, title: str, model: Path, inputs: Mapping[str, Array], least_rate: float, most_p99: float) -> Work:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    request = serialize_infer_request(InferRequest(name, inputs))
    return Work(name, title, model, inputs, expected, request, least_rate, most_p99)


def check(channel: grpc.Channel, work: Work, *, stream: bool = False) -> int:
    """Ask once, over ModelInfer or over a stream, and return the size of the answer's message in bytes.

    Raises `grpc.RpcError` where the server refuses, `WrongAnswer` where it gives anything but the bare session's
    answer.
    """
    data = _asked_by_stream(channel, work) if stream else _asked(channel, work)
    answer = _unwrapped(data) if stream else data
    outputs = parse_infer_response(answer).outputs
    for name, expected in work.expected.items():
        if name not in outputs or not np.array_equal(outputs[name], expected):
            raise WrongAnswer(f"{work.name}: output {name!r} is not what the bare session gives")
    return len(data)


def _asked(channel: grpc.Channel, work: Work) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{SERVICE}/ModelInfer")
    return call(work.request, timeout=10)


def _asked_by_stream(channel: grpc.Channel, work: Work) -> bytes:
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
    answers = list(call(iter([work.request]), timeout=10))
    if len(answers) != 1:
        raise WrongAnswer(f"{work.name}: {len(answers)} answers to one request on a stream")
    return answers[0]


def _unwrapped(data: bytes) -> bytes:
    """The answer within a ModelStreamInferResponse, which has `error_message` as field 1 and the answer as field 2."""
    if not data or data[0] != STREAM_ANSWER:
        raise WrongAnswer(f"the stream answered with an error: {data[2:].decode(errors='replace')}")
    start = 1
    while data[start] & 0x80:  # the length, a varint
        start += 1
    return data[start + 1 :]
