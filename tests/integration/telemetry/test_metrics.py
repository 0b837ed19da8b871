"""What Prometheus reads from the service over a real socket, of one process and of several; and its log lines."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.programs import Program
from tests.integration.agent.harness import LIMIT_S, client_of, scraped
from tests.integration.cloud.processes import children, until
from tests.unit.models_for_tests import linear
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import RemoteError

TOKEN = "-".join(("a", "token", "that", "nobody", "must", "read", "in", "a", "log"))
ROWS = 3
ASK = InferRequest("linear", {"x": np.ones((ROWS, 8), np.float32)}, id="asked")
OK = "upwell_cloud_requests_total{model=linear,status=OK,version=1}"


def write(folder: Path, **serve: Any) -> Path:
    models = folder / "models"
    for name in ("linear", "broken"):
        (models / name / "1").mkdir(parents=True, exist_ok=True)
    linear(models / "linear" / "1").rename(models / "linear" / "1" / "model.onnx")
    (models / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    path = folder / "cloud.yaml"
    own = {"listen": ["127.0.0.1:0"], "models": str(models), "metrics": "127.0.0.1:0", **serve}
    path.write_text(json.dumps({"version": 1, "serve": own, "defaults": {"max_batch": 8}}))
    return path


def tokens(folder: Path) -> str:
    path = folder / "tokens.yaml"
    entry = {"name": "dock", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    path.write_text(json.dumps({"version": 1, "tokens": [entry]}))
    (folder / "token").write_text(TOKEN)
    return str(path)


def test_requests_are_counted_and_logged_by_who_asked(tmp_path: Path) -> None:
    config = write(tmp_path, tokens=tokens(tmp_path), log="json", access_log=True)
    with Program(["serve", "-c", str(config)]) as service:
        page = service.find(r"metrics on (http[^\" ]+)")
        with client_of(service.address(), ClientSecurity(token_file=tmp_path / "token")) as client:
            for _ in range(2):
                client.infer(ASK, LIMIT_S)
            for request in (InferRequest("broken", ASK.inputs), InferRequest("made up" * 1000, ASK.inputs)):
                with pytest.raises(RemoteError):
                    client.infer(request, LIMIT_S)
        found = scraped(page)
        service.send(signal.SIGTERM)
        assert service.wait() == 0
    _check_counts(found)
    assert found[f"upwell_cloud_build_info{{version={version('upwell')}}}"] == 1
    lines = [json.loads(line) for line in service.lines]
    assert TOKEN not in "".join(service.lines)
    assert max(map(len, service.lines)) < 2000
    assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)
    access = [line for line in lines if line["logger"] == "upwell.access"]
    assert [line["status"] for line in access] == ["OK", "OK", "UNAVAILABLE", "NOT_FOUND"]
    first = access[0]
    facts = {name: first[name] for name in ("request_id", "client", "model", "version", "in_bytes", "level")}
    assert facts == {
        "request_id": "asked", "client": "dock", "model": "linear", "version": "1", "in_bytes": ROWS * 32,
        "level": "INFO",
    }  # fmt: skip


def _check_counts(found: Mapping[str, float]) -> None:
    assert found[OK] == 2
    assert found["upwell_cloud_requests_total{model=broken,status=UNAVAILABLE,version=1}"] == 1
    assert found["upwell_cloud_requests_total{model=,status=NOT_FOUND,version=}"] == 1
    assert not any("made up" in name for name in found)
    of_model = "model=linear,version=1"
    for name in ("request", "queue", "compute"):
        assert found[f"upwell_cloud_{name}_seconds_count{{{of_model}}}"] == 2
        assert 0 <= found[f"upwell_cloud_{name}_seconds_sum{{{of_model}}}"] < LIMIT_S
    assert found[f"upwell_cloud_batch_rows_sum{{{of_model}}}"] == 2 * ROWS
    assert found["upwell_cloud_model_ready{model=linear,version=1}"] == 1
    assert found["upwell_cloud_model_ready{model=broken,version=1}"] == 0
    assert found["upwell_cloud_model_load_seconds{model=linear,version=1}"] > 0
    assert found["upwell_cloud_client_bytes_total{client=dock,direction=in}"] == 4 * ROWS * 32
    assert found["upwell_cloud_client_bytes_total{client=dock,direction=out}"] > 0
    assert found["upwell_cloud_client_device_seconds_total{client=dock}"] > 0
    assert found["upwell_cloud_waiting_requests{model=linear,version=1}"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="several workers share a port on Linux alone")
@pytest.mark.slow
def test_workers_are_counted_together_and_what_a_dead_one_counted_stays(tmp_path: Path) -> None:
    with Program(["serve", "-c", str(write(tmp_path, workers=2))]) as service:
        page = service.find(r"metrics on (\S+)")
        address = service.address()

        def ask(times: int) -> None:
            for _ in range(times):  # each over a connection of its own, so that both workers are asked
                with client_of(address) as client:
                    client.infer(ASK, LIMIT_S)

        ask(20)
        until(lambda: scraped(page).get(OK) == 20)
        assert scraped(page)["upwell_cloud_workers"] == 2
        os.kill(children(service.pid)[0], signal.SIGKILL)
        until(lambda: scraped(page)["upwell_cloud_workers"] == 1)
        assert scraped(page)[OK] == 20
        until(lambda: scraped(page)["upwell_cloud_workers"] == 2)
        ask(5)
        until(lambda: scraped(page).get(OK) == 25)
        assert scraped(page)["upwell_cloud_client_bytes_total{client=anonymous,direction=in}"] == 25 * ROWS * 32
        service.send(signal.SIGTERM)
        assert service.wait() == 0


@pytest.mark.slow
def test_a_port_that_is_taken_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    with Program(["serve", "-c", str(write(tmp_path))]) as service:
        taken = service.find(r"metrics on http://(\S+)/metrics")
        for workers in (1, 2):
            with Program(["serve", "-c", str(write(tmp_path, metrics=taken, workers=workers))]) as other:
                assert other.wait() == 2
                assert f"serve.metrics: cannot listen on {taken}: " in "".join(other.lines)
