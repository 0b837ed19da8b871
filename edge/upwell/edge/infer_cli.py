"""`upwell infer`: one request to an agent, or to any other server of the Open Inference Protocol."""

from __future__ import annotations

import io
import json
import math
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from upwell.shared.errors import ConfigError
from upwell.shared.oip.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata
from upwell.shared.oip.security import ClientSecurity, TlsFiles, parse_address
from upwell.shared.oip.server import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.tensors import Array, TensorSpec, oip_datatype
from upwell.shared.units import parse_seconds

_METADATA_LIMIT_S = 10.0
_SHOWN_ROWS, _SHOWN_CLASSES, _SHOWN_VALUES = 10, 3, 8
_PLAIN_WIDTH = 110
_TAG_PREFIX = "upwell.tag."
_TIMES = {
    "upwell.edge_ms": "device",
    "upwell.uplink_ms": "wait for the cloud",
    "upwell.cloud_queue_ms": "its queue",
    "upwell.cloud_compute_ms": "its model",
}

_MODEL = "The model, by the name it has there."
_INPUT = (
    "A picture (sent as it is), a .npy, a .npz with an array for each input, or NAME=FILE for the input NAME. "
    "Several pictures are several rows."
)


def infer(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help=_INPUT)],
    at: Annotated[str, typer.Option(help="The server: HOST:PORT or unix:PATH.")],
    deadline: Annotated[str, typer.Option(help="How long the answer may take, such as 100ms.")] = "60s",
    tag: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the policy's rules; may be repeated.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token to send.")] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Issuers of the server's certificate (PEM), if not the system's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS to a server on another machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Send one request, and say who answered, why, and how long it took.

    A server on another machine is called over TLS.
    """
    deadline_s, parameters = _seconds(deadline), _tags(tag or [])
    client = OipClient(at, _security(at, token_file, ca, insecure))
    try:
        arrays = read_inputs(inputs, lambda: client.metadata(model, _METADATA_LIMIT_S))
        began_s = time.monotonic()
        response = client.infer(InferRequest(model, arrays, parameters=parameters), deadline_s)
        elapsed_s = time.monotonic() - began_s
    except RemoteError as error:
        what = "gives no answer" if error.kind is RemoteErrorKind.UNAVAILABLE else "says"
        raise RemoteError(error.kind, f"{at} {what}: {error}") from None
    finally:
        client.close()
    if as_json:
        typer.echo(json.dumps(_document(response, elapsed_s), indent=2))
    else:
        _show(response, elapsed_s)


def _seconds(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise ConfigError.at(None, str(error), "--deadline") from None
    if seconds <= 0:
        raise ConfigError.at(None, "expected more than 0", "--deadline")
    return seconds


def _tags(texts: Sequence[str]) -> dict[str, str]:
    tags = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError.at(None, f"expected KEY=VALUE, got {text!r}", "--tag")
        tags[_TAG_PREFIX + key] = value
    return tags


def _security(at: str, token_file: Path | None, ca: Path | None, insecure: bool) -> ClientSecurity:
    if insecure and ca is not None:
        raise ConfigError.at(None, "--insecure means no TLS and --ca needs it; give one of them")
    plain = insecure or (ca is None and parse_address(at).is_loopback)
    return ClientSecurity(None if plain else TlsFiles(ca=ca), token_file, insecure)


@dataclass(frozen=True)
class _Given:
    """One thing to send: an array, or one picture, for the input `name` (empty where it is for the model to say)."""

    name: str
    path: Path
    value: Array | bytes


def read_inputs(texts: Sequence[str], metadata: Callable[[], ModelMetadata]) -> dict[str, Array]:
    """The tensors that the arguments stand for, by input name; pictures of one input are its rows, as BYTES [n].

    `metadata` is asked only where a file does not say which input it is for. Raises `ConfigError`.
    """
    given = [one for text in texts for one in _read(text)]
    only: TensorSpec | None = None
    if any(not one.name for one in given):
        only = _only_input(metadata())
    arrays: dict[str, Array] = {}
    pictures: dict[str, list[bytes]] = {}
    for one in given:
        name = one.name or (only.name if only else "")
        if isinstance(one.value, bytes):
            if not one.name and only is not None and only.datatype != "BYTES":
                takes = f"{only.datatype} {list(only.shape)}"
                raise ConfigError.at(one.path, f"input {name!r} takes {takes}; expected a .npy or .npz file")
            pictures.setdefault(name, []).append(one.value)
        elif name in arrays:
            raise ConfigError.at(one.path, f"input {name!r} is given twice; put its rows into one array")
        else:
            arrays[name] = one.value
    for name, encoded in pictures.items():
        if name in arrays:
            raise ConfigError.at(None, f"input {name!r} is given both as an array and as a picture")
        arrays[name] = np.empty(len(encoded), dtype=np.object_)
        arrays[name][:] = encoded
    return arrays


def _only_input(metadata: ModelMetadata) -> TensorSpec:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0]
    names = ", ".join(spec.name for spec in metadata.inputs)
    raise ConfigError.at(None, f"model {metadata.name!r} takes the inputs {names}: write NAME=FILE for each")


def _read(text: str) -> Iterator[_Given]:
    name, equals, file = text.partition("=")
    if not equals or Path(text).exists():
        name, file = "", text
    path = Path(file)
    data = _bytes(path)
    try:
        if path.suffix == ".npy":
            yield _Given(name, path, _array(io.BytesIO(data), len(data)))
        elif path.suffix == ".npz":
            if name:
                raise ConfigError.at(path, f"a .npz names its inputs itself; leave {name}= out")
            yield from _archive(path, data)
        else:
            yield _Given(name, path, data)
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ConfigError.at(path, f"cannot be read as arrays of numpy: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(DEFAULT_MAX_MESSAGE_BYTES + 1)
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror}") from None
    if len(data) > DEFAULT_MAX_MESSAGE_BYTES:
        raise ConfigError.at(path, f"larger than the {DEFAULT_MAX_MESSAGE_BYTES >> 20} MiB that a message may have")
    if not data:
        raise ConfigError.at(path, "the file is empty")
    return data


def _archive(path: Path, data: bytes) -> Iterator[_Given]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > DEFAULT_MAX_MESSAGE_BYTES:
            raise ValueError("its arrays are larger than a message may be")
        for member in members:
            with archive.open(member) as file:
                yield _Given(member.filename.removesuffix(".npy"), path, _array(file, member.file_size))


def _array(file: IO[bytes], size_bytes: int) -> Array:
    """The array of a .npy file. Raises `ValueError`, and takes no memory for what a header only promises."""
    form: Any = np.lib.format
    readers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    version = form.read_magic(file)
    if version not in readers:
        raise ValueError(f"expected version 1.0 or 2.0 of the format, got {version[0]}.{version[1]}")
    shape, is_fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read; expected numbers or text")
    expected_bytes = math.prod(shape) * dtype.itemsize
    if expected_bytes != size_bytes - file.tell():
        raise ValueError(f"its header promises {expected_bytes} bytes, the file has {size_bytes - file.tell()}")
    flat: Array = np.frombuffer(file.read(expected_bytes), dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C").astype(dtype.newbyteorder("="), copy=False)


def _document(response: InferResponse, elapsed_s: float) -> dict[str, Any]:
    facts = response.parameters
    return {
        "model": response.model,
        "version": response.version,
        "id": response.id,
        "route": facts.get("upwell.route"),
        "reason": facts.get("upwell.reason"),
        "degraded": facts.get("upwell.degraded"),
        "elapsed_s": elapsed_s,
        "parameters": {name: _finite(value) for name, value in facts.items()},
        "outputs": {
            name: {"datatype": oip_datatype(array.dtype), "shape": list(array.shape), "data": _values(array)}
            for name, array in response.outputs.items()
        },
    }


def _values(array: Array) -> list[Any]:
    """The elements in row-major order as JSON can hold them: null for what is not finite, bytes as text."""
    plain = array.astype(np.float64) if oip_datatype(array.dtype) in ("BF16", "FP16") else array
    return [_finite(value) for value in plain.ravel().tolist()]


def _finite(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(response: InferResponse, elapsed_s: float) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    facts = response.parameters
    table = Table.grid(padding=(0, 2))
    rows = {
        "model": f"{response.model}, version {response.version}" if response.version else response.model,
        "route": facts.get("upwell.routes", facts.get("upwell.route", "")),
        "reason": facts.get("upwell.reason", ""),
        "degraded": {True: "yes", False: "no"}.get(bool(facts["upwell.degraded"]))
        if "upwell.degraded" in facts
        else "",
        "time": _times(response, elapsed_s),
        "id": response.id,
    }
    for name, value in rows.items():
        if value != "":
            table.add_row(Text(name, style="dim"), _text(value))
    console.print(table)
    for name, array in response.outputs.items():
        console.print()
        console.print(_text(f"{name}  {oip_datatype(array.dtype)} {list(array.shape)}"), style="bold")
        console.print(_output(array))


def _times(response: InferResponse, elapsed_s: float) -> str:
    parts = [f"{elapsed_s * 1e3:.1f} ms"]
    for key, name in _TIMES.items():
        value = response.parameters.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            parts.append(f"{name} {value:.1f} ms")
    return ", ".join(parts)


def _output(array: Array) -> Table:
    """The best classes of each row of float scores [rows, classes]; of anything else the first values."""
    table = Table.grid(padding=(0, 3))
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind != "f":
        shown = array.ravel()[:_SHOWN_VALUES].tolist()
        more = ["…"] if array.size > _SHOWN_VALUES else []
        table.add_row(_text("  " + ", ".join([*(_value(value) for value in shown), *more])))
        return table
    for index, row in enumerate(array[:_SHOWN_ROWS]):
        best = np.argsort(-row, kind="stable")[:_SHOWN_CLASSES]
        table.add_row(f"  row {index}", *(Text(f"class {one}: {row[one]:.3f}") for one in best))
    if len(array) > _SHOWN_ROWS:
        table.add_row(f"  and {len(array) - _SHOWN_ROWS} more rows")
    return table


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(_finite(value))[:80]


def _text(value: object) -> Text:
    """A server's words without anything that a terminal would obey."""
    return Text("".join(one if one.isprintable() else "�" for one in str(value)))
