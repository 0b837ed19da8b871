"""An agent whose only way out is a proxy: a real service over HTTP/1.1 with TLS, and over gRPC, through CONNECT."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.faults.certificates import Authority
from tests.faults.connect_proxy import ConnectProxy, Mood
from tests.faults.oracles import CLOUD_MODELS
from tests.faults.programs import Program
from tests.faults.scene import (
    DIRECT,
    HARD_ALWAYS,
    ONE,
    WAITED_S,
    Ask,
    assert_from_cloud,
    assert_from_edge,
    assert_recovers,
    in_process,
    within,
    write_agent,
)
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.errors import CloudFailed, ConfigError

CLOUD = "cloud.test"
"""A name that no name service knows: only the proxy can take it anywhere."""
PASSWORD = "hunter2 of the proxy"  # noqa: S105  a test's
GONE = ("cloud_unavailable",)
LATE = ("cloud_deadline",)
PATIENT = {**DIRECT, "defaults": {"deadline": "5s"}}
CASCADE_PATIENT = {"defaults": {**HARD_ALWAYS, "deadline": "5s"}}


@dataclass(frozen=True)
class Cloud:
    """The real service: where it listens, for the bearers of a token alone."""

    grpc: str
    http: str
    section: Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def cloud_service(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Cloud]:
    """Over gRPC and HTTP/1.1, with TLS under the name that the proxy knows."""
    folder = tmp_path_factory.mktemp("service")
    pair = authority.sign("through-the-proxy", host=CLOUD)
    (folder / "token").write_text("the-token")
    known = [{"name": "device", "sha256": hashlib.sha256(b"the-token").hexdigest()}]
    (folder / "tokens.yaml").write_text(json.dumps({"version": 1, "tokens": known}))
    serve = {
        "listen": ["127.0.0.1:0"],
        "listen_http": ["127.0.0.1:0"],
        "models": str(CLOUD_MODELS),
        "tls": {"cert": str(pair.cert), "key": str(pair.key)},
        "tokens": "tokens.yaml",
    }
    (folder / "cloud.yaml").write_text(json.dumps({"version": 1, "serve": serve}))
    program = Program(["serve", "-c", str(folder / "cloud.yaml")])
    try:
        http = program.find(r"HTTP on ([^ ,]+)").strip()
        tls = {"ca": str(authority.ca)}
        section = lambda endpoint: {"endpoint": endpoint, "tls": tls, "token_file": str(folder / "token")}  # noqa: E731
        yield Cloud(program.address(), http, section)
    finally:
        program.end()


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "grpc_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def set_proxy(no_proxies: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Name the way out, as an operator does."""
    return lambda url: monkeypatch.setenv("HTTPS_PROXY", url)


@contextmanager
def asking(folder: Path, section: dict[str, Any], policy: Any = PATIENT) -> Iterator[Ask]:
    with embedded_agent(write_agent(folder, policy, section)) as agent:
        yield in_process(agent)


