"""The HTTP server's requests per second and CPU per request, beside other checkouts, in turn in one run.

    python tests/benchmarks/http_throughput.py . ../before --rounds 7

Needs `h2load` (package nghttp2-client). Each server answers the sum of one FP32 tensor; a round asks each of them in
turn, with bodies of 1 kB and 602 kB, over 1 and 8 connections. Shown are the median and the spread of the rounds, and
the median of the ratios to the last checkout. CPU is the user and system time of the server's process, which other
work on the machine changes less than the rate. `--python` names the interpreter that a checkout runs on, in the order
of the checkouts, where the one that runs this has not what it needs.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ELEMENTS = {"1 kB": 230, "602 kB": 3 * 224 * 224}
REQUESTS = {"1 kB": 6000, "602 kB": 1200}
CONNECTIONS = (1, 8)
PARTS = ("shared", "cloud", "edge", "protos")
UNITS = ("requests/s", "us CPU")


def serve() -> None:
    """Serve until the parent closes our input; the address is printed."""
    from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse

    names = "upwell.shared.oip.fake_dataplane", "upwell.shared.oip.http.server.server"
    if find_spec(names[0]) is None:  # a checkout in which both have their former names
        names = "upwell.shared.oip.fake", "upwell.shared.oip.http.server"
    fake, http = map(import_module, names)
    start_http_server = http.start_http_server

    class Sums(fake.FakeDataplane):  # type: ignore[misc,name-defined]  # by either name
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


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    address: str
    process: int

    def cpu_s(self) -> float:
        """What it has used so far, in user and system."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(tree: Path, python: str, stack: ExitStack) -> Served:
    paths = os.pathsep.join(str(tree.resolve() / part) for part in PARTS)
    child = subprocess.Popen(
        [python, __file__, "--serve"],
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
    return Served(child.stdout.readline().strip(), child.pid)


def body(elements: int) -> tuple[int, bytes]:
    """The length of the JSON part, and all of a request."""
    size = {"binary_data_size": 4 * elements}
    tensor = {"name": "x", "datatype": "FP32", "shape": [elements], "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    return len(head), head + np.ones(elements, np.float32).tobytes()


@dataclass(frozen=True)
class Load:
    """What is sent in a round: the same request, over so many connections."""

    body: Path
    head_bytes: int
    connections: int
    requests: int

    def ask(self, h2load: str, served: Served) -> tuple[float, float]:
        """Requests per second, and the server's CPU per request in us. Fails where one is not answered with 200."""
        before_s = served.cpu_s()
        done = subprocess.run(
            [
                h2load, "--h1", f"--clients={self.connections}", f"--requests={self.requests}", f"--data={self.body}",
                "--header=Content-Type: application/octet-stream",
                f"--header=Inference-Header-Content-Length: {self.head_bytes}",
                f"http://{served.address}/v2/models/sums/infer",
            ],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert f"status codes: {self.requests} 2xx, 0 3xx, 0 4xx, 0 5xx" in done.stdout, done.stdout
        found = re.search(r"finished in [^,]*, ([0-9.]+) req/s", done.stdout)
        assert found is not None, done.stdout
        return float(found[1]), 1e6 * (served.cpu_s() - before_s) / self.requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=7)
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
        pythons = itertools.chain(options.python, itertools.repeat(sys.executable))
        servers = {tree: started(tree, python, stack) for tree, python in zip(options.trees, pythons, strict=False)}
        for what, elements in ELEMENTS.items():
            head_bytes, data = body(elements)
            sent = folder / "body"
            sent.write_bytes(data)
            for connections in CONNECTIONS:
                load = Load(sent, head_bytes, connections, REQUESTS[what])
                for served in servers.values():
                    load.ask(h2load, served)  # warm
                found: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in servers}
                for _ in range(options.rounds):
                    for tree, served in servers.items():
                        found[tree].append(load.ask(h2load, served))
                show(f"{what}, {connections} connections", found)


def show(title: str, found: dict[Path, list[tuple[float, float]]]) -> None:
    last = list(found.values())[-1]
    for tree, rounds in found.items():
        texts: list[str] = []
        for measured, others, unit in zip(zip(*rounds, strict=True), zip(*last, strict=True), UNITS, strict=True):
            ratios = [one / other for one, other in zip(measured, others, strict=True)]
            spread = f"({min(measured):.0f} to {max(measured):.0f})"
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            texts.append(f"{statistics.median(measured):6.0f} {unit} {spread:16} ratio {ratio}")
        print(f"{title:22} {tree!s:16} " + "; ".join(texts), flush=True)


if __name__ == "__main__":
    main()
