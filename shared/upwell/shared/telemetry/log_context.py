"""The request that the current thread handles, for its log lines."""

from __future__ import annotations

from contextvars import ContextVar

from upwell.shared.telemetry.tracing import Place

LONGEST_NAME = 200
"""Characters of a model's name in the log: callers may name any model."""

# A call is handled in one thread, and by gRPC in its own context. Only texts are kept, so nothing is kept alive.
_request: ContextVar[tuple[str, str, str, str]] = ContextVar("request", default=("", "", "", ""))
_trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def note_request(request_id: str, client: str = "", model: str = "", traceparent: str = "") -> None:
    """From now on, log lines of this thread (in gRPC's threads: of this call) belong to this request."""
    _request.set((request_id, client, model, traceparent))
    if _trace_id.get():
        _trace_id.set("")


def note_trace(trace_id: str) -> None:
    """The request belongs to this trace, whatever its caller said."""
    _trace_id.set(trace_id)


def request_id() -> str:
    """The ID of this thread's request; "" if there is none."""
    return _request.get()[0]


def request_fields() -> dict[str, str]:
    """The fields of a log line for this thread's request."""
    name, client, model, traceparent = _request.get()
    place = Place.parse(traceparent) if traceparent else None
    trace_id = _trace_id.get() or (place.trace_id if place else "")
    fields = {"request_id": name, "client": client, "model": model[:LONGEST_NAME], "trace_id": trace_id}
    return {key: value for key, value in fields.items() if value}
