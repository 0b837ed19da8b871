"""`upwell top` on a real service: what it says is what was asked meanwhile."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.in_process import InProcess
from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import linear
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient

ONE = InferRequest("linear", {"x": np.ones((1, 8), np.float32)})


def test_a_service_under_load_is_told(tmp_path: Path, in_process: InProcess) -> None:
    folder = tmp_path / "models" / "linear" / "1"
    folder.mkdir(parents=True)
    linear(folder, seed=1).rename(folder / "model.onnx")
    (tmp_path / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], models: models, metrics: '127.0.0.1:0'}\n"
    )
    with serving("-c", tmp_path / "cloud.yaml") as running:
        page = next(line.split()[-1] for line in running.lines if line.startswith("metrics on"))
        over = threading.Event()

        def ask() -> None:
            client = OipClient(running.address)
            while not over.is_set():
                client.infer(ONE, 10)
            client.close()

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            told = json.loads(in_process("top", "--at", page, "--json").out)
            shown = in_process("top", "--at", page.removeprefix("http://").removesuffix("/metrics"), "--once").out
            wrong_port = in_process("top", "--at", running.address).err
            named = page.removeprefix("http://").removesuffix("/metrics")
            serve = "listen: ['127.0.0.1:0'], models: models"
            (tmp_path / "watched.yaml").write_text(f"{{serve: {{{serve}, metrics: '{named}'}}}}\n")
            by_file = in_process("top", "-c", tmp_path / "watched.yaml", "--once").out
            (tmp_path / "watched.yaml").write_text(f"{{serve: {{{serve}}}}}\n")
            unset = in_process("top", "-c", tmp_path / "watched.yaml", "--once").err
        finally:
            over.set()
            asking.join()
    assert "/metrics: the port does not speak HTTP; it may be the one of `listen`; is `metrics` set" in wrong_port
    assert "linear/1" in by_file
    assert "serve.metrics: not set" in unset
    (line,) = told["models"]
    assert (told["kind"], line["model"], line["state"], told["in_time"]) == ("service", "linear/1", "ready", 1.0)
    assert line["rate"] > 1
    assert 0 < line["p50_s"] <= line["p99_s"]
    assert "linear/1" in shown
    assert "in time 100" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "expected --at HOST:PORT of a metrics page, or -c agent.yaml or cloud.yaml"),
        (("--at", "http://"), 2, "expected HOST:PORT of a metrics page"),
        (("--at", "127.0.0.1:1"), 1, "is `metrics` set in agent.yaml or cloud.yaml?"),
    ],
)
def test_what_cannot_be_watched_is_said(
    in_process: InProcess, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = in_process("top", *arguments)
    assert done.code == code
    assert said in done.err
