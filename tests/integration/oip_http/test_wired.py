"""Agent and service as processes of their own, asked over HTTP/1.1 beside gRPC."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.faults.oracles import CLOUD_MODELS, EDGE_BUNDLE, pictures
from tests.faults.programs import Program
from tests.integration.agent.harness import LIMIT_S, client_of, digits_request, write

DIGITS = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}}


def post(url: str, body: bytes, kind: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The JSON answer, and the headers in lower case."""
    request = urllib.request.Request(url, body, {"Content-Type": kind})  # noqa: S310  our own program's address
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310  as above
        headers = {name.lower(): value for name, value in answer.headers.items()}
        found: dict[str, Any] = json.loads(answer.read())
        return found, headers


@pytest.mark.parametrize(("command", "model"), [("agent", "digits"), ("serve", "digits-large")])
def test_it_answers_over_http_as_over_grpc_and_ends_with_the_program(tmp_path: Path, command: str, model: str) -> None:
    listen = {"listen": ["127.0.0.1:0"], "listen_http": ["127.0.0.1:0"]}
    config: dict[str, Any] = {"serve": {**listen, "models": str(CLOUD_MODELS)}}
    if command == "agent":
        config = {"agent": listen, "models": DIGITS}
    path = write(tmp_path, "config.yaml", config)
    with Program([command, "-c", str(path)]) as program:
        address = program.address()
        web = program.find(r"HTTP on (\S+)")
        with client_of(address) as client:
            expected = client.infer(digits_request(3, model=model), LIMIT_S)
        answer, headers = post(f"http://{web}/v2/models/{model}/infer", pictures([3])[0], "image/png")
        scores = next(output for output in answer["outputs"] if output["name"] == "scores")
        assert scores["data"] == pytest.approx(expected.outputs["scores"].ravel().tolist(), abs=1e-6)
        if command == "agent":
            assert headers["upwell-route"] == "edge"
        with urllib.request.urlopen(f"http://{web}/v2/health/ready", timeout=LIMIT_S) as ready:
            assert ready.status == 200
        program.send(signal.SIGTERM)
        assert program.wait() == 0


def test_addresses_off_loopback_need_protection_over_http_too(tmp_path: Path) -> None:
    config = {"agent": {"listen": ["127.0.0.1:0"], "listen_http": ["0.0.0.0:0"]}, "models": DIGITS}
    with Program(["agent", "-c", str(write(tmp_path, "agent.yaml", config))]) as program:
        assert program.wait() == 2
        assert "insecure" in "".join(program.lines)
