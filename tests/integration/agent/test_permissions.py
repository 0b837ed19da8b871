"""Permissions and limits of tokens on the real agent."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.faults.oracles import EDGE_BUNDLE
from tests.faults.scene import write_agent
from tests.integration.agent.harness import LIMIT_S, agent_process, ask, client_of, fact, write
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind


def test_a_caller_has_its_models_and_its_share(folder: Path) -> None:
    entries = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **more}
        for name, more in (("one", {"models": ["digits"]}), ("many", {"limits": {"rate": "5/day"}}))
    ]
    write(folder, "tokens.yaml", {"version": 1, "tokens": entries})
    for name in ("one", "many"):
        (folder / name).write_text(name)
    models = {name: {"edge": {"bundle": str(EDGE_BUNDLE)}} for name in ("digits", "others")}
    section = {"listen": ["127.0.0.1:0"], "tokens": "tokens.yaml", "limits": {"rate": "2/day"}}
    with agent_process(write_agent(folder, {}, models=models, agent=section)) as running:
        with client_of(running.addresses[0], ClientSecurity(token_file=folder / "one")) as client:
            for call in (lambda: ask(client, 0, model="others"), lambda: client.metadata("others", LIMIT_S)):
                with pytest.raises(RemoteError) as caught:
                    call()
                assert caught.value.kind is RemoteErrorKind.PERMISSION_DENIED
            assert [fact(ask(client, 0), "route") for _ in range(2)] == ["edge"] * 2
            with pytest.raises(RemoteError, match="its limit of requests"):
                ask(client, 0)
        with client_of(running.addresses[0], ClientSecurity(token_file=folder / "many")) as client:
            assert [fact(ask(client, 0, model="others"), "route") for _ in range(5)] == ["edge"] * 5
            with pytest.raises(RemoteError, match="its limit of requests"):
                ask(client, 0)
