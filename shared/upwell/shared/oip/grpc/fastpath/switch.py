"""Switches the fast path on, for a process of `upwell serve` alone, and only once it has proven that it answers."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.fastpath import inner_parts
from upwell.shared.oip.grpc.server.server import start_server

PROOF_S = 2.0
"""Time limit of the test call (seconds)."""

_log = logging.getLogger(__name__)


def switch_on() -> bool:
    """Use the fast path for servers and streams that start from now on; returns whether it is used.

    If this version of gRPC is unknown or the test fails, a warning is logged and gRPC is left unchanged: small requests
    then cost about half as much again, and nothing else changes.
    """
    if inner_parts.is_on():
        return True
    if not inner_parts.is_known():
        _log.warning(
            "the internals of grpcio %s are unknown: small requests cost more (serve.fast_path)", grpc.__version__
        )
        return False
    inner_parts.replace({"_handle_unary_unary": inner_parts.handle_unary_unary, "_serve": inner_parts.serve}, on=True)
    try:
        _prove()
    except Exception as error:  # noqa: BLE001 (whatever it is, unchanged gRPC works)
        switch_off()
        _log.warning(
            "grpcio %s does not answer on the fast path (%s): small requests cost more (serve.fast_path)",
            grpc.__version__, type(error).__name__,
        )  # fmt: skip
        return False
    return True


def switch_off() -> None:
    """Restore gRPC for servers that start from now on."""
    own = {"_handle_unary_unary": inner_parts.own_handle_unary_unary, "_serve": inner_parts.own_serve}
    inner_parts.replace(own, on=False)


def _prove() -> None:
    """Raise unless a call and a stream are answered."""
    with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
        server = start_server(FakeDataplane(), [f"unix:{Path(folder, 's')}"], max_workers=4, at_work=1)
        try:
            with grpc.insecure_channel(server.addresses[0]) as channel:
                _ask(channel)
        finally:
            server.stop(0.0)


def _ask(channel: grpc.Channel) -> None:
    service = "/inference.GRPCInferenceService/"
    call: Any = channel.unary_unary(service + "ModelInfer")
    stream: Any = channel.stream_stream(service + "ModelStreamInfer")
    request = InferRequest("echo", {"fp32": np.zeros((1, 1), np.float32)}, id="proof")
    message = serialize_infer_request(request)
    answer: bytes = call(message, timeout=PROOF_S)
    streamed: list[bytes] = list(stream(iter([message]), timeout=PROOF_S))
    if b"proof" not in answer or len(streamed) != 1 or b"proof" not in streamed[0]:
        raise ValueError("another answer")
