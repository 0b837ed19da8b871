"""A camera three times as fast as the device: a pipeline, and beside it the loop that anybody would write first.

    python -m tests.benchmarks.pipelines_overload [--seconds 30] [--plot docs/images/pipelines-overload.png]

Both watch the same kind of live stream (H.264 in MPEG-TS over HTTP, 640 x 480, 30 frames a second) with the same model
of about 100 ms, one after the other in one run. The loop reads a frame, infers, appends the answer, and reads the next.
An answer's latency counts from capture: for the loop the stream's own time plus the least delay that a frame has had,
as for the pipeline.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
from PIL import Image

from tests.benchmarks.pipelines_live import bare_session, h264_video, live_servers, slow_detector
from tests.pipelines_run import pipelines_text
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.tools import plot_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FPS, FACTOR, DEADLINE_S = 30, 3.0, 0.4
Answers = Sequence[tuple[float, float]]
"""Instants since the first frame, and latencies, in seconds."""


def by_hand(address: str, bundle: Path, seconds: float) -> tuple[Answers, int]:
    """The answers of the loop, and how many frames the camera had captured when it ended."""
    session = bare_session(bundle / "model.onnx", 1)
    side = session.get_inputs()[0].shape[-1]
    answers: list[tuple[float, float]] = []
    results = []
    with av.open(address, options={"fflags": "nobuffer", "fpsprobesize": "0"}) as stream:
        zero_s = began_s = None  # the monotonic clock when the stream's own was zero; the first frame
        for frame in stream.decode(video=0):
            came_s = time.monotonic()
            stream_s = float(frame.time or 0.0)
            zero_s = min(came_s - stream_s, came_s if zero_s is None else zero_s)
            began_s = came_s if began_s is None else began_s
            small = Image.fromarray(frame.to_ndarray(format="rgb24")).resize((side, side), Image.Resampling.BILINEAR)
            picture = (np.asarray(small, np.float32) / 255).transpose(2, 0, 1)[None]
            results.append(session.run(None, {"image": np.ascontiguousarray(picture)}))
            now_s = time.monotonic()
            answers.append((now_s - began_s, now_s - zero_s - stream_s))
            if now_s - began_s >= seconds:
                break
    return answers, round((answers[-1][0]) * FPS) + 1


def by_pipeline(address: str, bundle: Path, folder: Path, seconds: float) -> tuple[Answers, Counter[str]]:
    """The answers of a pipeline, and its frames by fate, with `captured`."""
    config = folder / "agent.yaml"
    edge = f"{{bundle: {bundle}, runtime: onnx, threads: 1, instances: 1}}"
    config.write_text(f"version: 1\nmodels: {{slow: {{edge: {edge}}}}}\n")
    pipeline = {
        "source": {"video": address, "deadline": f"{1e3 * DEADLINE_S:g}ms"},
        "steps": [{"infer": {"model": "slow"}}],
        "events": [{"name": "seen", "on": "frame"}],
    }
    parsed, _ = parse_pipelines(pipelines_text(folder, camera=pipeline), folder / "pipelines.yaml", None)
    answers: list[tuple[float, float]] = []
    with embedded_agent(config) as agent, build_pipelines(parsed, agent, folder, LateResults()) as runner:
        camera = runner.pipelines["camera"]
        began_s = None
        for answered in camera:
            now_s = time.monotonic()
            began_s = now_s if began_s is None else began_s
            answers.append((now_s - began_s, answered.latency_s))
            if now_s - began_s >= seconds:
                break
        camera.close()
        fates = Counter(camera.status.frames) + Counter(captured=camera.status.captured)
    return answers, fates


def drawn(naive: Answers, ours: Answers, model_s: float, kind: str) -> bytes:
    """Latency over time of both, as a picture."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ours_s, naive_s = np.array(ours), np.array(naive)
        axes.plot(naive_s[:, 0], naive_s[:, 1], color=plot_style.ALARM, linewidth=1.6)
        axes.plot(ours_s[:, 0], ours_s[:, 1], color=plot_style.EDGE, linewidth=0, marker=".", markersize=3)
        axes.axhline(DEADLINE_S, color=plot_style.MUTED, linewidth=1, linestyle="--")
        axes.annotate(
            "read, infer, append", naive_s[int(0.62 * len(naive_s))], xytext=(-8, 4), textcoords="offset points",
            ha="right", color=plot_style.ALARM,
        )  # fmt: skip
        last_s = max(ours_s[-1, 0], naive_s[-1, 0])
        top_s = naive_s[:, 1].max()
        axes.text(last_s, DEADLINE_S + 0.02 * top_s, "pipeline, deadline 400 ms", ha="right", color=plot_style.EDGE)
        axes.set_title(f"A camera of {FPS} frames a second, a device that answers {1 / model_s:.0f}")
        axes.set_xlabel("seconds since the first frame")
        axes.set_ylabel("capture to answer, s")
        axes.set_xlim(0, last_s)
        axes.set_ylim(bottom=0)

    return plot_style.picture(draw, kind, (6.4, 3.4))


def main() -> int:
    """As told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    model_s = FACTOR / FPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        video = h264_video(folder / "cards.mp4", 10 * FPS, FPS)
        bundle = slow_detector(folder / "slow", model_s)
        with live_servers(video, 1) as (address,):
            naive, captured = by_hand(address, bundle, arguments.seconds)
            ours, fates = by_pipeline(address, bundle, folder, arguments.seconds)
    print(f"a camera of {FPS} frames a second; {arguments.seconds:g} s each, one after the other")
    tenths = [f"{latency_s:.2f}" for latency_s in np.array(naive)[:: max(1, len(naive) // 10), 1]]
    print(f"  loop: {len(naive)} answers of {captured} frames; latency over time, s: {' '.join(tenths)}")
    late = sum(latency_s > DEADLINE_S for _, latency_s in naive)
    print(f"    {late} of {len(naive)} answers later than {DEADLINE_S:g} s; at the end {naive[-1][1]:.2f} s")
    p50, p99 = np.percentile([latency_s for _, latency_s in ours], (50, 99))
    print(f"  pipeline: {len(ours)} answers, p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms, ", end="")
    print(f"max {1e3 * max(latency_s for _, latency_s in ours):.0f} ms; deadline {1e3 * DEADLINE_S:g} ms")
    others = {fate: count for fate, count in sorted(fates.items()) if fate != "captured"}
    do_agree = fates["captured"] == sum(others.values())
    print(
        f"    {fates['captured']} captured = " + " + ".join(f"{count} {fate}" for fate, count in others.items()), end=""
    )
    print(f"; the sums {'agree' if do_agree else 'DO NOT AGREE'}; load {os.getloadavg()[0]:.1f}")
    if arguments.plot is not None:
        arguments.plot.write_bytes(drawn(naive, ours, len(naive) and naive[-1][0] / len(naive), arguments.plot.suffix))
    return 0 if do_agree else 1


if __name__ == "__main__":
    sys.exit(main())
