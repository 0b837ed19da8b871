"""The recipe of docs/deploy.md with one server and one device: its commands and its files, as far as a test can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.agent.harness import LIMIT_S, agent_process, client_of, digits_request, fact
from tests.integration.cloud.serving import Service, serving
from tests.unit.deploy.manifests import DEPLOY, ROOT
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.tools.demo.digit_data import ASSETS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("openssl") is None, reason="the recipe is for Linux with OpenSSL"
)

NAME = "localhost"
HEALTH = DEPLOY / "container" / "health.py"


def secrets(folder: Path) -> None:
    """Run the commands of the guide that make certificates and a token."""
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```sh title=secrets\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        ["sh", "-euc", commands], cwd=folder, env={**os.environ, "NAME": NAME}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def placed(name: str, folder: Path, **changes: str) -> Path:
    """An example file in `folder`, with what belongs to the real machine changed; each change must be one."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Server:
    """The running service, the address of its HTTP, and the folder that stands for /etc of both machines."""

    service: Service
    web: str
    folder: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("etc")
    secrets(folder)
    models = ASSETS / "cloud"
    changes = {"/srv/upwell/models": str(models), "127.0.0.1:9464": "127.0.0.1:0", "0.0.0.0:8000": "127.0.0.1:0"}
    config = placed("cloud.yaml", folder, **changes)
    with serving("-c", config) as running:
        web = re.search(r"HTTP on (\S+)", "".join(running.lines))
        assert web is not None
        yield Server(running, web[1], folder)


def test_the_device_is_let_in_and_the_answer_comes_from_the_server(server: Server, tmp_path: Path) -> None:
    port = server.service.address.rpartition(":")[2]
    socket = tmp_path / "agent.sock"
    for name in ("ca.crt", "token"):
        shutil.copy(server.folder / name, tmp_path)
    placed("policy.yaml", tmp_path, **{"deadline: 250ms": "deadline: 10s\n  large: {above: 1B}"})
    config = placed(
        "agent.yaml",
        tmp_path,
        **{
            "infer.example.com:8001": f"{NAME}:{port}",
            "/run/upwell-agent/agent.sock": str(socket),
            "127.0.0.1:8002": "127.0.0.1:0",
            "127.0.0.1:9465": "127.0.0.1:0",
            "/var/lib/upwell-agent": str(tmp_path / "state"),
            "/srv/upwell-agent/models/digits": str(ASSETS / "edge" / "digits"),
        },
    )
    with agent_process(config) as agent, client_of(f"unix:{socket}") as client:
        answer = client.infer(digits_request(0), LIMIT_S)
        assert (fact(answer, "route"), fact(answer, "reason")) == ("cloud", "large")
        health = agent.metrics_url.removesuffix("/metrics") + "/health"
        assert ask_health(health) == (0, "")


def test_nobody_else_is_let_in(server: Server) -> None:
    address = f"{NAME}:{server.service.address.rpartition(':')[2]}"
    with (
        client_of(address, ClientSecurity(TlsFiles(ca=server.folder / "ca.crt"))) as client,
        pytest.raises(RemoteError) as caught,
    ):
        client.server_metadata(LIMIT_S)
    assert caught.value.kind is RemoteErrorKind.UNAUTHENTICATED


def test_private_keys_are_private(server: Server) -> None:
    for name in ("ca.key", "tls/tls.key", "token"):
        assert (server.folder / name).stat().st_mode & 0o077 == 0


def ask_health(url: str) -> tuple[int, str]:
    """Exit status and words of the program that HEALTHCHECK runs."""
    environment = {
        **os.environ,
        "UPWELL_HEALTH": url,
        "https_proxy": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }
    done = subprocess.run([sys.executable, HEALTH], env=environment, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


def test_the_health_check_sees_a_server_without_token_and_authority(server: Server) -> None:
    assert ask_health(f"https://{server.web}/v2/health/live") == (0, "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://127.0.0.1:1/v2/health/live", "refused"),
        ("https://192.0.2.1:8000/v2/health/live", "not on loopback"),
    ],
)
def test_the_health_check_fails_where_there_is_none(url: str, words: str) -> None:
    status, said = ask_health(url)
    assert status == 1
    assert words in said


def test_the_health_check_fails_where_the_server_says_no(server: Server) -> None:
    status, said = ask_health(f"https://{server.web}/v2")  # which wants a token
    assert status == 1
    assert "401" in said
