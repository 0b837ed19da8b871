"""`upwell infer`: one request to an agent, or to any other server of the Open Inference Protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from upwell.shared.config.addresses import parse_endpoint
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.class_labels import LABELS, take_labels
from upwell.shared.oip.dataplane import InferRequest, InferResponse, Parameter
from upwell.shared.oip.grpc.client.client import RemoteError
from upwell.shared.oip.open_client import open_client
from upwell.shared.tensors import Array, oip_datatype
from upwell.shared.units import parse_seconds
from upwell.tools.request_inputs import read_inputs
from upwell.tools.terminal import AsJson, finite, key_values, parsed, plain, stdout_console

_METADATA_LIMIT_S = 10.0
_SHOWN_ROWS, _SHOWN_CLASSES, _SHOWN_VALUES = 10, 3, 8
_SLACK = 0.05
"""How far the sum of quantized probabilities may be from 1."""
Labels: TypeAlias = Mapping[str, Sequence[str]]
"""The class names of each output."""
_TAG_PREFIX = "upwell.tag."
_MODEL = "The model's name on the server."
_INPUT = (
    "A picture (sent as it is), a .npy, a .npz with an array for each input, or NAME=FILE for the input NAME. "
    "Several pictures are several rows."
)


def infer(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help=_INPUT)],
    at: Annotated[str, typer.Option(help="The server: HOST:PORT, unix:PATH, or https://HOST.")],
    deadline: Annotated[str, typer.Option(help="How long the answer may take, such as 100ms.")] = "60s",
    tag: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the policy's rules; may be repeated.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token to send.")] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Issuers of the server's certificate (PEM), if not the system's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS to a server on another machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send one request, and show who answered, why, and how long it took.

    A server on another machine is called over TLS.
    """
    deadline_s = parsed("--deadline", deadline, parse_seconds)
    if deadline_s <= 0:
        raise ConfigError.at(None, "expected more than 0", "--deadline")
    tags = {_TAG_PREFIX + key: value for key, value in key_values("--tag", tag).items()}
    parameters: dict[str, Parameter] = {LABELS: True, **tags}
    client = open_client(at, _security(at, token_file, ca, insecure))
    try:
        arrays = read_inputs(inputs, lambda: client.metadata(model, _METADATA_LIMIT_S))
        began_s = time.monotonic()
        response = client.infer(InferRequest(model, arrays, parameters=parameters), deadline_s)
        elapsed_s = time.monotonic() - began_s
    except RemoteError as error:
        what = "does not answer" if error.is_unsent else "says"  # an agent without its cloud says so
        raise RemoteError(error.kind, f"{at} {what}: {error}") from None
    finally:
        client.close()
    facts = dict(response.parameters)
    labels = {name: take_labels(facts, name) for name in response.outputs}
    response = replace(response, parameters=facts)
    if as_json:
        typer.echo(json.dumps(_document(response, labels, elapsed_s)))
    else:
        _show(response, labels, elapsed_s)


def _security(at: str, token_file: Path | None, ca: Path | None, insecure: bool) -> ClientSecurity:
    if insecure and ca is not None:
        raise ConfigError.at(None, "--ca needs TLS, but --insecure turns it off; give only one of them")
    plain = insecure or (ca is None and parse_endpoint(at).is_loopback)
    return ClientSecurity(None if plain else TlsFiles(ca=ca), token_file, insecure)


def _document(response: InferResponse, labels: Labels, elapsed_s: float) -> dict[str, Any]:
    facts = response.parameters
    return {
        "model": response.model,
        "version": response.version,
        "id": response.id,
        "route": facts.get("upwell.route"),
        "reason": facts.get("upwell.reason"),
        "degraded": facts.get("upwell.degraded"),
        "elapsed_s": elapsed_s,
        "parameters": {name: finite(value) for name, value in facts.items()},
        "outputs": {
            name: {
                "datatype": oip_datatype(array.dtype),
                "shape": list(array.shape),
                "data": _values(array),
                **({"labels": labels[name]} if labels[name] else {}),
            }
            for name, array in response.outputs.items()
        },
    }


