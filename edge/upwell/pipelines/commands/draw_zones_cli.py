"""`upwell pipeline draw-zones`: draws zones and lines on a picture of the source, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry

from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.source_config import source_settings
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.preview.preview import Preview, preview_pages
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.sources.source_opening import open_source
from upwell.shared.config.addresses import Address
from upwell.shared.config.yaml import read_text
from upwell.shared.errors import ConfigError
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.process import StopSignals
from upwell.shared.telemetry.logs import set_up_logs
from upwell.shared.telemetry.page_server import serve_pages

_HOST = "127.0.0.1"


def draw_zones(
    pipelines: Annotated[Path, typer.Argument(metavar="PIPELINES", help="The pipelines file (YAML).")],
    pipeline: Annotated[str | None, typer.Option(help="The pipeline; required if there are several.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The local port of the page; 0: any free port.")] = 0,
) -> None:
    """Show a picture of a pipeline's source on a page for drawing zones and lines; no model is asked.

    The page shows the text to paste into pipelines.yaml. Ends with Ctrl-C.
    """
    console = set_up_logs("text")
    config, _ = parse_pipelines(read_text(pipelines), pipelines, None)
    name = config.chosen(pipeline)
    section = config.pipelines[name]
    if section.source.series is not None:
        raise ConfigError.at(pipelines, f"the source of {name!r} is a series, which has no pictures", "--pipeline")
    zones = section.zones
    shown = section.source.model_copy(update={"done": "leave"})  # nothing was asked about the picture
    stop = StopSignals()
    with FrameLoop(name, open_source(source_settings(shown)), (), EventRules((), zones)) as running:
        preview = Preview(name, zones.polygons, zones.lines, lambda: running.status)
        server = serve_pages(_HOST, port, CollectorRegistry(), "--port", preview_pages({name: preview}))

        def show() -> None:
            for answered in running:
                preview.note(answered)
                if not section.source.is_live:  # a file would have ended before the page is open
                    return

        try:
            BackgroundThread("draw-zones", show, lambda: False).start()
            console.print(f"draw on http://{Address(_HOST, server.server_port)}/preview?draw=zones", markup=False)
            stop.receive()
        finally:
            stop.restore_default()
            server.shutdown()
            server.server_close()
