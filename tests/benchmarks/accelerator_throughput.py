"""A network of the class of ResNet-50 through gRPC, beside a bare torch loop on the same device, as the commands say.

    python -m tests.benchmarks.accelerator_throughput [--device cuda] [--precision bf16] [--write docs/performance.md]
    python -m tests.benchmarks.accelerator_throughput --device cpu --quick

For every batch size the bare loop runs the network on pixels that lie on the device already, and once more with the
copies to the device and back. Then `upwell serve` does the same work for clients in processes of their own, with and
without CUDA graphs, each round next to a round of the bare loop; its answer is compared with the bare network's before
anything is timed. At the best batch the number of worker processes goes up. Beside an accelerator the exit code is 1
where the service does less than 80 % of the bare loop at the best batch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.benchmarks.resnet50_torch import ResNet50, SmallResNet50, seeded
from upwell.cloud.engines.batch_checks_and_buckets import buckets_for
from upwell.cloud.engines.torch.network_calls import PRECISIONS
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError

START, END = "<!-- accelerator throughput: start -->", "<!-- accelerator throughput: end -->"
ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.8
MODEL = "resnet50"
READY_S, CALL_S = 1200.0, 120.0
CONNECTIONS = 4
"""Of each client process; workers share the port by connection."""
OF_ITS_OWN = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(frozen=True)
class Point:
    """One batch size or number of workers: images per second, and the service's share of the bare loop by round."""

    label: str
    bare: float
    copied: float
    served: dict[str, float]
    shares: dict[str, float]