def test_https_goes_through_the_proxy_on_one_tunnel(folder: Path, cloud_service: Cloud, set_proxy: Any) -> None:
    with ConnectProxy({f"{CLOUD}:443": cloud_service.http}) as proxy:
        set_proxy(f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{CLOUD}")) as ask:
            for _ in range(5):
                assert_from_cloud(ask(ONE))
        assert set(proxy.asked) == {f"{CLOUD}:443"}
        assert len(proxy.asked) <= 2, "beside the first request the agent asks whether the cloud knows the model"


def test_a_cascade_goes_up_too(folder: Path, cloud_service: Cloud, set_proxy: Any) -> None:
    with ConnectProxy({f"{CLOUD}:8443": cloud_service.http}) as proxy:
        set_proxy(f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{CLOUD}:8443"), CASCADE_PATIENT) as ask:
            assert_from_cloud(ask(ONE))


def test_a_proxy_that_asks_for_a_password_is_told_it_and_nobody_else(
    folder: Path, cloud_service: Cloud, set_proxy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pair = f"camera 1:{PASSWORD}".encode()
    wanted = f"Basic {base64.b64encode(pair).decode()}"
    with ConnectProxy({f"{CLOUD}:443": cloud_service.http}, wanted) as proxy:
        set_proxy(f"http://camera%201:{quote(PASSWORD)}@{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{CLOUD}")) as ask:
            assert_from_cloud(ask(ONE))
        set_proxy(f"http://camera%201:{quote(PASSWORD + 'x')}@{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{CLOUD}"), DIRECT) as ask:
            assert_from_edge(ask(ONE), GONE)
    assert "hunter2" not in caplog.text
    assert wanted.removeprefix("Basic ") not in caplog.text


def test_without_the_password_the_reason_says_so(folder: Path, cloud_service: Cloud, set_proxy: Any) -> None:
    policy = {"defaults": {"deadline": "5s", "on_cloud_failure": "error"}, "rules": DIRECT["rules"]}
    with ConnectProxy({f"{CLOUD}:443": cloud_service.http}, "Basic eA==") as proxy:
        set_proxy(f"http://{proxy.address}")
        says = pytest.raises(CloudFailed, match=r"cloud_unavailable: .*the proxy .* requires credentials")
        with asking(folder, cloud_service.section(f"https://{CLOUD}"), policy) as ask, says:
            ask(ONE)


@pytest.mark.parametrize(
    ("mood", "reasons"),
    [("forbid", GONE), ("die", GONE), ("stall", LATE), ("noise", ("cloud_garbage",))],
)
def test_a_proxy_that_fails_is_a_cloud_that_fails_until_it_is_back(
    folder: Path, cloud_service: Cloud, set_proxy: Any, mood: Mood, reasons: tuple[str, ...]
) -> None:
    with ConnectProxy({f"{CLOUD}:443": cloud_service.http}) as proxy:
        set_proxy(f"http://{proxy.address}")
        proxy.mood = mood
        policy = within(WAITED_S, DIRECT) if reasons == LATE else DIRECT
        with asking(folder, cloud_service.section(f"https://{CLOUD}"), policy) as ask:
            assert_from_edge(ask(ONE), reasons)
            proxy.mood = "forward"
            assert_recovers(ask)


def test_a_tunnel_that_is_cut_costs_no_answer(folder: Path, cloud_service: Cloud, set_proxy: Any) -> None:
    with ConnectProxy({f"{CLOUD}:443": cloud_service.http}) as proxy:
        set_proxy(f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{CLOUD}")) as ask:
            assert_from_cloud(ask(ONE))
            proxy.cut()
            assert_recovers(ask)
        assert len(proxy.asked) >= 2


def test_the_certificate_is_the_servers_and_not_the_proxys(folder: Path, cloud_service: Cloud, set_proxy: Any) -> None:
    """A proxy that takes the tunnel elsewhere gets nothing."""
    with ConnectProxy({"other.test:443": cloud_service.http}) as proxy:
        set_proxy(f"http://{proxy.address}")
        with asking(folder, cloud_service.section("https://other.test"), DIRECT) as ask:
            assert_from_edge(ask(ONE), ("cloud_certificate",))


def test_what_no_proxy_names_goes_without(
    folder: Path, cloud_service: Cloud, set_proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", ".test")
    with ConnectProxy({f"{CLOUD}:443": cloud_service.http}) as proxy:
        set_proxy(f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{CLOUD}"), DIRECT) as ask:
            assert ask(ONE).route == "edge"  # the name is known to nobody else
        assert proxy.asked == []


def test_this_machine_is_reached_without_a_proxy(folder: Path, cloud_service: Cloud, set_proxy: Any) -> None:
    with ConnectProxy({}) as proxy:
        set_proxy(f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"https://{cloud_service.http}"), DIRECT) as ask:
            assert_from_edge(ask(ONE), ("cloud_certificate",))  # so it came there, under a name that is not in it
        assert proxy.asked == []


@pytest.mark.parametrize(
    "url", ["socks5://u:hunter2@h:1", "https://u:hunter2@h:1", "http://u:hunter2@h:port", "http://"]
)
def test_a_proxy_that_cannot_be_used_is_told_without_its_password(
    folder: Path, cloud_service: Cloud, set_proxy: Any, url: str
) -> None:
    set_proxy(url)
    path = write_agent(folder, DIRECT, cloud_service.section(f"https://{CLOUD}"))
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        embedded_agent(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["https_proxy", "http_proxy", "grpc_proxy", "HTTPS_PROXY"])
def test_which_variables_grpc_heeds(
    folder: Path, cloud_service: Cloud, no_proxies: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """gRPC asks a proxy to CONNECT as well. This is its own doing, written down in docs/uplink.md."""
    with ConnectProxy({f"{CLOUD}:8001": cloud_service.grpc}) as proxy:
        monkeypatch.setenv(name, f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"{CLOUD}:8001")) as ask:
            if name.islower():
                assert_from_cloud(ask(ONE))
            else:
                assert ask(ONE).route == "edge"
        assert proxy.asked == ([f"{CLOUD}:8001"] if name.islower() else [])


def test_grpc_takes_all_of_a_name_through_the_proxy_too(
    folder: Path, cloud_service: Cloud, no_proxies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ConnectProxy({f"{CLOUD}:8001": cloud_service.grpc}) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy.address}")
        with asking(folder, cloud_service.section(f"dns:///{CLOUD}:8001")) as ask:
            assert_from_cloud(ask(ONE))
        assert proxy.asked == [f"{CLOUD}:8001"]


@pytest.mark.parametrize("name", ["no_proxy", "no_grpc_proxy"])
def test_grpc_goes_without_where_it_is_told_to(
    folder: Path, cloud_service: Cloud, no_proxies: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with ConnectProxy({f"{CLOUD}:8001": cloud_service.grpc}) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy.address}")
        monkeypatch.setenv(name, CLOUD)
        with asking(folder, cloud_service.section(f"{CLOUD}:8001"), DIRECT) as ask:
            assert ask(ONE).route == "edge"
        assert proxy.asked == []
