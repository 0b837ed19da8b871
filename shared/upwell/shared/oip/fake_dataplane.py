"""The official fake of a `Dataplane`: echoes tensors of every datatype, with delays or failures on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np

from upwell.shared.errors import CallerLeft, DeadlineExceeded, InvalidRequest, ModelNotFound
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.tensors import DTYPES, Array, TensorSpec, oip_datatype

VERSION = "1"


EXAMPLE: Mapping[str, Array] = {"fp32": np.ones((2, 3), np.float32)}
"""Inputs that `echo` accepts."""

_POLL_S = 0.002


class FakeDataplane(Dataplane):
    """Serves one model, `echo`: each input comes back as the output of the same name.

    It has one input per datatype, named after it in lower case (`fp32`, `bytes`, ...), of shape [-1, -1]; requests may
    have any one or more of them, of any shape. An answer comes `delay_s` after the request, and not while the fake is
    held; the deadline, or the caller's leaving, ends the wait. `failure` is raised instead of answering. All can be
    changed between calls. `requests` and `calls` record what was asked.
    """

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.delay_s = 0.0
        self.failure = failure
        self.is_ready = True
        self.requests: list[InferRequest] = []
        self.calls: list[Call] = []
        self._arrival = threading.Condition()
        self._released = threading.Event()
        self._released.set()

    def hold(self) -> None:
        """Hold all answers until `release`."""
        self._released.clear()

    def release(self) -> None:
        """Release the held answers, and answer at once again."""
        self._released.set()

    def arrived(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` requests in total have come; returns whether they came within `timeout_s`."""
        with self._arrival:
            return self._arrival.wait_for(lambda: len(self.requests) >= count, timeout_s)

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Return the inputs of the request as outputs, and its parameters as parameters."""
        with self._arrival:
            self.requests.append(request)
            self.calls.append(call)
            self._arrival.notify_all()
        self._find(request.model, request.version)
        self._check_inputs(request)
        self._wait(call)
        if self.failure is not None:
            raise self.failure
        outputs = {name: request.inputs[name] for name in request.outputs or request.inputs}
        return InferResponse(request.model, outputs, VERSION, request.id, request.parameters)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """One input and one output per datatype."""
        self._find(model, version)
        specs = tuple(TensorSpec(datatype.lower(), datatype, (-1, -1)) for datatype in DTYPES)
        return ModelMetadata(model, (VERSION,), "fake", specs, specs)

    def server_metadata(self) -> ServerMetadata:
        """A server named `fake`."""
        return ServerMetadata("fake", VERSION, ("upwell.fake",))

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """`is_ready`, for the server and for `echo`."""
        return self.is_ready and (model is None or (model == "echo" and version in ("", VERSION)))

    def _find(self, model: str, version: str) -> None:
        if model != "echo" or version not in ("", VERSION):
            raise ModelNotFound(f"no model {model!r} of version {version or 'any'!r} here; expected 'echo', {VERSION}")

    def _check_inputs(self, request: InferRequest) -> None:
        expected: Mapping[str, str] = {datatype.lower(): datatype for datatype in DTYPES}
        if not request.inputs:
            raise InvalidRequest("the request has no inputs; 'echo' takes at least one")
        for name, array in request.inputs.items():
            datatype = oip_datatype(array.dtype)
            if name not in expected:
                raise InvalidRequest(f"'echo' has no input {name!r}; it has {', '.join(expected)}")
            if datatype != expected[name]:
                raise InvalidRequest(f"the input {name!r} is {expected[name]}, got {datatype}")
        for name in request.outputs:
            if name not in request.inputs:
                raise InvalidRequest(f"'echo' gives the output {name!r} only if the input of that name is sent")

    def _wait(self, call: Call) -> None:
        until_s = time.monotonic() + self.delay_s
        if call.cancelled.wait(max(0.0, min(until_s, call.deadline_s) - time.monotonic())):
            raise CallerLeft("the caller has left")
        while time.monotonic() < call.deadline_s and not self._released.is_set():
            if call.cancelled.wait(_POLL_S):
                raise CallerLeft("the caller has left")
        if time.monotonic() >= call.deadline_s:
            raise DeadlineExceeded("the deadline passed before the answer was ready")
