"""Requests per second of the HTTP server, side by side with that of other checkouts, in turn in one run.

    python tests/benchmarks/http_throughput.py . ../before --rounds 7

Needs `h2load` (package nghttp2-client). Each server answers the sum of one FP32 tensor; a round asks each of them in
turn, with bodies of 1 kB and 602 kB, over 1 and 8 connections. Shown are the median and the spread of the rounds, and
the median of the ratios to the last checkout.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

ELEMENTS = {"1 kB": 230, "602 kB": 3 * 224 * 224}
CONNECTIONS = (1, 8)
PARTS = ("shared", "cloud", "edge", "protos")


def serve() -> None:
    """Serve until the parent closes our input; the address is printed."""
    from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
    from upwell.shared.oip.fake import FakeDataplane
    from upwell.shared.oip.http.server import start_http_server

    class Sums(FakeDataplane):
        def infer(self, request: InferRequest, call: Call) -> InferResponse:
            total = np.asarray([request.inputs["x"][0]], np.float32)
            return InferResponse(request.model, {"sum": total}, "1", request.id)

    as_the_service: dict[str, Any] = (
        {"at_work": 1} if "at_work" in inspect.signature(start_http_server).parameters else {}
    )
    server = start_http_server(Sums(), ["127.0.0.1:0"], max_workers=8, **as_the_service)
    print(server.addresses[0], flush=True)
    sys.stdin.read()
    server.stop(0)


def started(tree: Path, stack: ExitStack) -> str:
    paths = os.pathsep.join(str(tree.resolve() / part) for part in PARTS)
    child = subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    stack.callback(child.wait, 10)
    assert child.stdin is not None
    assert child.stdout is not None
    stack.callback(child.stdin.close)
    stack.callback(child.stdout.close)
    return child.stdout.readline().strip()


def body(elements: int) -> tuple[int, bytes]:
    """The length of the JSON part, and all of a request."""
    size = {"binary_data_size": 4 * elements}
    tensor = {"name": "x", "datatype": "FP32", "shape": [elements], "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    return len(head), head + np.ones(elements, np.float32).tobytes()


def rate(h2load: str, address: str, sent: Path, head_bytes: int, connections: int, seconds: float) -> float:
    """Requests per second. Fails where one is not answered with 200."""
    done = subprocess.run(
        [
            h2load, "--h1", f"--clients={connections}", f"--duration={seconds}", "--warm-up-time=1",
            f"--data={sent}", "--header=Content-Type: application/octet-stream",
            f"--header=Inference-Header-Content-Length: {head_bytes}", f"http://{address}/v2/models/sums/infer",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", done.stdout)
    assert codes is not None, done.stdout
    assert codes[1] != "0", done.stdout
    assert (codes[2], codes[3], codes[4]) == ("0", "0", "0"), done.stdout
    return int(codes[1]) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    h2load = shutil.which("h2load")
    if h2load is None:
        parser.error("h2load is missing: apt-get install nghttp2-client")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = {tree: started(tree, stack) for tree in options.trees}
        for what, elements in ELEMENTS.items():
            head_bytes, data = body(elements)
            sent = folder / "body"
            sent.write_bytes(data)
            for connections in CONNECTIONS:
                found: dict[Path, list[float]] = {tree: [] for tree in addresses}
                for _ in range(options.rounds):
                    for tree, address in addresses.items():
                        found[tree].append(rate(h2load, address, sent, head_bytes, connections, options.seconds))
                show(f"{what}, {connections} connections", found)


def show(title: str, found: dict[Path, list[float]]) -> None:
    last = list(found.values())[-1]
    for tree, rates in found.items():
        ratios = [one / other for one, other in zip(rates, last, strict=True)]
        spread = f"{min(rates):7.0f} to {max(rates):7.0f}"
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{title:24} {tree!s:20} {statistics.median(rates):7.0f}/s ({spread}), ratio {ratio}", flush=True)


if __name__ == "__main__":
    main()
