"""Sinks on the device for the cloud's answers to spooled cases: a JSONL file, or a function."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from upwell.edge.spool.spooled_request import SpoolResult
from upwell.shared.errors import UpwellError
from upwell.shared.files import append_line, open_log, parse_json
from upwell.shared.oip.dataplane import InferResponse, Parameter
from upwell.shared.tensors import Array, oip_datatype

_log = logging.getLogger(__name__)
_TAIL_BYTES = 64 << 10


class Sink(Protocol):
    """Accepts results in order, from one thread. Its progress is stored under its `name`."""

    name: str

    def start(self) -> int:
        """Prepare; returns the number of its last result, 0 if it does not know. Raises `OSError`."""
        ...

    def take(self, results: Sequence[SpoolResult]) -> None:
        """Accept these results. Raises `OSError` if it cannot now; they are delivered again later."""
        ...


class TakeLater(OSError):
    """Raised by a result function that cannot accept results now; this one is delivered again later."""


class CallbackSink:
    """Calls a function for each result, at least once.

    Errors are logged, and the next result follows; only `TakeLater` postpones this one and all others.
    """

    def __init__(self, on_result: Callable[[SpoolResult], None], name: str = "callback") -> None:
        self.name = name
        self._on_result = on_result

    def start(self) -> int:
        """Return 0: a function's progress is unknown."""
        return 0

    def take(self, results: Sequence[SpoolResult]) -> None:
        """Call the function for each result."""
        for result in results:
            try:
                self._on_result(result)
            except TakeLater:
                raise
            except Exception as error:  # noqa: BLE001 (the boundary to the user's code: the next result must follow)
                _log.error("on_result failed for case %s", result.spool_id, exc_info=error)


class JsonlSink:
    """Appends each result as one line of JSON, synced before it counts; no partial lines, and no result twice.

    A line truncated by a crash is removed at the start, and the last whole line tells where to continue. The file may
    be moved or truncated at any time; a new one is created with mode 0600, and a mode that others can read stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"jsonl:{path.absolute()}"

    def start(self) -> int:
        """Remove a truncated last line; returns the number in the last whole one."""
        if not self.path.exists():
            return 0
        with open_log(self.path, keeps_mode=True) as file:
            line = _last_line(file)
        try:
            return int(parse_json(line)["sequence"])
        except (ValueError, OverflowError, KeyError, TypeError):
            return 0

    def take(self, results: Sequence[SpoolResult]) -> None:
        """Append these results, all or none."""
        data = b"".join(json.dumps(_document(result), allow_nan=False).encode() + b"\n" for result in results)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_log(self.path, keeps_mode=True) as file:
            append_line(file, data)
            os.fsync(file)


def _last_line(file: int) -> bytes:
    end, tail, size_bytes = os.fstat(file).st_size, b"", _TAIL_BYTES
    while len(tail) < end and tail.count(b"\n") < 2:
        start, size_bytes = max(0, end - size_bytes), size_bytes * 4
        os.lseek(file, start, os.SEEK_SET)
        tail = os.read(file, end - start)
    return tail[:-1].rpartition(b"\n")[2]


def _document(result: SpoolResult) -> dict[str, Any]:
    return {
        "sequence": result.sequence,
        "spool_id": result.spool_id,
        "request_id": result.request_id,
        "kind": result.kind,
        "model": result.model,
        "cloud_model": result.cloud_model,
        "tags": dict(result.tags),
        "reason": result.reason,
        "created_unix_s": result.created_wall_s,
        "answered_unix_s": result.answered_wall_s,
        "edge_answer_digest": result.edge_answer_digest,
        **_answer("", result.response),
        **_answer("edge_", result.edge_response),
    }


def _answer(prefix: str, read: Callable[[], InferResponse | None]) -> dict[str, Any]:
    try:
        response = read()
    except UpwellError as error:  # a corrupted result must not block the following ones
        return {f"{prefix}error": str(error)}
    if response is None:
        return {}
    outputs = {name: _tensor(array) for name, array in response.outputs.items()}
    return {f"{prefix}outputs": outputs, f"{prefix}parameters": _parameters(response.parameters)}


def _parameters(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    return {name: _finite(value) if isinstance(value, float) else value for name, value in parameters.items()}


def _tensor(array: Array) -> dict[str, Any]:
    """The tensor with row-major values; BYTES as base64, and NaN and infinities as text, as in protobuf's JSON."""
    datatype = oip_datatype(array.dtype)
    values = array.ravel().tolist()
    if datatype == "BYTES":
        values = [base64.b64encode(value).decode() for value in values]
    elif values and isinstance(values[0], float):
        values = [_finite(value) for value in values]
    return {"datatype": datatype, "shape": list(array.shape), "data": values}


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
