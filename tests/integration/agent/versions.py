"""Versions of a small model as bundles that a real agent can take, an agent that follows a folder, and its callers."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.faults.bundles_for_tests import Signer, archive_of
from tests.faults.repeating import Repeating
from tests.integration.agent.harness import LIMIT_S, Running, client_of
from tests.unit.models_for_tests import save, tensor
from upwell.edge.bundle.bundle import GOLDEN_NAME, MANIFEST_NAME, Bundle, entry_of, sizes_in
from upwell.edge.bundle.bundle_signature import sign_bundle
from upwell.edge.bundle.golden import record_golden
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.tensors import Array

MODEL = "shift"
INPUT = "fp32"
EASY, TELLING = 0.0, 9.0
"""Inputs that every version takes, and that the fragile ones fail on."""
APPEARS_S = 30.0


def rows(value: float) -> Mapping[str, Array]:
    """A request."""
    return {INPUT: np.full((1, 3), value, np.float32)}


def write_endless(path: Path, columns: int = 3) -> None:
    """A model that loads, and never comes to the end of a run."""
    ends = [tensor(INPUT, ["rows", columns])], [tensor("scores", ["rows", columns])]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["goes_on"]), helper.make_node("Neg", ["state"], ["next"])],
        "body",
        [tensor("turn", [], "INT64"), tensor("go_on", [], "BOOL"), tensor("state", ["rows", columns])],
        [tensor("goes_on", [], "BOOL"), tensor("next", ["rows", columns])],
    )
    loop = helper.make_node("Loop", ["turns", "", INPUT], ["scores"], body=body)
    save(path, [loop], *ends, {"turns": np.array(2**62, np.int64)})


def write_model(folder: Path, version: int, *, fragile: bool = False) -> None:
    """`scores = fp32 + version`. A fragile one looks its input up in a table of four, and fails beyond it."""
    constants: dict[str, Array] = {"version": np.full((1, 3), version, np.float32)}
    nodes = [helper.make_node("Add", [INPUT, "version"], ["sum"], name="add")]
    if fragile:
        constants["table"] = np.zeros(4, np.float32)
        nodes += [
            helper.make_node("Cast", [INPUT], ["index"], to=7, name="cast"),
            helper.make_node("Gather", ["table", "index"], ["found"], name="gather"),
            helper.make_node("Add", ["sum", "found"], ["scores"], name="add_found"),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["sum"], ["scores"], name="copy"))
    ends = [tensor(INPUT, ["rows", 3])], [tensor("scores", ["rows", 3])]
    save(folder / "model.onnx", nodes, *ends, constants)


class Publisher:
    """Makes signed bundles in `folder`, and puts them, one at a time, where the devices look: into `offered`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signer = Signer(folder)
        self.offered = folder / "offered"
        self.offered.mkdir()

    def bundle(
        self, version: int, *, fragile: bool = False, endless: bool = False, answers_of: int = 0,
        signer: Signer | None = None,
    ) -> Path:  # fmt: skip
        """An archive; `answers_of` is the version whose answers its golden vectors are, where it is another."""
        folder = self.folder / f"made-{time.monotonic_ns()}"
        folder.mkdir()
        write_model(folder, version, fragile=fragile)
        if endless:
            write_endless(folder / "model.onnx")
        shift = np.float32(answers_of or version)
        golden = record_golden(lambda inputs: {"scores": inputs[INPUT] + shift}, {INPUT: np.ones((4, 3), np.float32)})
        (folder / GOLDEN_NAME).write_bytes(golden)
        manifest = new_manifest(MODEL, version, {path: entry_of(folder / path) for path in sizes_in(folder)})
        (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
        sign_bundle(Bundle(folder, manifest), (signer or self.signer).key)
        return archive_of(folder, self.folder / f"{folder.name}.bundle.tar")

    def offer(self, version: int, **about: Any) -> None:
        """From now on this is what there is."""
        archive = self.bundle(version, **about)
        for path in self.offered.iterdir():
            path.unlink()
        os.replace(archive, self.offered / archive.name)


def write_config(folder: Path, trusted: Signer, bundle: Path | None, cloud: str | None = None, **updates: Any) -> Path:
    """An `agent.yaml` (JSON is YAML) whose model follows the folder `offered`, looking every second."""
    edge: dict[str, Any] = {"updates": {"source": "offered", "every": "1s", **updates}}
    if bundle is not None:
        edge["bundle"] = str(bundle)
    agent = {
        "listen": ["127.0.0.1:0"],
        "metrics": "127.0.0.1:0",
        "state_dir": "state",
        "trust": {"keys": [str(trusted.public)]},
    }
    config: dict[str, Any] = {"version": 1, "agent": agent, "models": {MODEL: {"edge": edge}}}
    if cloud is not None:
        config["cloud"] = {"endpoint": cloud}
        config["models"][MODEL]["cloud"] = {"model": "echo"}
    path = folder / "agent.yaml"
    path.write_text(json.dumps(config))
    return path


class Callers(Repeating):
    """Threads that ask a running agent one after the other; `versions` are those that answered, in their order.

    Answers may overtake each other on the way here: one by the version before counts where it was asked for earlier
    than any answer by the next one came, and as a return to that version where it was asked for later.
    """

    def __init__(self, agent: Running, *values: float, threads: int = 3) -> None:
        super().__init__(self._asking, threads)
        self.versions: list[int] = []
        self.count = 0
        self._address, self._values = agent.addresses[0], values
        self._lock = threading.Lock()

    @contextmanager
    def _asking(self) -> Iterator[Callable[[], None]]:
        values = itertools.cycle(self._values)
        with client_of(self._address) as client:
            yield lambda: self._ask(client, next(values))

    def _ask(self, client: OipClient, value: float) -> None:
        with self._lock:
            since = max(len(self.versions) - 1, 0)
        version = version_of(client.infer(InferRequest(MODEL, rows(value)), LIMIT_S).outputs, value)
        with self._lock:
            self.count += 1
            if version not in self.versions[since:]:
                self.versions.append(version)


def version_of(outputs: Mapping[str, Array], value: float) -> int:
    """Which version answered to this value; 0 is the cloud."""
    (scores,) = outputs.values()
    assert len(set(scores.ravel().tolist())) == 1
    return round(float(scores[0, 0]) - value)


def ask(agent: Running, value: float = EASY) -> int:
    """The version that answers one request now."""
    with client_of(agent.addresses[0]) as client:
        return version_of(client.infer(InferRequest(MODEL, rows(value)), LIMIT_S).outputs, value)


def health(agent: Running) -> Mapping[str, Any]:
    """What `GET /health` says."""
    url = agent.metrics_url.replace("/metrics", "/health")
    with urllib.request.urlopen(url, timeout=LIMIT_S) as page:  # noqa: S310  our own agent's address
        found: Mapping[str, Any] = json.load(page)
    return found


def updates(agent: Running) -> Mapping[str, Any]:
    """How the model's updates fare."""
    found: Mapping[str, Any] = health(agent)["updates"][MODEL]
    return found


def serves(agent: Running) -> int:
    """The version that the agent says it serves."""
    return int(health(agent)["models"].get(MODEL, {}).get("version", 0))


def state(folder: Path) -> Mapping[str, Any]:
    """What the device remembers."""
    found: Mapping[str, Any] = json.loads((folder / f"state/bundles/{MODEL}/state.json").read_text())
    return found
