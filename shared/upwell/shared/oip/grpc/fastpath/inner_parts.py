"""The parts of gRPC's server, private to it, that calls are handled with in another order here.

What has other functions than those known here, an older or a newer gRPC, is left alone: then calls cost more, and all
else is the same. A test says whether the gRPC of the tested set is known.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

# Both have no types of their own.
server: Any = importlib.import_module("grpc._server")
cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")

FUNCTIONS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "_abort": ("state", "call", "code", "details"),
        "_begin_shutdown_once": ("state",),
        "_get_initial_metadata_operation": ("state", "metadata"),
        "_get_send_message_op_flags_from_state": ("state",),
        "_handle_unary_unary": ("rpc_event", "state", "method_handler", "default_thread_pool"),
        "_is_rpc_state_active": ("state",),
        "_possibly_finish_call": ("state", "token"),
        "_process_event_and_continue": ("state", "event"),
        "_reset_per_message_state": ("state",),
        "_serve": ("state",),
        "_unary_response_in_pool": (
            "rpc_event", "state", "behavior", "argument_thunk", "request_deserializer", "response_serializer",
        ),
    }
)  # fmt: skip
NAMES = (
    "_CANCELLED", "_CLOSED", "_DEALLOCATED_SERVER_CHECK_PERIOD_S", "_EMPTY_FLAGS", "_OPEN", "_RECEIVE_MESSAGE_TOKEN",
    "_SEND_MESSAGE_TOKEN", "_common",
)  # fmt: skip
OF_CYTHON = ("CompletionType", "ReceiveMessageOperation", "SendMessageOperation")

handle_unary_unary: Any = getattr(server, "_handle_unary_unary", None)
"""gRPC's own."""
serve: Any = getattr(server, "_serve", None)
"""gRPC's own."""


def is_known() -> bool:
    """Whether this gRPC's server is inside as it is described here."""
    own: dict[str, Any] = {name: getattr(server, name, None) for name in FUNCTIONS}
    own |= {"_handle_unary_unary": handle_unary_unary, "_serve": serve}
    try:
        has_functions = all(tuple(inspect.signature(own[name]).parameters) == FUNCTIONS[name] for name in FUNCTIONS)
    except (TypeError, ValueError):
        return False
    return (
        has_functions
        and all(hasattr(server, name) for name in NAMES)
        and all(hasattr(cygrpc, name) for name in OF_CYTHON)
    )