def _values(array: Array) -> list[Any]:
    """The elements in row-major order as JSON: null for values that are not finite, bytes as text."""
    numbers = array.astype(np.float64) if oip_datatype(array.dtype) in ("BF16", "FP16") else array
    return [_as_json(value) for value in numbers.ravel().tolist()]


def _as_json(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else finite(value)


def _show(response: InferResponse, labels: Labels, elapsed_s: float) -> None:
    console = stdout_console()
    facts = response.parameters
    table = Table.grid(padding=(0, 2))
    rows = {
        "model": f"{response.model}, version {response.version}" if response.version else response.model,
        "route": f"{facts.get('upwell.route', '')} {facts.get('upwell.routes', '')}".strip(),
        "cut": facts.get("upwell.cut", ""),
        "reason": facts.get("upwell.reason", ""),
        "hardness": facts.get("upwell.hardness", ""),
        "degraded": "" if "upwell.degraded" not in facts else "yes" if facts["upwell.degraded"] else "no",
        "device": f"{facts.get('upwell.accelerator', '')} {_unready(facts)}".strip(),
        "time": _times(facts, elapsed_s),
        "id": response.id,
    }
    for name, value in rows.items():
        if value != "":
            table.add_row(Text(name, style="dim"), plain(value))
    console.print(table)
    for name, array in response.outputs.items():
        console.print()
        console.print(plain(f"{name}  {oip_datatype(array.dtype)} {list(array.shape)}"), style="bold")
        console.print(_output(array, labels[name]))


def _unready(facts: Mapping[str, Parameter]) -> str:
    state = facts.get("upwell.edge_state", "ready")
    return "" if state == "ready" else f"({state})"


def _times(facts: Mapping[str, Parameter], elapsed_s: float) -> str:
    """The caller's time, and how it was spent as far as the server reports it."""

    def part(name: str, key: str, inner: str = "") -> str:
        value = facts.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return f", {name} {value:.1f} ms{inner}" if is_number else ""

    cloud = part("queue", "upwell.cloud_queue_ms") + part("model", "upwell.cloud_compute_ms")
    inner = f" ({cloud[2:]})" if cloud else ""
    waited = part("cloud", "upwell.uplink_ms", inner) or (f", cloud{inner}" if inner else "")
    return f"{elapsed_s * 1e3:.1f} ms in all{part('device', 'upwell.edge_ms')}{waited}"


def _output(array: Array, labels: Sequence[str]) -> Table:
    """The best classes of each row of scores [rows, classes]; of anything else the first values."""
    table = Table.grid(padding=(0, 3))
    if not _has_classes(array, labels):
        shown = array.ravel()[:_SHOWN_VALUES].tolist()
        more = ["…"] if array.size > _SHOWN_VALUES else []
        table.add_row(plain("  " + ", ".join([*(_value(value) for value in shown), *more])))
        return table
    for index, row in enumerate(array[:_SHOWN_ROWS]):
        best = np.argsort(-row, kind="stable")[:_SHOWN_CLASSES]
        names = labels if len(labels) == len(row) else [f"class {one}" for one in range(len(row))]
        table.add_row(f"  row {index}", *(plain(f"{names[one]}: {row[one]:.3f}") for one in best))
    if len(array) > _SHOWN_ROWS:
        table.add_row(f"  and {len(array) - _SHOWN_ROWS} more rows")
    return table


def _has_classes(array: Array, labels: Sequence[str]) -> bool:
    """Whether these are scores of classes: as many as there are labels, or probabilities. An embedding is neither."""
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind != "f":
        return False
    sums = array.sum(axis=1, dtype=np.float64)
    return len(labels) == array.shape[1] or bool((array >= 0).all() and (np.abs(sums - 1) <= _SLACK).all())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(_as_json(value))[:80]
