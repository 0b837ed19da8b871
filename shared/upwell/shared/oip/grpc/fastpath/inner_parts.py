"""The private parts of gRPC's server that the fast path replaces or uses, and the check that they are known.

A version of gRPC is recognized by the source of the functions that are replaced, of those that are called, and of the
constructors that define the attributes in use; it is the same on every Python. A version with other source is left
alone.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from typing import Any

# Neither module has types.
server: Any = importlib.import_module("grpc._server")
cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")

READ = (
    "_abort", "_begin_shutdown_once", "_get_initial_metadata_operation", "_get_send_message_op_flags_from_state",
    "_handle_unary_unary", "_is_rpc_state_active", "_possibly_finish_call", "_process_event_and_continue",
    "_reset_per_message_state", "_serve", "_unary_response_in_pool",
    "_Context.__init__", "_RPCState.__init__", "_ServerState.__init__",
)  # fmt: skip
"""Functions of `grpc._server` whose source is checked."""

NAMES = (
    "_CANCELLED", "_CLOSED", "_DEALLOCATED_SERVER_CHECK_PERIOD_S", "_EMPTY_FLAGS", "_OPEN", "_RECEIVE_MESSAGE_TOKEN",
    "_SEND_MESSAGE_TOKEN", "_common",
)  # fmt: skip
OF_CYTHON = ("CompletionType", "ReceiveMessageOperation", "SendMessageOperation")

KNOWN = frozenset({"fb85fbee892b66fc2814b2b2c8f0464dd9cc5a33fad8f0683edcfe4c612db4ba"})
"""Digests of the releases with which the suites of calls and streams have passed: 1.78.0, 1.80.0, 1.85.1."""

handle_unary_unary: Any = getattr(server, "_handle_unary_unary", None)
"""gRPC's own function."""
serve: Any = getattr(server, "_serve", None)
"""gRPC's own function."""

_own = {"_handle_unary_unary": handle_unary_unary, "_serve": serve}
_state = {"on": False}


def digest() -> str:
    """SHA-256 in hex over the source of every function in `READ`; "" if one is missing or has no source."""
    texts = []
    for name in READ:
        found: Any = _own.get(name, server)
        if found is server:
            for part in name.split("."):
                found = getattr(found, part, None)
        try:
            texts.append(inspect.getsource(found))
        except (OSError, TypeError):
            return ""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def is_known() -> bool:
    """Whether this version of gRPC is known."""
    there = all(hasattr(server, name) for name in NAMES) and all(hasattr(cygrpc, name) for name in OF_CYTHON)
    return there and digest() in KNOWN


def is_on() -> bool:
    """Whether the fast path is on in this process."""
    return _state["on"]


def replace(functions: dict[str, Any], *, on: bool) -> None:
    """Replace these functions of gRPC's server."""
    for name, function in functions.items():
        setattr(server, name, function)
    _state["on"] = on
