"""What a plan promises against what requests take, end to end: the device simulated, everything else real.

    python -m tests.benchmarks.split_end_to_end [--quick] [--network NAME ...] [--json] [--write results/splitting.md]

Each network is profiled on both sides, on this one machine, and planned for every uplink. Then requests go the whole
way: the head in the agent's runtime, stretched eightfold (`simulated_split`); the cut tensors through a link with a
token bucket and a delay; the tail in `upwell serve`. Beside the plan for an uplink those that are best at any other are
measured, the legal cuts next to all of these, the device alone and the cloud alone.

The link that is planned with is known by requests to a model that does nothing: `fixed_s` is what an almost empty one
takes through the link, and what a byte costs that is packed, copied and unpacked is told by large ones without it.

Exit code 1 where a target is missed. What other programs on this machine disturb is measured again (`quiet`).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.progress import track

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.simulated_split import STRETCH, Bed, Planned, ask_sink, profilers, steady
from tests.faults.trace_link import TraceLink
from tests.models.int8 import quantized
from tests.models.mobilenet import build_mobilenet_v2
from tests.models.resnet import build_resnet50
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.partition.cost_graph import TierLink
from upwell.shared.partition.tier_profile import EDGE

START, END = "<!-- end-to-end -->", "<!-- /end-to-end -->"
RTT_S = 0.02
MOST_ERROR, MOST_BEHIND = 0.10, 0.05
ALIKE = 1e-4
"""Of the largest score: kernels fuse differently in halves."""
BURST, SLOW_S = 3, 1.0
"""Requests of a way at a time, after one that is not timed; one alone where it takes longer than this."""
FAR = 2.0
"""Ways that take so many times as long as the best in the first round, or later, are not measured further."""
LINK_REQUESTS, LARGE_BYTES = 31, 600_000


def mobilenet_v2_int8() -> onnx.ModelProto:
    """U8U8, as `upwell model quantize` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        return quantized(build_mobilenet_v2(), Path(folder))


Networks = Mapping[str, Callable[[], onnx.ModelProto]]
NETWORKS: Networks = {
    "MobileNetV2": build_mobilenet_v2,
    "MobileNetV2 int8": mobilenet_v2_int8,
    "ResNet-50": build_resnet50,
}
SMALL: Networks = {"MobileNetV2, half as wide, 96 pixels": lambda: build_mobilenet_v2(0.5, 96)}


@dataclass(frozen=True)
class Effort:
    """How much is measured: cuts of a profile and runs of each, uplinks, and how often every way is visited."""

    networks: Networks
    uplinks_bps: Sequence[float]
    points: int
    runs: int
    rounds: int


FULL = Effort(NETWORKS, (1e6, 5e6, 20e6, 100e6), points=16, runs=24, rounds=5)
QUICK = Effort(SMALL, (5e6, 100e6), points=5, runs=6, rounds=2)


@dataclass(frozen=True)
class Taken:
    """One way at one uplink; `times_s` of requests end to end. `profiled`: both profiles hold this cut."""

    name: str
    sent_bytes: float
    profiled: bool
    predicted_s: float
    times_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """The median."""
        return statistics.median(self.times_s)

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Row:
    """A network at an uplink: all ways that were measured, the plan's own first."""

    network: str
    uplink_bps: float
    fixed_s: float
    ways: tuple[Taken, ...]

    @property
    def chosen(self) -> Taken:
        """What the plan says."""
        return self.ways[0]

    @property
    def best(self) -> Taken:
        """What took the least."""
        return min(self.ways, key=lambda way: way.measured_s)

    @property
    def behind(self) -> float:
        """By how much the plan's way takes longer than the best, as a part of that."""
        return self.chosen.measured_s / self.best.measured_s - 1


@dataclass(frozen=True)
class Reached:
    """The service through a link of `bps`, and the link as it is planned with."""

    bps: float
    client: OipClient
    link: TierLink


@contextlib.contextmanager
def reached(address: str, bps: float, byte_s: float, quiet: Quiet) -> Iterator[Reached]:
    """The service at `address` through a link; `byte_s` is what a byte costs besides."""
    with TraceLink(address, steady(bps), RTT_S) as link, contextlib.closing(OipClient(link.address)) as client:
        fixed_s = quiet.measured(lambda: sink_s(client, 4))
        yield Reached(bps, client, TierLink(1 / (1 / bps + byte_s / 8), fixed_s))


