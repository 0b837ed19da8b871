"""The promise: whatever the cloud does, the device's answer comes in time and says why; then the cloud is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.faults import clouds
from tests.faults.certificates import Authority
from tests.faults.clouds import GARBAGE, Behaviour, ScriptedCloud
from tests.faults.raw_servers import BROKEN_FRAMING, RawServer
from tests.faults.scene import (
    CASCADE,
    DIRECT,
    ONE,
    PLANS,
    Scene,
    assert_from_cloud,
    assert_from_edge,
    assert_recovers,
    scene,
)

STATUSES = {
    grpc.StatusCode.CANCELLED: "cloud_unavailable",
    grpc.StatusCode.UNKNOWN: "cloud_error",
    grpc.StatusCode.INVALID_ARGUMENT: "cloud_invalid_argument",
    grpc.StatusCode.DEADLINE_EXCEEDED: "cloud_deadline",
    grpc.StatusCode.NOT_FOUND: "cloud_model_missing",
    grpc.StatusCode.ALREADY_EXISTS: "cloud_error",
    grpc.StatusCode.PERMISSION_DENIED: "cloud_unauthenticated",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "cloud_exhausted",
    grpc.StatusCode.FAILED_PRECONDITION: "cloud_error",
    grpc.StatusCode.ABORTED: "cloud_error",
    grpc.StatusCode.OUT_OF_RANGE: "cloud_invalid_argument",
    grpc.StatusCode.UNIMPLEMENTED: "cloud_error",
    grpc.StatusCode.INTERNAL: "cloud_error",
    grpc.StatusCode.UNAVAILABLE: "cloud_unavailable",
    grpc.StatusCode.DATA_LOSS: "cloud_garbage",
    grpc.StatusCode.UNAUTHENTICATED: "cloud_unauthenticated",
}
LATE = ("cloud_deadline", "cloud_too_slow")
LINK: dict[str, tuple[Callable[[Scene], object], tuple[str, ...]]] = {
    "refused": (lambda s: s.proxy.refuse(), ("cloud_unavailable",)),
    "blackhole": (lambda s: s.proxy.blackhole(), LATE),
    "blackhole on the way back": (lambda s: s.proxy.down.blackhole(), LATE),
    "slow link": (lambda s: s.proxy.down.delay(1.0), LATE),
    "narrow link": (lambda s: s.proxy.up.throttle(200), LATE),
    "reset": (lambda s: s.proxy.reset(), ("cloud_unavailable", "")),
    "reset at the first byte of the reply": (lambda s: s.proxy.down.reset_after(1), ("cloud_unavailable",)),
    "reset mid-reply": (lambda s: s.proxy.down.reset_after(100), ("cloud_unavailable",)),
    "cut mid-request": (lambda s: s.proxy.up.cut_after(60), ("cloud_unavailable",)),
    "cut mid-reply": (lambda s: s.proxy.down.cut_after(100), ("cloud_unavailable",)),
}