class Bare:
    """The network in a loop, as a program without a service would run it."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.device = torch.device(asked.device)
        self.pixels = np.random.default_rng(0).integers(0, 256, (1, *shape_of(asked)), np.uint8)
        self._seconds = asked.seconds
        dtype = PRECISIONS[asked.precision]
        self._network = seeded(network_of(asked)).to(device=self.device, dtype=dtype)

    def scores(self, rows: int) -> Any:
        """Of `rows` times the same picture."""
        with torch.inference_mode():
            return self._network(self._host(rows).to(self.device)).float().cpu().numpy()

    def rate(self, rows: int, *, copied: bool) -> float:
        """Images per second."""
        host = self._host(rows)
        resident = host.to(self.device)
        with torch.inference_mode():
            return self._counted(rows, lambda: self._once(host if copied else resident, copied))

    def _once(self, pixels: torch.Tensor, copied: bool) -> None:
        scores = self._network(pixels.to(self.device, non_blocking=True))
        if copied:
            scores.float().cpu()

    def _counted(self, rows: int, once: Callable[[], None]) -> float:
        for _ in range(3):
            once()
        self._synchronize()
        started_s, runs = time.monotonic(), 0
        while time.monotonic() - started_s < self._seconds:
            for _ in range(4):
                once()
            self._synchronize()
            runs += 4
        return rows * runs / (time.monotonic() - started_s)

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def _host(self, rows: int) -> torch.Tensor:
        pixels = torch.from_numpy(np.repeat(self.pixels, rows, axis=0))
        return pixels.pin_memory() if self.device.type == "cuda" else pixels


def network_of(asked: argparse.Namespace) -> type[ResNet50]:
    """The whole network, or the one on small pictures."""
    return SmallResNet50 if asked.quick else ResNet50


def shape_of(asked: argparse.Namespace) -> tuple[int, ...]:
    """Of one picture."""
    shape: tuple[int, ...] = network_of(asked).inputs[0][2][1:]
    return shape


@contextmanager
def serving(asked: argparse.Namespace, folder: Path, batch: int, graphs: bool, workers: int) -> Iterator[str]:
    """`upwell serve` with this model; gives its address."""
    model = {
        "engine": "torch", "class": f"tests.benchmarks.resnet50_torch.{network_of(asked).__name__}", "instances": 1,
        "device": asked.device, "precision": asked.precision, "graphs": graphs, "compile": asked.compile,
        "threads": asked.threads, "buckets": buckets_for((), batch), "max_queue": 4096,
    }  # fmt: skip
    serve = {"listen": ["127.0.0.1:0"], "models": str(folder / "models"), "workers": workers}
    config = folder / "cloud.yaml"
    config.write_text(json.dumps({"version": 1, "serve": serve, "models": {MODEL: model}}))
    command = [sys.executable, "-m", "upwell.tools.entry", "serve", "-c", str(config)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait(READY_S)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.match(r"serving on (\S+) \(", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or a full pipe would halt it
            return found[1]
    sys.exit(f"the service does not start:\n{''.join(said)}")


def check(address: str, bare: Bare, rows: int) -> None:
    """End with an error unless the service gives what the bare network gives."""
    client = OipClient(address)
    request = InferRequest(MODEL, {"pixels": np.repeat(bare.pixels, rows, axis=0)})
    given, expected = client.infer(request, CALL_S).outputs["scores"], bare.scores(rows)
    client.close()
    most = float(np.abs(given - expected).max())
    if given.shape != expected.shape or most > 0.05 * float(np.abs(expected).max()):
        sys.exit(f"the service's answer is not the bare network's: they differ by up to {most}")


def load(address: str, asked: argparse.Namespace, in_flight: int) -> float:
    """Images per second that client processes get answered, with `in_flight` requests under way in all."""
    each = max(CONNECTIONS, in_flight // asked.clients)
    own = ["--client", address, "--rows", asked.rows, "--in-flight", each, "--seconds", asked.seconds]
    command = [sys.executable, "-m", "tests.benchmarks.accelerator_throughput", *map(str, own)]
    command += ["--quick"] if asked.quick else []
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(asked.clients)]
    answers = [json.loads(one.communicate(timeout=READY_S)[0]) for one in clients]
    if failed := [one["error"] for one in answers if one["error"]]:
        sys.exit(f"a request failed, so nothing can be said of the rate: {failed[0]}")
    return float(sum(one["rate"] for one in answers))


def client(asked: argparse.Namespace) -> None:
    """One client process: keeps so many requests under way, and prints the images per second it got answered."""
    pixels = np.random.default_rng(1).integers(0, 256, (asked.rows, *shape_of(asked)), np.uint8)
    data = converters.serialize_infer_request(InferRequest(MODEL, {"pixels": pixels}))
    connections = [OipClient(asked.client, options=OF_ITS_OWN) for _ in range(CONNECTIONS)]
    ends_s = time.monotonic() + asked.seconds + 1.0
    counts, errors = [0] * asked.in_flight, [""] * asked.in_flight

    def ask(place: int) -> None:
        connection = connections[place % CONNECTIONS]
        while time.monotonic() < ends_s and not errors[place]:
            try:
                connection.infer_async(data, CALL_S).result()
            except RemoteError as error:
                errors[place] = str(error)
            now_s = time.monotonic()
            if ends_s - asked.seconds <= now_s < ends_s:  # the first second warms up
                counts[place] += asked.rows

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(asked.in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"rate": sum(counts) / asked.seconds, "error": next(filter(None, errors), "")}))


def point(asked: argparse.Namespace, folder: Path, bare: Bare, batch: int, workers: int, label: str) -> Point:
    """The bare loop and the service in turn, without graphs and with them where the device has some."""
    bares: list[float] = []
    served: dict[str, float] = {}
    shares: dict[str, float] = {}
    for graphs in (False, True) if asked.graphs else (False,):
        name = ("compiled" if asked.compile else "eager") + (", graphs" if graphs else "")
        rates, ratios = [], []
        with serving(asked, folder, batch, graphs, workers) as address:
            check(address, bare, min(batch, 4))
            for _ in range(asked.rounds):
                alone = bare.rate(batch, copied=False)
                rate = load(address, asked, max(2, 3 * batch // asked.rows) * workers)
                bares.append(alone)
                rates.append(rate)
                ratios.append(rate / alone)
        served[name], shares[name] = statistics.median(rates), statistics.median(ratios)
        print(f"{label}, {name}: {served[name]:.0f} images/s, {shares[name]:.0%} of the bare loop", file=sys.stderr)
    return Point(label, statistics.median(bares), bare.rate(batch, copied=True), served, shares)


def table(head: str, points: Sequence[Point]) -> str:
    """As Markdown."""
    names = list(points[0].served)
    columns = "".join(f" served, {name} | of the bare loop |" for name in names)
    text = f"| {head} | bare loop, images/s | with copies |{columns}\n|{'---|' * (3 + 2 * len(names))}\n"
    for one in points:
        cells = "".join(f" {one.served[name]:.0f} | {one.shares[name]:.0%} |" for name in names)
        text += f"| {one.label} | {one.bare:.0f} | {one.copied:.0f} |{cells}\n"
    return text


def best_of(points: Sequence[Point]) -> Point:
    """Where the bare loop is fastest."""
    return max(points, key=lambda one: one.bare)


def report(asked: argparse.Namespace, points: Sequence[Point], workers: Sequence[Point]) -> str:
    """Both tables, and on what they were taken."""
    device = torch.device(asked.device)
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    picture = " × ".join(map(str, shape_of(asked)))
    best = best_of(points)
    share = max(best.shares.values())
    judged = f"target {TARGET:.0%}" if device.type != "cpu" else "a first look on a CPU, which the target is not about"
    return (
        f"{asked.device} ({name}), {os.cpu_count()} cores, torch {torch.__version__}, {asked.precision}; requests of "
        f"{asked.rows} × {picture} bytes, {asked.clients} client processes, medians of {asked.rounds} rounds of "
        f"{asked.seconds:g} s.\n\n{table('batch', points)}\n{table('workers', workers)}\n"
        f"At the best batch, {best.label}, the service does **{share:.0%}** of the bare loop ({judged}).\n"
    )


def write(path: Path, text: str) -> None:
    """Put the tables between their marks."""
    before, start, rest = path.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"{path}: expected the marks {START} and {END}")
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """What is asked for, with everything put in that is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", default=str(found or "cpu"), help="as torch names it")
    parser.add_argument("--precision", choices=list(PRECISIONS), help="default: bf16, and fp32 on a CPU")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 32, 64, 128])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=int, default=1, help="pictures in a request")
    parser.add_argument("--clients", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)), help="processes")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the network on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--compile", action="store_true", help="serve the network compiled")
    parser.add_argument("--quick", action="store_true", help="small pictures, few sizes, one round: a first look")
    parser.add_argument("--write", type=Path, help="put the tables between their marks in this file")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--in-flight", type=int, default=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    is_cpu = torch.device(asked.device).type == "cpu"
    asked.precision = asked.precision or ("fp32" if is_cpu else "bf16")
    asked.graphs = not is_cpu
    if asked.quick and not asked.client:
        asked.batches, asked.workers, asked.threads, asked.rounds, asked.seconds = [1, 4], [1, 2], 1, 1, 2.0
    return asked


def main() -> None:
    """Measure, print, write, judge."""
    asked = arguments()
    if asked.client:
        client(asked)
        return
    torch.set_num_threads(asked.threads)
    bare = Bare(asked)
    with tempfile.TemporaryDirectory() as name:
        version = Path(name) / "models" / MODEL / "1"
        version.mkdir(parents=True)
        weights = {one: tensor.contiguous() for one, tensor in seeded(network_of(asked)).state_dict().items()}
        save_file(weights, version / "model.safetensors")
        points = [point(asked, Path(name), bare, batch, 1, str(batch)) for batch in asked.batches]
        best = int(best_of(points).label)
        workers = [point(asked, Path(name), bare, best, count, str(count)) for count in asked.workers]
    text = report(asked, points, workers)
    print(text)
    if asked.write is not None:
        write(asked.write, text)
    if asked.graphs and max(best_of(points).shares.values()) < TARGET:
        sys.exit(f"less than {TARGET:.0%} of the bare loop")


if __name__ == "__main__":
    main()
