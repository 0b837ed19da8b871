"""One stream of ModelStreamInfer with N requests under way: `stream_client.py TARGET FILE N SECONDS ANSWER_BYTES`.

A process of its own, so that its work is not that of whoever measures; prints JSON. Messages are bytes to it, which
costs least; every answer has to be of the known size and without an error.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
ANSWER = 0x12  # the tag of `infer_response`; an error has another

target, message = sys.argv[1], Path(sys.argv[2]).read_bytes()
at_once, seconds, answer_bytes = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
leave: queue.SimpleQueue[bool] = queue.SimpleQueue()
sent_s: deque[float] = deque()


def requests() -> Iterator[bytes]:
    """A request for each leave, until there is no more."""
    while leave.get():
        sent_s.append(time.perf_counter())
        yield message


for _ in range(at_once):
    leave.put(True)
times_s, begin_s, end_s, open_requests = [], 0.0, 0.0, at_once
with grpc.insecure_channel(target) as channel:
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
    for answer in call(requests(), timeout=seconds + 30):
        now_s = time.perf_counter()
        if len(answer) != answer_bytes or answer[0] != ANSWER:
            sys.exit(f"an answer of {len(answer)} bytes where {answer_bytes} were expected: {answer[:200]!r}")
        begin_s = begin_s or now_s  # connecting does not count
        if now_s - begin_s < seconds:
            times_s.append(now_s - sent_s.popleft())
            end_s = now_s
            leave.put(True)
            continue
        open_requests -= 1
        if not open_requests:
            leave.put(False)
p50_s, p99_s = np.percentile(times_s, [50, 99])
print(json.dumps({"per_s": (len(times_s) - 1) / (end_s - begin_s), "p50_s": p50_s, "p99_s": p99_s}))
