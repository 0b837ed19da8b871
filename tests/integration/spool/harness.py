"""A spool before a real server of the protocol, and the cases that go through it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.spool.spool import FILE_NAME, Spool
from upwell.edge.spool.spool_drainer import CaseSender
from upwell.edge.spool.spooled_request import SPOOL_ID, Case, Kind, SpoolLimits
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import Settings

ALLOWED = Verdict(Settings(), None, "", "")
DENIED = Verdict(Settings(), None, "", "private")
FAST = SpoolLimits(rate_per_s=2000.0, first_pause_s=0.02, longest_pause_s=0.2, send_timeout_s=5.0, attempts=3)
WAIT_S = 20.0


def case(number: float, *, kind: Kind = "spool", size: int = 1, **more: Any) -> Case:
    """A case that its number tells from others."""
    inputs = {"fp32": np.full((1, size), number, np.float32)}
    edge = InferResponse("digits", {"fp32": -inputs["fp32"]}, id=f"request-{number:g}")
    return Case(
        **{
            "kind": kind,
            "model": "digits",
            "cloud_model": "echo",
            "request_id": f"request-{number:g}",
            "inputs": inputs,
            "reason": "cloud_unavailable",
            "edge": edge,
            **more,
        }
    )


class Cloud(FakeDataplane):
    """An `echo` that fails by the request: `faults` maps a number to what is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[float, Exception] = {}

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        response = super().infer(request, call)
        fault = self.faults.get(float(request.inputs["fp32"].flat[0]))
        if fault is not None:
            raise fault
        return response

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return super().metadata(model, version)

    def server_metadata(self) -> ServerMetadata:
        return super().server_metadata()

    @property
    def numbers(self) -> list[float]:
        """What was asked, in order."""
        return [float(request.inputs["fp32"].flat[0]) for request in list(self.requests)]

    @property
    def ids(self) -> list[str]:
        """The stable ids of what was asked, in order."""
        return [str(request.parameters[SPOOL_ID]) for request in list(self.requests)]


@dataclass
class Scene:
    """A spool, its cloud, and the switches between them."""

    spool: Spool
    cloud: Cloud
    path: Path
    gate: threading.Event
    allowed: dict[str, bool] = field(default_factory=dict)

    def put(self, number: float, **more: Any) -> str:
        """Keep a case."""
        return self.spool.put(case(number, **more), ALLOWED, time.monotonic() + WAIT_S)


def until(condition: Callable[[], bool], what: str = "") -> None:
    """Wait until it is so."""
    limit_s = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < limit_s, f"it never came about: {what}"
        pause.wait(0.005)


@contextmanager
def scene(folder: Path, *, is_open: bool = True, limits: SpoolLimits = FAST, **more: Any) -> Iterator[Scene]:
    """A spool in `folder`; it sends only while its gate is open."""
    cloud = Cloud()
    server = start_server(cloud, ["127.0.0.1:0"], max_workers=4)
    client = OipClient(server.addresses[0])
    gate = threading.Event()
    if is_open:
        gate.set()
    allowed: dict[str, bool] = {}

    def still_allowed(model: str, tags: Mapping[str, str], request: InferRequest) -> bool:
        assert request.inputs
        return allowed.get(tags.get("camera", ""), True)

    path = folder / FILE_NAME
    spool = Spool(
        path,
        **{
            "limits": limits,
            "sender": CaseSender(
                more.pop("send", client.infer), more.pop("may_send", gate.is_set), frozenset, still_allowed
            ),
            "seed": 1,
            **more,
        },
    )
    try:
        yield Scene(spool, cloud, path, gate, allowed)
    finally:
        cloud.release()
        spool.close()
        client.close()
        server.stop(0)
