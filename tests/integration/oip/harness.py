"""What the tests of the wire share: the types of their fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import RunningServer

TIMEOUT_S = 10.0
"""For calls that should end long before."""

Serve: TypeAlias = Callable[..., RunningServer]
Connect: TypeAlias = Callable[..., OipClient]
