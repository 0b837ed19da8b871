"""Messages as large as may be: what a service that nobody had attacked before has taken for them is given back."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.faults.attacking import LIMIT_S, Target, attacked
from tests.faults.raw_http2 import DATA, END_STREAM, INFER, SETTINGS, RawConnection, frame, grpc_message
from tests.unit.models_for_tests import linear
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest

PIECE = 16_384
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with attacked(tmp_path_factory.mktemp("attacked")) as running:
        yield running


def unpack_at_once(target: Target, count: int, size_bytes: int) -> None:
    """So many messages of zeros, each packed to a thousandth, which are all unpacked before one is looked at."""
    message = grpc_message(gzip.compress(bytes(size_bytes), 6), is_compressed=True)
    with ExitStack() as stack:
        hostile = [stack.enter_context(RawConnection(target.grpc)) for _ in range(count)]
        for one in hostile:
            one.begin_call(1, grpc_encoding="gzip")
        for start in range(0, len(message), PIECE):
            for one in hostile:
                is_last = start + PIECE >= len(message)
                one.send(frame(DATA, END_STREAM if is_last else 0, 1, message[start : start + PIECE]))
        for one in hostile:
            assert one.ends_within(LIMIT_S)


@pytest.mark.slow
def test_the_memory_of_large_messages_is_given_back(target: Target) -> None:
    before = target.resident_bytes()
    target.forget_peak()
    unpack_at_once(target, 5, 60 << 20)
    assert target.peak_bytes() > 1.5 * before
    target.gives_back(before)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "calls", "each"), [(INFER, 60, 1), (STREAM, 8, 16)], ids=["calls", "streams"])
def test_the_memory_of_answers_that_nobody_reads_is_bounded(tmp_path: Path, path: str, calls: int, each: int) -> None:
    """A hundred bytes are answered with four megabytes, which stay with the server while the window is shut."""
    folder = tmp_path / "models" / "wide" / "1"
    folder.mkdir(parents=True)
    linear(folder, classes=1 << 20).rename(folder / "model.onnx")
    message = grpc_message(converters.serialize_infer_request(InferRequest("wide", {"x": np.ones((1, 8), np.float32)})))
    shut = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    with attacked(tmp_path, serve=", max_message: 8MiB") as target, ExitStack() as stack:
        before = target.resident_bytes()
        for _ in range(4):
            hostile = stack.enter_context(RawConnection(target.grpc))
            hostile.send(shut)
            for number in range(1, 2 * calls, 2):
                hostile.begin_call(number, path)
                with suppress(OSError):
                    hostile.send(*[frame(DATA, 0 if each > 1 else END_STREAM, number, message)] * each)
                target.good()  # so that few are refused
        until_s = time.monotonic() + LIMIT_S
        while (after := target.resident_bytes()) >= before + (1300 << 20):
            assert time.monotonic() < until_s, (before, after)
            time.sleep(0.1)
        target.good()
