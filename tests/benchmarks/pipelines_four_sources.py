"""Live sources side by side on one agent: how old answers are, and whether anything grows.

    python -m tests.benchmarks.pipelines_four_sources [--seconds 600]

Each source is H.264 in MPEG-TS over HTTP, 640 x 480 at 10 frames a second, from a server in a process of its own on the
same machine; each pipeline asks the 5 ms detector about every frame, follows what it finds and says what crosses a
line. A latency counts from capture: the stream's own time, mapped to this clock by the least delay of the last ten
seconds. So it leaves out what every frame takes at least to be sent and decoded, a few milliseconds here. Memory is
what the process and its decoders have of their own, anonymous and shared among them, without files such as libraries,
whose share depends on who else runs. A slope is a least squares line, of the latency through the medians of each
second, after the first ten, in which models are run for the first time; of memory through the second half. Two things
would look like growth and are none: what is noted here, for which there is room from the start, and the flight
recorder, which would have its 10,000 requests only after minutes, and here keeps a tenth of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from tests.benchmarks.pipelines_live import h264_video, live_servers
from tests.pipelines_run import FOLLOWED, pipelines_text
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.tools.demo import digit_data
from upwell.tools.demo.digit_data import ASSETS

SOURCES, DEADLINE_S, SETTLED_S = 4, 0.2, 10.0


@dataclass
class Seen:
    """Of all pipelines: instants of answers with their latencies, and what the process held every second.

    `captured` and `answered` are counts of frames from when the start was over until the end.
    """

    captured: int = 0
    answered: int = 0
    answers: list[tuple[float, float]] = field(default_factory=list)
    held: list[tuple[float, int, int, int]] = field(default_factory=list)


class Notes:
    """Rows of numbers, with room for all of them from the start."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._count = np.full((rows, columns), np.nan), 0

    def add(self, *row: float) -> None:
        """What does not fit any more is left out."""
        if self._count < len(self._rows):
            self._rows[self._count] = row
            self._count += 1

    @property
    def rows(self) -> list[Any]:
        """What was noted."""
        return [tuple(row) for row in self._rows[: self._count].tolist()]


def follow(pipeline: FrameLoop, notes: Notes) -> None:
    """Note each answer of a pipeline until it is stopped."""
    for answered in pipeline:
        notes.add(time.monotonic(), answered.latency_s)


def counted(pipelines: Iterable[FrameLoop]) -> tuple[int, int]:
    """Frames captured and frames answered so far."""
    of_all = [one.status for one in pipelines]
    return sum(one.captured for one in of_all), sum(one.frames.get("answered", 0) for one in of_all)