def sink_s(client: OipClient, size_bytes: int) -> float:
    """The median of requests that do nothing."""
    times_s = [timed(lambda: ask_sink(client, size_bytes)) for _ in range(LINK_REQUESTS)]
    return statistics.median(times_s[LINK_REQUESTS // 3 :])  # the first ones find out how much the link holds


def byte_cost_s(address: str) -> float:
    """Seconds that a byte takes without any link."""
    with contextlib.closing(OipClient(address)) as client:
        sink_s(client, LARGE_BYTES)
        return max(0.0, sink_s(client, LARGE_BYTES) - sink_s(client, 4)) / LARGE_BYTES


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def measured(
    bed: Bed, at: Reached, predicted_s: Mapping[str, float], rounds: int, quiet: Quiet
) -> dict[str, list[float]]:
    """Times of requests of each way, the ways in turns, in another order each time."""

    def visit(name: str) -> list[float]:
        is_fast = predicted_s[name] < SLOW_S
        if is_fast:
            bed.ask(at.client, name)
        gc.collect()
        return [timed(lambda: bed.ask(at.client, name)) for _ in range(BURST if is_fast else 1)]

    chance = random.Random(int(at.bps))
    times_s: dict[str, list[float]] = {name: [] for name in predicted_s}
    for _ in range(rounds):
        medians = {name: statistics.median(some) for name, some in times_s.items() if some}
        limit_s = FAR * min(medians.values(), default=math.inf)
        for name in chance.sample(list(times_s), len(times_s)):
            if medians.get(name, 0.0) <= limit_s:
                times_s[name] += quiet.measured(lambda: visit(name))  # noqa: B023  called at once
    return times_s


def rows_of(network: str, effort: Effort, folder: Path, quiet: Quiet) -> Iterator[Row]:
    """One network at every uplink."""
    path = folder / "model.onnx"
    onnx.save(effort.networks[network](), path)
    edge, cloud = (
        quiet.measured(lambda: profiler.profile(lambda: None).profile)  # noqa: B023  called at once
        for profiler in profilers(path, effort.points, effort.runs)
    )
    planned = Planned(path, edge, cloud)
    for bps in effort.uplinks_bps:
        planned.beside(planned.of_envelope(TierLink(bps, RTT_S)))
    with contextlib.closing(Bed(planned, folder, "whole")) as bed, bed.service() as service:
        check_answers(bed, planned, service.address)
        byte_s = quiet.measured(lambda: byte_cost_s(service.address))
        for bps in effort.uplinks_bps:
            with reached(service.address, bps, byte_s, quiet) as at:
                yield row(network, planned, bed, at, effort.rounds, quiet)


def row(network: str, planned: Planned, bed: Bed, at: Reached, rounds: int, quiet: Quiet) -> Row:
    """One network at one uplink."""
    known = list(planned.ways)
    chosen = planned.chosen(at.link)
    if chosen not in known:
        sys.exit(f"{network}: {chosen} is best with {at.link} and was on no envelope")
    predicted_s = {name: planned.total_s(name, at.link) for name in known}
    times_s = measured(bed, at, predicted_s, rounds, quiet)
    ways = (
        Taken(
            name,
            planned.sent_bytes(name),
            is_prefix(planned, name) and len(planned.edge_side(name)) in planned.profiled,
            predicted_s[name],
            tuple(times_s[name]),
        )
        for name in sorted(known, key=lambda name: (name != chosen, len(planned.edge_side(name))))
    )
    return Row(network, at.bps, at.link.fixed_s, tuple(ways))


def is_prefix(planned: Planned, name: str) -> bool:
    """Whether the device has the first nodes of the order."""
    edge = planned.edge_side(name)
    return edge == frozenset(range(len(edge)))


def check_answers(bed: Bed, planned: Planned, address: str) -> None:
    """Every way gives what the whole gives on the device; what is measured is warm after that."""
    with contextlib.closing(OipClient(address)) as client:
        (expected,) = bed.ask(client, EDGE).values()
        for name in planned.ways:
            for _ in range(3):
                (found,) = bed.ask(client, name).values()
            if np.abs(found - expected).max() > ALIKE * np.abs(expected).max():
                sys.exit(f"{planned.path}: {name} gives another answer than the whole")


def misses(rows: Sequence[Row]) -> list[str]:
    """The targets that are missed."""
    error = statistics.median(abs(one.chosen.error) for one in rows)
    found = [f"the median error is {error:.1%}, expected {MOST_ERROR:.0%} or less"] if error > MOST_ERROR else []
    for one in rows:
        if one.behind > MOST_BEHIND:
            where = f"{one.network} at {mbps(one.uplink_bps)}"
            found.append(f"{where}: {one.chosen.name} takes {one.behind:.1%} longer than {one.best.name}")
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    text = (
        "|network|uplink|chosen|sends|predicted|measured (p10–p90)|error|chosen ÷ best|\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for one in rows:
        chosen = one.chosen
        low, high = np.percentile(chosen.times_s, (10, 90))
        text += (
            f"|{one.network}|{mbps(one.uplink_bps)}|{shown(chosen)}|{chosen.sent_bytes / 1e3:.0f} kB"
            f"|{ms(chosen.predicted_s)}|{ms(chosen.measured_s)} ({ms(low)}–{ms(high)})|{chosen.error:+.1%}"
            f"|{1 + one.behind:.3f}|\n"
        )
    return f"{text}\n{summary(rows)}\n"


def summary(rows: Sequence[Row]) -> str:
    """Errors over all, and how the figures came about."""
    chosen = [abs(one.chosen.error) for one in rows]
    every = [abs(way.error) for one in rows for way in one.ways]
    within = sum(one.behind <= MOST_BEHIND for one in rows)
    tenth = float(np.percentile(every, 90))
    counts = [len(way.times_s) for one in rows for way in one.ways]
    return (
        f"The error of the chosen plan's total is {statistics.median(chosen):.1%} in the median and "
        f"{max(chosen):.1%} at most; over all {len(every)} ways that were measured, chosen or not, "
        f"{statistics.median(every):.1%} in the median and {tenth:.1%} at the 90th percentile. The chosen plan is "
        f"within {MOST_BEHIND:.0%} of the best that was measured in {within} of {len(rows)} cases, and "
        f"{max(one.behind for one in rows):.1%} behind at most. Medians of {max(counts)} requests, fewer "
        f"of what takes more than {FAR:g} times as long as the best; "
        f"round trip {RTT_S * 1e3:.0f} ms. The device is simulated: this machine, stretched {STRETCH:.0f} times."
    )


def shown(way: Taken) -> str:
    """Its name, and whether its times were interpolated."""
    return f"`{way.name}`" if way.profiled else f"`{way.name}` (interpolated)"


def mbps(bps: float) -> str:
    """A rate."""
    return f"{bps / 1e6:g} Mbit/s"


def ms(seconds: float) -> str:
    """Milliseconds, whole from 100."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """All that was measured, as JSON."""
    return {
        "simulated": f"edge times of this machine stretched {STRETCH:g} times",
        "rtt_s": RTT_S,
        "rows": [
            {**asdict(one), "chosen": one.chosen.name, "best": one.best.name, "behind": one.behind} for one in rows
        ],
        "misses": misses(rows),
    }


def write(path: Path, text: str) -> None:
    """Put the table between its marks."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"{path}: expected the marks {START} and {END}")
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}", encoding="utf-8")


def run(effort: Effort, quiet: Quiet) -> list[Row]:
    """All rows."""
    found = []
    for network in track(list(effort.networks), "measuring", transient=True, disable=not sys.stdout.isatty()):
        with tempfile.TemporaryDirectory() as folder:
            found += list(rows_of(network, effort, Path(folder), quiet))
    return found


def main() -> int:
    """Measure, print, write, check."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small network at two uplinks, to see that all works")
    parser.add_argument("--network", action="append", choices=list(NETWORKS), help="this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--patience", type=float, default=600.0, metavar="S", help="seconds to spend on a busy machine")
    parser.add_argument("--write", type=Path, metavar="FILE", help=f"put the table between {START} and {END}")
    asked = parser.parse_args()
    effort = QUICK if asked.quick else FULL
    if asked.network:
        effort = replace(effort, networks={name: NETWORKS[name] for name in asked.network})
    quiet = Quiet(asked.patience)
    rows = run(effort, quiet)
    text = f"{table(rows)}\n{quiet.told()}\n"
    print(json.dumps({**document(rows), "others": quiet.told()}) if asked.json else text)
    if asked.write is not None:
        write(asked.write, text)
    missed = misses(rows)
    for text in missed:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
