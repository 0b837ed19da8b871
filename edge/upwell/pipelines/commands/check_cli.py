"""`upwell pipeline check` and `pipeline schema`: every problem of a pipelines file, or what each pipeline does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from upwell.edge.config import AgentConfig
from upwell.pipelines.config.model_signatures import signatures_of
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.pipelines_config import PipelinesConfig, PipelineSection, StepSection
from upwell.pipelines.config.sink_config import SinkSection
from upwell.shared.config.json_schema import editor_schema
from upwell.shared.config.yaml import load_yaml, read_text
from upwell.shared.errors import EXIT_FAILED, ConfigError, Problem, printable
from upwell.shared.files import write_named
from upwell.shared.units import seconds_as_written


def check(
    pipelines: Annotated[
        Path, typer.Argument(metavar="PIPELINES", help="The pipelines file (YAML).", show_default=False)
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The agent.yaml with their models; without it, models are not checked."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check a pipelines file: every problem and warning with line and column. Exit code 1 if there is a problem.

    Reads only the model.yaml in each model's bundle; loads no runtime.
    """
    text = read_text(pipelines)
    models = None if config is None else signatures_of(load_yaml(config, AgentConfig))
    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    parsed: PipelinesConfig | None = None
    try:
        parsed, warnings = parse_pipelines(text, pipelines, models, with_files=True)
    except ConfigError as error:
        problems = error.problems
    if as_json:
        found = {"problems": [one.document() for one in problems], "warnings": [one.document() for one in warnings]}
        names = [] if parsed is None else list(parsed.pipelines)
        typer.echo(json.dumps({"file": str(pipelines), "ok": not problems, "pipelines": names, **found}))
    else:
        lines = [f"error: {one}" for one in problems] + [f"warning: {one}" for one in warnings]
        for name, pipeline in parsed.pipelines.items() if parsed is not None else ():
            lines += _told(name, pipeline)
        for line in lines:
            typer.echo(printable(line))
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _told(name: str, pipeline: PipelineSection) -> Iterator[str]:
    """A pipeline in a few lines: source, steps, events, sinks."""
    source = pipeline.source
    facts = [f"keeps {source.keeps}"]
    facts += [f"{source.fps:g} frames/s"] if source.fps is not None else []
    facts += [f"due {seconds_as_written(source.deadline)} after capture"] if source.deadline is not None else []
    yield f"{name}: {source.kind} {source.place} ({', '.join(facts)})"
    if pipeline.steps:
        yield f"  -> {' -> '.join(_step(one) for one in pipeline.steps)}"
    if pipeline.events:
        yield f"  -> {', '.join(f'{one.name} ({one.on})' for one in pipeline.events)}"
    if pipeline.sinks:
        yield f"  -> {', '.join(_sink(one) for one in pipeline.sinks)}"


def _step(step: StepSection) -> str:
    if step.infer is not None:
        return f"infer {step.infer.model}{' on objects' if step.infer.on == 'objects' else ''}"
    if step.zones is not None:
        return f"zones {', '.join(step.zones)}"
    return f"blur {', '.join(step.blur.labels)}" if step.blur is not None else step.kind


def _sink(sink: SinkSection) -> str:
    """A sink as it may be shown: the query and the path of an address may hold a credential."""
    if sink.jsonl is not None:
        return f"jsonl {sink.jsonl.path}"
    if sink.pictures is not None:
        return f"pictures {sink.pictures.folder}"
    if sink.mqtt is not None:
        return f"mqtt {sink.mqtt.address}"
    if sink.webhook is not None:
        return f"webhook {sink.webhook.address}"
    if sink.plugin is not None:
        return sink.plugin.name
    return f"kafka {', '.join(sink.kafka.brokers)}" if sink.kafka is not None else sink.kind


def schema(
    out: Annotated[Path | None, typer.Option(help="Write the schema to this file instead of standard output.")] = None,
) -> None:
    """Print the JSON Schema of pipelines.yaml, by which YAML language servers of editors check the file."""
    text = json.dumps(editor_schema(PipelinesConfig, "Upwell pipelines"), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write_named(out, text.encode())
