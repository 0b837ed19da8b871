"""`upwell pipeline schema`: the JSON Schema of pipelines.yaml, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.shared.config.json_schema import editor_schema
from upwell.shared.files import write_named


def schema(
    out: Annotated[Path | None, typer.Option(help="Write the schema to this file instead of standard output.")] = None,
) -> None:
    """Print the JSON Schema of pipelines.yaml. Editors with a YAML language server use it to complete and check the
    file.
    """
    text = json.dumps(editor_schema(PipelinesConfig, "Upwell pipelines"), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write_named(out, text.encode())
