"""An agent that keeps things: its folder, the switch before its cloud, and its results by each of the three ways."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import pictures
from tests.faults.proxy import Proxy
from tests.faults.scene import HARD_ALWAYS, write_agent
from upwell.edge import Answer
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.edge.server.result_stream import add_agent_service
from upwell.edge.spool.spool import Spool
from upwell.edge.spool.spooled_request import SPOOL_ID, SpoolResult
from upwell.rpc.agent.v1 import agent_pb2, agent_pb2_grpc
from upwell.rpc.oip.v2 import open_inference_grpc_pb2
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.tensors import Array

STATE: Mapping[str, Any] = {"listen": ["127.0.0.1:0"], "state_dir": "state", "spool": {"results": "results.jsonl"}}
SPOOLED: Mapping[str, Any] = {**HARD_ALWAYS, "deadline": "5s", "spool": True}
EASY: Mapping[str, Any] = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 0.0001}}
"""Defaults under which no digit is hard."""
MARK = b"only-for-the-device"
"""Appended to a private picture, where every PNG reader ignores it."""


def put(path: Path, text: str) -> None:
    """Move a file of this text into place, as who changes a policy should."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.replace(path)


@dataclass
class Kept:
    """A running agent, the proxy to its cloud, and what `on_result` was called with."""

    agent: AgentCore
    proxy: Proxy
    folder: Path
    called: list[SpoolResult] = field(default_factory=list)

    @property
    def spool(self) -> Spool:
        assert self.agent.spool is not None
        return self.agent.spool

    def ask(self, *indexes: int, mark: bytes = b"", **tags: str) -> Answer:
        """Ask for held-out digits."""
        images = pictures(indexes)
        if mark:
            images[:] = [image + mark for image in images]
        return self.agent.infer("digits", {"image": images}, tags=tags)

    def lines(self) -> list[dict[str, Any]]:
        """The file of results."""
        path = self.folder / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def write_policy(self, defaults: Mapping[str, Any], **more: Any) -> None:
        """Change the policy's file."""
        put(self.folder / "policy.yaml", json.dumps({"version": 1, "defaults": defaults, **more}))

    def holds(self, mark: bytes) -> bool:
        """Whether any file in the agent's folder has these bytes."""
        return any(mark in path.read_bytes() for path in self.folder.rglob("*") if path.is_file())


@contextmanager
def spooling_agent(
    folder: Path,
    defaults: Mapping[str, Any],
    cloud: ScriptedCloud | None,
    section: Mapping[str, Any] = STATE,
    **more: Any,
) -> Iterator[Kept]:
    """An agent in `folder` by these defaults; `more` is the rest of the policy, and `models`."""
    models = more.pop("models", None)
    called: list[SpoolResult] = []
    with Proxy(cloud.address if cloud else "127.0.0.1:9", record=True) as proxy:
        address = proxy.address if cloud else None
        path = write_agent(folder, {"defaults": defaults, **more}, address, models, section)
        with embedded_agent(path, on_result=called.append) as agent:
            yield Kept(agent, proxy, folder, called)


@contextmanager
def served(agent: AgentCore) -> Iterator[str]:
    """The address of the agent's own server, with its stream of results."""
    assert agent.spool is not None
    extra = [partial(add_agent_service, spool=agent.spool)]
    server = start_server(AgentDataplane(agent), ["127.0.0.1:0"], max_workers=12, extra=extra)
    try:
        yield server.addresses[0]
    finally:
        server.stop(0.0)


class Stream:
    """`Results(since)` of a running agent, read on a thread of its own until it ends."""

    def __init__(self, address: str, since: int = 0) -> None:
        self.results: list[agent_pb2.Result] = []
        self._channel = grpc.insecure_channel(address)
        stub: Any = agent_pb2_grpc.AgentServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._call = stub.Results(agent_pb2.ResultsRequest(since=since))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def scores(self) -> dict[str, Array]:
        """The cloud's scores by spool id."""
        found = {}
        for result in list(self.results):
            answer = open_inference_grpc_pb2.ModelInferResponse.FromString(result.answer)
            found[result.spool_id] = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(-1, 10)
        return found

    def ends(self, timeout_s: float) -> bool:
        """Whether the agent ended it by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def _read(self) -> None:
        try:
            for result in self._call:
                self.results.append(result)
        except grpc.RpcError:
            pass  # cancelled, or the agent has ended


def kept_ids(requests: Sequence[InferRequest]) -> list[str]:
    """The stable ids of those that were kept, in order."""
    return [str(request.parameters[SPOOL_ID]) for request in requests if SPOOL_ID in request.parameters]
