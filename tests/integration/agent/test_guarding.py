"""TLS and tokens on both sides of the agent: towards the cloud, and for its own callers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.certificates import Authority
from tests.faults.oracles import CLOUD_MODELS, EDGE_BUNDLE, pictures
from tests.faults.programs import Program
from tests.faults.scene import until, write_agent
from tests.integration.agent.harness import Running, agent_process, ask, client_of, fact, write
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind

TOKEN, OTHER = "a-token-for-tests", "another-token"
UP = {"defaults": {"deadline": "2s"}, "rules": [{"name": "up", "match": {}, "route": "cloud"}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, certificates of `server` and `device`, `tokens.yaml`, and `token`, `wrong` and `spaced` beside it."""
    folder = tmp_path_factory.mktemp("guarding")
    authority = Authority(folder)
    for name in ("server", "device"):
        authority.sign(name)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    write(folder, "tokens.yaml", {"version": 1, "tokens": [{"name": "tester", "sha256": digest}]})
    for name, text in (("token", TOKEN), ("wrong", OTHER), ("spaced", "two words")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def guarded_cloud(files: Path) -> Iterator[str]:
    """A service with TLS and tokens."""
    keys = ["--tls-cert", str(files / "server.pem"), "--tls-key", str(files / "server.key")]
    tokens = ["--tokens", str(files / "tokens.yaml")]
    with Program(["serve", "--models", str(CLOUD_MODELS), "--listen", "127.0.0.1:0", *keys, *tokens]) as running:
        yield running.address()


def cloud_section(address: str, files: Path, token: str | Path | None) -> dict[str, Any]:
    section: dict[str, Any] = {"endpoint": address, "tls": {"ca": str(files / "ca.pem")}}
    return section if token is None else {**section, "token_file": str(files / token)}


def test_a_known_token_is_let_in(folder: Path, files: Path, guarded_cloud: str) -> None:
    with embedded_agent(write_agent(folder, UP, cloud_section(guarded_cloud, files, "token"))) as agent:
        assert agent.infer("digits", {"image": pictures([0])}).route == "cloud"


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_a_known_token_the_device_answers_and_says_why(
    folder: Path, files: Path, guarded_cloud: str, token: str | None
) -> None:
    with embedded_agent(write_agent(folder, UP, cloud_section(guarded_cloud, files, token))) as agent:
        answer = agent.infer("digits", {"image": pictures([0])})
        assert (answer.route, answer.reason, answer.degraded) == ("edge", "cloud_unauthenticated", True)


def test_a_new_token_takes_over_without_a_restart(folder: Path, files: Path, guarded_cloud: str) -> None:
    own = folder / "token"
    own.write_text(OTHER)
    with embedded_agent(write_agent(folder, UP, cloud_section(guarded_cloud, files, own))) as agent:

        def route() -> str:
            return str(agent.infer("digits", {"image": pictures([0])}).route)

        assert route() == "edge"
        (folder / "new").write_text(TOKEN)
        os.replace(folder / "new", own)
        until(lambda: route() == "cloud")


@pytest.mark.parametrize(
    ("token", "says"), [("missing", "cannot read the token"), ("spaced", "expected a single token")]
)
def test_a_token_file_that_is_none_is_refused_at_the_start(folder: Path, files: Path, token: str, says: str) -> None:
    path = write_agent(folder, UP, cloud_section("127.0.0.1:1", files, token))
    with pytest.raises(ConfigError, match=says) as caught:
        embedded_agent(path)
    assert "two words" not in str(caught.value)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Running]:
    """An agent reachable from everywhere, with TLS, client certificates and tokens."""
    tls = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    section = {
        "listen": ["0.0.0.0:0"],
        "tls": {key: str(files / name) for key, name in tls.items()},
        "tokens": str(files / "tokens.yaml"),
    }  # fmt: skip
    models = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}}
    path = write_agent(tmp_path_factory.mktemp("guarded"), {}, models=models, agent=section)
    with agent_process(path) as running:
        yield running


def security(files: Path, **parts: str) -> ClientSecurity:
    known = {name: files / file for name, file in parts.items()}
    token = known.pop("token", None)
    return ClientSecurity(TlsFiles(**known), token) if known else ClientSecurity(token_file=token)


COMPLETE = {"ca": "ca.pem", "cert": "device.pem", "key": "device.key", "token": "token"}
LACKING: dict[str, tuple[Mapping[str, str], RemoteErrorKind]] = {
    "no token": ({one: COMPLETE[one] for one in ("ca", "cert", "key")}, RemoteErrorKind.UNAUTHENTICATED),
    "a wrong token": ({**COMPLETE, "token": "wrong"}, RemoteErrorKind.UNAUTHENTICATED),
    "no certificate": ({one: COMPLETE[one] for one in ("ca", "token")}, RemoteErrorKind.UNAVAILABLE),
    "no tls": ({"token": "token"}, RemoteErrorKind.UNAVAILABLE),
}


def test_a_caller_with_all_it_takes_is_answered(guarded: Running, files: Path) -> None:
    with client_of(of_here(guarded), security(files, **COMPLETE)) as client:
        assert fact(ask(client, 0), "route") == "edge"


@pytest.mark.parametrize("lack", LACKING)
def test_a_caller_that_lacks_something_is_not(guarded: Running, files: Path, lack: str) -> None:
    parts, kind = LACKING[lack]
    with client_of(of_here(guarded), security(files, **parts)) as client, pytest.raises(RemoteError) as caught:
        ask(client, 0)
    assert caught.value.kind is kind


def test_no_secret_is_ever_logged(guarded: Running, files: Path) -> None:
    mistaken = security(files, **{**COMPLETE, "token": "wrong"})
    with client_of(of_here(guarded), mistaken) as client, pytest.raises(RemoteError):
        ask(client, 0)
    assert TOKEN not in guarded.said
    assert OTHER not in guarded.said


def of_here(guarded: Running) -> str:
    """The address to call on this machine."""
    return guarded.addresses[0].replace("0.0.0.0", "127.0.0.1")  # noqa: S104  what it listens on, not where we go
