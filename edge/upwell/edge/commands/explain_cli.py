"""`upwell explain`: why a request was answered as it was, and what a pipeline did with an event's frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from upwell.edge.config import state_dir_of
from upwell.edge.observe.explain_text import ms, outcome, tell, tell_frame
from upwell.edge.observe.flight_recorder import (
    FOLDER_NAME,
    FRAMES_NAME,
    UnknownRequest,
    find,
    is_frame,
    last,
    local_time,
    newest_lines,
)
from upwell.shared.errors import ConfigError, printable

_WIDE = 1000
_ID = "The id of an answer (see `upwell infer` or the log) or of a pipeline's event, or its first characters."


def explain(
    config: Annotated[Path, typer.Option("--config", "-c", help="The agent.yaml of the agent that answered.")],
    id: Annotated[str | None, typer.Argument(help=_ID)] = None,
    last_count: Annotated[
        int | None, typer.Option("--last", min=1, help="List this many of the latest requests instead.")
    ] = None,
    frames: Annotated[bool, typer.Option("--frames", help="With --last: frames of pipelines, not requests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Explain an answer: signals, rule, predicted and actual times, reason.

    For an event, show what the pipeline did with its frame: steps, objects, and the requests about them.
    Works while the agent runs and after it has stopped.
    """
    if (id is None) == (last_count is None):
        raise ConfigError.at(None, "expected the id of a request or an event, or --last N to list some", "explain")
    if frames and last_count is None:
        raise ConfigError.at(None, "needs --last N", "--frames")
    unset = "not set, so the agent records decisions only in memory; expected a folder"
    state_dir = state_dir_of(config, unset, "agent.state_dir")
    requests, of_frames = newest_lines(state_dir / FOLDER_NAME), newest_lines(state_dir / FRAMES_NAME)
    with ConfigError.on_os_error(state_dir, "cannot be read", "agent.state_dir"):
        if last_count is not None:
            show = _list_frames if frames else _list
            show(_last(state_dir / (FRAMES_NAME if frames else FOLDER_NAME), last_count), as_json)
        elif id is not None:
            trace = find(chain(requests, of_frames), id)
            _tell(trace, as_json)
            if trace.get("amends") and not as_json:
                _tell_amended(state_dir, str(trace["amends"]))


def _last(folder: Path, count: int) -> list[dict[str, Any]]:
    """The last traces. Raises `UnknownRequest` if there are some and none can be read."""
    found = last(newest_lines(folder), count)
    if not found and any(newest_lines(folder)):
        raise UnknownRequest(f"nothing in {folder} can be read: its files are damaged")
    return found


def _tell(trace: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(trace))
        return
    console = Console(highlight=False, soft_wrap=True)
    for title, lines in tell_frame(trace) if is_frame(trace) else tell(trace):
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(f"  {printable(line)}"))


def _tell_amended(state_dir: Path, id: str) -> None:
    """Print what the pipeline did with the frame of an amended event, if that is still recorded."""
    try:
        _tell(find(newest_lines(state_dir / FRAMES_NAME), id), as_json=False)
    except UnknownRequest:
        typer.echo("the frame of the amended event is no longer recorded")


def _list(traces: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(traces))
        return
    table = Table(box=None)
    for heading in ("time", "id", "model", "route", "reason", "took", "degraded"):
        table.add_column(heading, no_wrap=True)
    for request_trace in traces:
        route, reason = outcome(request_trace)
        degraded = "yes" if (request_trace.get("answer") or {}).get("degraded") else ""
        cells = (local_time(request_trace["time"]), request_trace["id"], request_trace.get("model"), route, reason)
        table.add_row(*(Text(printable(cell)) for cell in cells), ms(request_trace.get("took_s")), degraded)
    Console(highlight=False, width=_WIDE).print(table)  # better a long line than a truncated id


def _list_frames(traces: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(traces))
        return
    table = Table(box=None)
    for heading in ("captured", "id", "outcome", "took", "objects", "events"):
        table.add_column(heading, no_wrap=True)
    for trace in traces:
        events = ", ".join(f"{one.get('event')} {one.get('id')}" for one in trace.get("events") or [])
        when, took = local_time(trace["time"]), ms(trace.get("took_s"))
        cells = (when, trace["id"], trace.get("outcome"), took, trace.get("objects_count", ""), events)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console(highlight=False, width=_WIDE).print(table)