def processes() -> list[int]:
    """This process and its decoders: its children, but for the server."""
    mine = [os.getpid()]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            is_decoder = b"decoder_child" in (status.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if parent == os.getpid() and is_decoder:
            mine.append(int(status.parent.name))
    return mine


def held() -> tuple[int, int, int]:
    """Bytes of this process, bytes of its decoders, and descriptors of all of them."""
    sizes, descriptors = {True: 0, False: 0}, 0
    for process in processes():
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            descriptors += len(os.listdir(f"/proc/{process}/fd"))
        except OSError:
            continue
        fields = dict(line.split()[:2] for line in rollup.splitlines()[1:])
        sizes[process == os.getpid()] += 1024 * (int(fields["Pss_Anon:"]) + int(fields["Pss_Shmem:"]))
    return sizes[True], sizes[False], descriptors


def slope(times_s: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Of a least squares line in units an hour, with its standard error."""
    x, y = np.asarray(times_s) - np.mean(times_s), np.asarray(values) - np.mean(values)
    rate = float((x * y).sum() / (x * x).sum())
    error = float(np.sqrt(((y - rate * x) ** 2).sum() / max(1, len(x) - 2) / (x * x).sum()))
    return 3600 * rate, 3600 * error


def play(folder: Path, seconds: float, sources: int) -> tuple[Seen, dict[str, Counter[str]], float]:
    """Run the pipelines for so long; what was seen, each pipeline's frames by fate, and processors used."""
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:  # its heap would have room for what grows here
        video = elsewhere.submit(h264_video, folder / "cards.mp4", 200).result()
    bundle = ASSETS / "edge" / "cards"
    config = folder / "agent.yaml"
    config.write_text(
        f"version: 1\nagent: {{flights: 1000}}\nmodels: {{cards: {{edge: {{bundle: {bundle}, runtime: onnx}}}}}}\n"
    )
    seen = Seen()
    with live_servers(video, sources) as addresses, embedded_agent(config) as agent:
        pipelines: dict[str, Any] = {
            f"camera{number}": {
                "source": {"video": address, "deadline": f"{1e3 * DEADLINE_S:g}ms"},
                "steps": [*FOLLOWED],
                "events": [{"name": "passed", "on": "cross middle"}],
            }
            for number, address in enumerate(addresses, 1)
        }
        parsed, _ = parse_pipelines(pipelines_text(folder, **pipelines), folder / "pipelines.yaml", None)
        with build_pipelines(parsed, agent, folder, LateResults()) as runner:
            answers = [Notes(int(seconds * digit_data.FPS * 2), 2) for _ in runner.pipelines]
            sizes = Notes(int(seconds) + 60, 4)
            threads = [
                Thread(target=follow, args=both) for both in zip(runner.pipelines.values(), answers, strict=True)
            ]
            for thread in threads:
                thread.start()
            end_s = time.monotonic() + seconds
            used_s = time.process_time()
            settled_s, at_first = time.monotonic() + SETTLED_S, (0, 0)
            while (left_s := end_s - time.monotonic()) > 0:
                sizes.add(time.monotonic(), *held())
                time.sleep(min(1.0, left_s))
                if not any(at_first) and time.monotonic() >= settled_s:
                    at_first = counted(runner.pipelines.values())
            at_last = counted(runner.pipelines.values())
            seen.captured, seen.answered = at_last[0] - at_first[0], at_last[1] - at_first[1]
            used_s = time.process_time() - used_s
            for pipeline in runner.pipelines.values():
                pipeline.stop()
            for thread in threads:
                thread.join()
            for pipeline in runner.pipelines.values():
                pipeline.close()
            seen.answers, seen.held = [row for notes in answers for row in notes.rows], sizes.rows
            fates = {name: Counter({"captured": one.status.captured}) + Counter(one.status.frames)
                     for name, one in runner.pipelines.items()}  # fmt: skip
    return seen, fates, used_s / seconds


def report(seen: Seen, fates: dict[str, Counter[str]], processors: float) -> bool:
    """Print it; whether 99 of 100 captured frames were answered in time and the sums agree.

    The percentiles are of answers, and what is late is none; so the share says more than they do.
    """
    began_s = seen.held[0][0]
    latencies_ms = np.array([1e3 * latency_s for _, latency_s in seen.answers])
    p50, p90, p99 = np.percentile(latencies_ms, (50, 90, 99))
    share = seen.answered / max(1, seen.captured)
    print(f"{len(latencies_ms)} answers of {len(fates)} sources; deadline {1e3 * DEADLINE_S:g} ms")
    print(f"  after the first {SETTLED_S:g} s: {seen.captured} captured, {100 * share:.2f} % answered in time")
    print(f"  capture to answer: p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms, max {latencies_ms.max():.1f} ms")
    seconds: dict[int, list[float]] = {}
    for at_s, latency_s in seen.answers:
        seconds.setdefault(int(at_s - began_s), []).append(1e3 * latency_s)
    settled = [second for second in sorted(seconds) if second >= SETTLED_S]
    if len(settled) > 2:
        rate, error = slope(settled, [float(np.median(seconds[second])) for second in settled])
        print(f"  slope of the latency: {rate:+.1f} ± {error:.1f} ms an hour")
        late = seen.held[len(seen.held) // 2 :]
        for name, column in (("the agent", 1), ("the decoders", 2)):
            sizes_mib = [one[column] / 2**20 for one in late]
            fifth = max(1, len(sizes_mib) // 5)
            first, last = np.median(sizes_mib[:fifth]), np.median(sizes_mib[-fifth:])
            rate, error = slope([one[0] for one in late], sizes_mib)
            print(f"  memory of {name}: {first:.1f} MiB in the middle, {last:.1f} at the end, ", end="")
            print(f"{rate:+.1f} ± {error:.1f} MiB an hour")
        counts = [one[3] for one in late]
        print(f"  descriptors: {counts[0]:g} at first, {counts[-1]:g} at last, {min(counts):g} to {max(counts):g}")
    print(f"  processors used without the decoders: {processors:.2f} of {usable_cores()}")
    do_agree = True
    for name, counted in fates.items():
        captured, others = counted["captured"], {fate: n for fate, n in sorted(counted.items()) if fate != "captured"}
        do_agree &= captured == sum(others.values())
        print(f"  {name}: {captured} captured = " + " + ".join(f"{n} {fate}" for fate, n in others.items()))
    print(f"  sums {'agree' if do_agree else 'DO NOT AGREE'}; load {os.getloadavg()[0]:.1f}")
    return do_agree and share >= 0.99


def main() -> int:
    """As told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--sources", type=int, default=SOURCES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if report(*play(Path(folder), arguments.seconds, arguments.sources)) else 1


if __name__ == "__main__":
    sys.exit(main())
