"""`upwell agent` as a process of its own, the files it is run from, and what the tests ask it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.oracles import pictures
from tests.faults.programs import Program
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.tensors import Array

LIMIT_S = 10.0
"""For calls that should end long before."""


@dataclass(frozen=True)
class Running:
    """A running agent: its process and where it serves."""

    program: Program
    addresses: tuple[str, ...]

    @property
    def said(self) -> str:
        """All of its standard error so far."""
        return "".join(self.program.lines)

    @property
    def metrics_url(self) -> str:
        """Where it is scraped."""
        return self.program.find(r"metrics on (\S+)")


@contextmanager
def agent_process(config: Path) -> Iterator[Running]:
    """Run `upwell agent` until the block ends; it must not have shown a traceback by then."""
    with Program(["agent", "-c", str(config)]) as program:
        running = Running(program, tuple(program.find(r"serving on (.+) \(\d+ models?\)").split(", ")))
        yield running
        assert "Traceback" not in running.said, running.said


@contextmanager
def client_of(address: str, *arguments: Any, **options: Any) -> Iterator[OipClient]:
    """A client of ours."""
    client = OipClient(address, *arguments, **options)
    try:
        yield client
    finally:
        client.close()


def digits_request(*indexes: int, model: str = "digits", **tags: str) -> InferRequest:
    """Ask for held-out digits, with tags."""
    tagged = {f"upwell.tag.{name}": value for name, value in tags.items()}
    return InferRequest(model, {"image": pictures(indexes)}, parameters=tagged)


def ask(client: OipClient, *indexes: int, model: str = "digits", **tags: str) -> InferResponse:
    """One request for digits."""
    return client.infer(digits_request(*indexes, model=model, **tags), LIMIT_S)


def fact(response: InferResponse, name: str) -> Any:
    """The value of `upwell.<name>`."""
    return response.parameters[f"upwell.{name}"]


def scores(response: InferResponse) -> Array:
    """The digits' scores."""
    return response.outputs["scores"]


def raw_call(address: str, data: bytes, method: str = "ModelInfer", timeout_s: float = LIMIT_S) -> bytes:
    """Send these bytes as the message, as no client would. Raises `grpc.RpcError`."""
    limits = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, limits) as channel:
        call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        answer: bytes = call(data, timeout=timeout_s)
        return answer


def scraped(url: str) -> Mapping[str, float]:
    """Each sample of a metrics page by `name{label=value,...}`, labels in order of their names."""
    with urllib.request.urlopen(url, timeout=LIMIT_S) as page:  # noqa: S310  our own agent's address
        text = page.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {f"{one.name}{_labels(one.labels)}": one.value for one in samples}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{name}={labels[name]}" for name in sorted(labels)) + "}" if labels else ""


def write(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Write a file of settings; JSON is YAML."""
    path = folder / name
    path.write_text(json.dumps(content))
    return path
