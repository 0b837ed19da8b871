"""`upwell pipeline test`: runs a recording through a pipeline; writes its events and an annotated video."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from upwell.edge.server.agent_assembly import assemble
from upwell.pipelines.commands.run_cli import agent_config_of
from upwell.pipelines.config.model_signatures import signatures_of
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.config.sink_config import SinkSection
from upwell.pipelines.config.source_config import CaptureSection
from upwell.pipelines.frame_outcome import PipelineStatus, percentile
from upwell.pipelines.run.annotated_picture import annotated
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.sources.series import SERIES_SUFFIXES
from upwell.shared.config.yaml import read_text
from upwell.shared.errors import EXIT_FAILED, ConfigError, ExtraMissing
from upwell.shared.tensors import Array
from upwell.tools.terminal import AsJson, plain, progress, stderr_console, stdout_console

EVENTS, VIDEO = "events.jsonl", "annotated.mp4"
_DEFAULT_FPS = 25


def trial(
    pipelines: Annotated[Path, typer.Argument(metavar="PIPELINES", help="The pipelines file (YAML).")],
    video: Annotated[
        Path, typer.Option(help="A recorded video, or samples of a series, instead of the pipeline's source.")
    ],
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The agent.yaml with their models.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="Instead of an agent.yaml: a folder with a bundle or file for each model.")
    ] = None,
    pipeline: Annotated[str | None, typer.Option(help="The pipeline; required if there are several.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the events and the annotated video.")] = Path("pipeline-out"),
    as_json: AsJson = False,
) -> None:
    """Run every frame of a recording through a pipeline; the pipeline's own source and sinks are not used.

    Exit code 1 if the video breaks off before its end.
    """
    agent_config = agent_config_of(config, models)
    parsed, warnings = parse_pipelines(read_text(pipelines), pipelines, signatures_of(agent_config))
    for warning in warnings:
        stderr_console().print(f"warning: {warning}", markup=False)
    name = parsed.chosen(pipeline)
    if not video.is_file():
        raise ConfigError.at(video, "no such file; expected a recording", "--video")
    changed = _of_recording(parsed, name, video.absolute(), (out / EVENTS).absolute())
    has_pictures = parsed.pipelines[name].source.series is None
    with ExtraMissing.on_import("pipelines", "upwell pipeline test needs PACKAGE"):
        fps, frames = _length(video) if has_pictures else (_DEFAULT_FPS, None)
    results = LateResults()  # not of the agent, whose late answers are for events of real runs
    with ExitStack() as open_parts:
        agent = open_parts.enter_context(assemble(agent_config))
        _make_room(out, video, parsed)
        runner = open_parts.enter_context(build_pipelines(changed, agent, None, results, shows_frames=has_pictures))
        bar = open_parts.enter_context(progress())
        task = bar.add_task(name, total=frames)
        write = open_parts.enter_context(_video_file(out / VIDEO, fps)) if has_pictures else None
        running = runner.pipelines[name]
        for answered in running:
            bar.update(task, completed=running.status.captured)
            if write is not None:
                write(annotated(answered.scene, running.zones))
        status = running.status
    if as_json:
        typer.echo(json.dumps(_document(status, out)))
    else:
        _tell(status, out)
    if status.source.explained:
        stderr_console().print(f"error: {video}: the video ended early: {status.source.explained}", markup=False)
        raise typer.Exit(EXIT_FAILED)


def _of_recording(config: PipelinesConfig, name: str, recording: Path, events: Path) -> PipelinesConfig:
    """The one pipeline, with the recording as its source and a file of events as its sink. Raises `ConfigError`."""
    section = config.pipelines[name]
    if (series := section.source.series) is None:
        source = CaptureSection(video=str(recording), keep="all")
    elif recording.suffix.lower() not in SERIES_SUFFIXES:
        text = f"the source of {name!r} is a series; expected a file that ends in {', '.join(SERIES_SUFFIXES)}"
        raise ConfigError.at(recording, text, "--video")
    else:
        source = CaptureSection(series=series.model_copy(update={"file": recording, "mqtt": None}))
    source = source.model_copy(update={"deadline": section.source.deadline})
    sinks = (SinkSection.model_validate({"jsonl": {"path": events}}),)
    changed = section.model_copy(update={"source": source, "sinks": sinks, "preview": False})
    return config.model_copy(update={"pipelines": {name: changed}})


def _make_room(out: Path, recording: Path, config: PipelinesConfig) -> None:
    """The folder, without the results of a former run. Raises `ConfigError`, also if the recording, or a file that a
    pipeline reads or writes, is one of them.
    """
    kept = [recording, *(path for one in config.pipelines.values() for path in one.source.local.values())]
    kept += [sink.jsonl.path for one in config.pipelines.values() for sink in one.sinks if sink.jsonl]
    with ConfigError.on_os_error(out, "cannot be written", "--out"):
        out.mkdir(parents=True, exist_ok=True)
        results = [out / name for name in (EVENTS, f"{EVENTS}.1", VIDEO)]
        for path in kept:
            if any(_are_same(path, one) for one in results):
                raise ConfigError.at(path, "the results would replace it; expected another folder", "--out")
        for former in results:
            former.unlink(missing_ok=True)


def _are_same(one: Path, other: Path) -> bool:
    """Whether both are one file, or would be: of a file of events there may be its former part alone."""
    if os.path.abspath(one) == os.path.abspath(other):
        return True
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _length(video: Path) -> tuple[int, int | None]:
    """Frames per second and the number of frames, if the file says so. Raises `ConfigError`."""
    import av

    try:
        with av.open(str(video)) as file:
            if not file.streams.video:
                raise ConfigError.at(video, "it contains no video; expected a recording", "--video")
            stream = file.streams.video[0]
            fps = round(stream.average_rate or _DEFAULT_FPS) or _DEFAULT_FPS
            frames = stream.frames or (round(file.duration / av.time_base * fps) if file.duration else 0)
    except av.FFmpegError as error:
        raise ConfigError.at(video, f"cannot be read as a video: {error.strerror}", "--video") from None
    return fps, frames or None


@dataclass
class _VideoFile:
    file: Any
    fps: int
    stream: Any = None

    def write(self, pixels: Array) -> None:
        import av

        odd_rows, odd_columns = pixels.shape[0] % 2, pixels.shape[1] % 2  # YUV 4:2:0 has no odd sizes
        pixels = np.pad(pixels, ((0, odd_rows), (0, odd_columns), (0, 0)), mode="edge")
        height, width = pixels.shape[:2]
        if self.stream is None:
            self.stream = self.file.add_stream("mpeg4", rate=self.fps)
            self.stream.width, self.stream.height, self.stream.pix_fmt = width, height, "yuv420p"
            self.stream.bit_rate = max(1_000_000, width * height * self.fps // 4)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        frame = frame.reformat(self.stream.width, self.stream.height)  # the recording may change its size
        self.file.mux(self.stream.encode(frame))


@contextmanager
def _video_file(path: Path, fps: int) -> Iterator[Any]:
    """Writes pictures one after the other; the first one creates the file."""
    import av

    with av.open(str(path), "w", format="mp4") as file:
        video = _VideoFile(file, fps)
        yield video.write
        if video.stream is not None:
            file.mux(video.stream.encode())


def _document(status: PipelineStatus, out: Path) -> dict[str, Any]:
    ordered = sorted(status.latencies_s)
    return {
        "pipeline": status.name,
        "captured": status.captured,
        "frames": {outcome: count for outcome, count in status.frames.items() if count},
        "events": dict(status.events),
        **{
            f"latency_{name}_ms": None if latency_s is None else round(latency_s * 1e3, 3)
            for name, latency_s in (("p50", percentile(ordered, 0.5)), ("p99", percentile(ordered, 0.99)))
        },
        "last_failure": status.last_failure,
        "files": [str(out / name) for name in (EVENTS, VIDEO) if (out / name).exists()],
    }


def _tell(status: PipelineStatus, out: Path) -> None:
    document = _document(status, out)
    table = Table("what", "count", title=plain(f"{status.name}: {status.captured} frames"))
    for outcome, count in Counter(document["frames"]).most_common():
        table.add_row(plain(f"frames {outcome}"), str(count))
    for event, count in status.events.items():
        table.add_row(plain(f"event {event}"), str(count))
    console = stdout_console()
    console.print(table)
    if document["latency_p50_ms"] is not None:
        console.print(f"from capture to answer {document['latency_p50_ms']} ms (p99 {document['latency_p99_ms']} ms)")
    held = {str(out / EVENTS): "events", str(out / VIDEO): "answered frames"}
    if files := document["files"]:
        console.print(", ".join(f"{one}: {held[one]}" for one in files), markup=False)
