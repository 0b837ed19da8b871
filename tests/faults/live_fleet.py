"""A whole fleet of processes: a service, a cloud, agents with a supervisor each, and somebody who asks each of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.faults.bundles_for_tests import archive_of
from tests.faults.programs import UPWELL, Program
from tests.faults.proxy import Proxy
from tests.faults.releases_for_tests import Releases
from tests.fleet_service import Remote
from tests.integration.agent.harness import client_of
from tests.integration.agent.test_trials import CLASSES, DESCRIPTION, requests, write_model
from tests.integration.agent.versions import write_endless
from tests.unit.models_for_tests import save, tensor
from upwell.edge.bundle.bundle import DESCRIPTION_NAME, MANIFEST_NAME, entry_of, sizes_in
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.updates.releases.release_start import CHOICE_NAME
from upwell.shared.errors import UpwellError
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteErrorKind
from upwell.shared.tensors import Array

MODEL = "sorter"
DEADLINE_S = 0.3
POLICY = f"""version: 1
defaults: {{deadline: {DEADLINE_S}s, hard: {{measure: margin, below: 0.5}}, audit: 20%}}
"""
RIGHT = 0.92
ANSWER_S = 60.0
"""A request that has no answer by then, whatever its caller tried, stays unanswered."""
UP_S = 120.0


def bundle(folder: Path, version: int, kind: str = "good") -> Path:
    """An archive of a version that is good, slow (past its deadline on what comes, not on zeros), wrong (on hard cases,
    and sure of it), that crashes (the processor stops the process that loads it), is endless (it never comes to the end
    of a run), is doubtful (the less sure, the harder the case), or is blind (wrong on half of what comes at night)."""
    made = folder / f"{kind}-{version}"
    made.mkdir()
    write_model(made, right=0.5 if kind == "wrong" else RIGHT)
    if kind == "slow":
        _write_slow(made / "model.onnx")
    elif kind == "crashes":
        write_crashing(made / "model.onnx")
    elif kind == "endless":
        write_endless(made / "model.onnx", CLASSES)
    elif kind == "doubtful":
        _write_doubtful(made / "model.onnx")
    elif kind == "blind":
        _write_blind(made / "model.onnx")
    (made / DESCRIPTION_NAME).write_text(DESCRIPTION)
    manifest = new_manifest(MODEL, version, {path: entry_of(made / path) for path in sizes_in(made)})
    (made / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    return archive_of(made, folder / f"{kind}-{version}.bundle.tar")


_ENDS = [tensor("fp32", ["rows", CLASSES])], [tensor("scores", ["rows", CLASSES])]


def _write_slow(path: Path) -> None:
    """The right answer, after a loop that is as long as the request is large."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("MatMul", ["state", "matrix"], ["next"]),
        ],
        "body",
        [tensor("turn", [], "INT64"), tensor("go_on", [], "BOOL"), tensor("state", [256, 256])],
        [tensor("goes_on", [], "BOOL"), tensor("next", [256, 256])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["fp32"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "turns_each"], ["many"]),
        helper.make_node("Cast", ["many"], ["turns"], to=7),
        helper.make_node("Loop", ["turns", "", "matrix"], ["last"], body=body),
        helper.make_node("ReduceMean", ["last"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["fp32", "nothing"], ["scores"]),
    ]
    constants = {
        "turns_each": np.array(400.0, np.float32),
        "matrix": np.eye(256, dtype=np.float32),
        "zero": np.zeros((), np.float32),
    }
    save(path, nodes, *_ENDS, constants)


def write_crashing(path: Path) -> None:
    """The smallest number of 32 bits divided by minus one: no runtime looks for that, and x86 ends the process."""
    nodes = [
        helper.make_node("Cast", ["fp32"], ["whole"], to=6),
        helper.make_node("Sub", ["whole", "one"], ["minus"]),
        helper.make_node("Div", ["least", "minus"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["back"], to=1),
        helper.make_node("Add", ["fp32", "back"], ["scores"]),
    ]
    constants = {"one": np.ones((1, CLASSES), np.int32), "least": np.full((1, CLASSES), -(2**31), np.int32)}
    save(path, nodes, *_ENDS, constants)


def _write_doubtful(path: Path) -> None:
    """Right but on the hardest cases; its logits shrink with how hard a case is, which is in the first column."""
    nodes = [
        helper.make_node("Gather", ["fp32", "first"], ["how"], axis=1),
        helper.make_node("Less", ["how", "right"], ["is_right"]),
        helper.make_node("Gather", ["fp32", "rolled"], ["next"], axis=1),
        helper.make_node("Where", ["is_right", "fp32", "next"], ["answer"]),
        helper.make_node("Sub", ["most", "how"], ["sure"]),
        helper.make_node("Mul", ["answer", "sure"], ["scores"]),
    ]
    constants: dict[str, Array] = {
        "first": np.array([0], np.int64),
        "rolled": np.array([0, CLASSES - 1, *range(1, CLASSES - 1)], np.int64),
        "right": np.array([[RIGHT]], np.float32),
        "most": np.full((1, 1), 1.05, np.float32),
    }
    save(path, nodes, *_ENDS, constants)


def _write_blind(path: Path) -> None:
    """Right as the good one is, but at night (the first column is below zero) on half of the cases alone."""
    nodes = [
        helper.make_node("Gather", ["fp32", "first"], ["how"], axis=1),
        helper.make_node("Less", ["how", "right"], ["is_easy"]),
        helper.make_node("Greater", ["how", "dark"], ["is_seen"]),
        helper.make_node("And", ["is_easy", "is_seen"], ["is_right"]),
        helper.make_node("Gather", ["fp32", "rolled"], ["next"], axis=1),
        helper.make_node("Where", ["is_right", "fp32", "next"], ["scores"]),
    ]
    constants: dict[str, Array] = {
        "first": np.array([0], np.int64),
        "rolled": np.array([0, CLASSES - 1, *range(1, CLASSES - 1)], np.int64),
        "right": np.array([[RIGHT]], np.float32),
        "dark": np.array([[-0.5]], np.float32),
    }
    save(path, nodes, *_ENDS, constants)


def cloud_models(folder: Path) -> Path:
    """A folder with the model of the cloud, which is always right."""
    version = folder / "truth/1"
    version.mkdir(parents=True)
    write_model(version, right=2.0)
    (version / DESCRIPTION_NAME).write_text(DESCRIPTION)
    return folder


@dataclass
class Asked:
    """What became of the requests of one caller: seconds that each answer took; the ids that got none."""

    answered: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    again: int = 0
    slowest_s: float = 0.0
    unanswered: list[str] = field(default_factory=list)
    first: str = ""


class Box:
    """A device: an agent that a supervisor starts again whenever it ends, and somebody who asks it all the time."""

    def __init__(self, config: Path, name: str, every_s: float) -> None:
        self.name, self.config = name, config
        self.socket = f"unix:{config.parent}/s"
        self.asked = Asked()
        self.starts = 0
        self.is_night = False
        self.program: Program | None = None
        self._every_s = every_s
        self._stop = threading.Event()
        self._is_up = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._supervise, self._ask_on)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until it serves."""
        assert self._is_up.wait(UP_S), self.name

    def close(self) -> None:
        """End both."""
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_S)

    @property
    def pss_bytes(self) -> int:
        """Its memory; of what processes share, its part."""
        assert self.program is not None
        lines = Path(f"/proc/{self.program.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))

    def health(self) -> Mapping[str, Any]:
        """What `GET /health` says."""
        assert self.program is not None
        url = self.program.find(r"metrics on (\S+)").replace("/metrics", "/health")
        with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310  our own agent's address
            found: Mapping[str, Any] = json.load(page)
        return found

    def _supervise(self) -> None:
        while not self._stop.is_set():
            with Program(["agent", "-c", str(self.config)]) as program:
                self.program = program
                self.starts += 1
                with contextlib.suppress(AssertionError):  # it may end before
                    program.find(r"(serving on)", UP_S)
                    self._is_up.set()
                while not self._stop.is_set():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        program.wait(0.2)
                        break

    def _ask_on(self) -> None:
        self._is_up.wait()
        numbers, rows = itertools.count(), requests(zlib.crc32(self.name.encode()) % 1000)
        with client_of(self.socket) as client:
            while not self._stop.is_set():
                began_s = time.monotonic()
                inputs = next(rows)
                if self.is_night:
                    inputs["fp32"][0, 0] -= 1.0
                self._ask(client, f"{self.name}-{next(numbers)}", inputs)
                self._stop.wait(max(0.0, began_s + self._every_s - time.monotonic()))

    def _ask(self, client: OipClient, request_id: str, inputs: Mapping[str, Array]) -> None:
        """Ask until there is an answer; while the agent is started anew there is nobody to give one."""
        asked, began_s = self.asked, time.monotonic()
        asked.first = asked.first or request_id
        while not self._stop.is_set():
            try:
                client.infer(InferRequest(MODEL, inputs, id=request_id), 20.0)
            except UpwellError as error:
                if time.monotonic() - began_s > ANSWER_S:
                    asked.unanswered.append(f"{request_id}: {error}")
                    return
                if getattr(error, "kind", None) in (RemoteErrorKind.UNAVAILABLE, RemoteErrorKind.CANCELLED):
                    asked.again += 1
                else:
                    text = f"{type(error).__name__}: {error}"[:150]
                    asked.refused[text] = asked.refused.get(text, 0) + 1
                self._stop.wait(0.1)
            else:
                asked.answered += 1
                asked.slowest_s = max(asked.slowest_s, time.monotonic() - began_s)
                return


@dataclass(frozen=True)
class Pace:
    """How fast the fleet lives: seconds between polls, and between the requests of one caller."""

    poll_s: float = 1.0
    request_s: float = 0.08


class LiveFleet:
    """The service, the cloud, the repository and the devices; `command` is what an operator types."""

    def __init__(self, folder: Path, pace: Pace) -> None:
        self.folder, self.pace = folder, pace
        self.releases = Releases(folder / "desk")
        self.policy = folder / "policy.yaml"
        self.policy.write_text(POLICY)
        self.boxes: list[Box] = []
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            models = cloud_models(folder / "models")
            cloud = stack.enter_context(Program(["serve", "--models", str(models), "--listen", "127.0.0.1:0"]))
            self._cloud = cloud.address()
            config = folder / "fleet.yaml"
            config.write_text(f"version: 1\nfleet: {{listen: ['127.0.0.1:0'], poll: {pace.poll_s:g}s}}\n")
            add = [UPWELL, "fleet", "user", "add", "ann", "--role", "operator", "-c", str(config)]
            token = subprocess.run(add, check=True, capture_output=True, text=True).stdout.strip()
            (folder / "token").write_text(token)
            self.service = stack.enter_context(Program(["fleet", "serve", "-c", str(config)], [UPWELL]))
            self.remote = Remote(folder, f"https://{self.service.address()}", folder / "fleet-ca.pem", token)
            self.link = stack.enter_context(Proxy(self.remote.url.removeprefix("https://")))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End all of it."""
        for box in self.boxes:
            box.close()
        self._stack.close()

    def release(self, kind: str = "good") -> int:
        """Make, sign and publish the next release, of this kind; its sequence."""
        return self.releases.release({MODEL: bundle(self.folder, self._next(), kind)}, policy=self.policy)

    def _next(self) -> int:
        targets = self.releases.editor.targets()
        return 1 + (0 if targets is None else sum(one.startswith("releases/") for one in targets.signed.targets))

    def start(self, count: int) -> None:
        """Start so many devices. The first one, `role=canary`, reaches the service by way of `link`."""
        for number in range(count):
            self.boxes.append(Box(self._config(number), f"box-{number}", self.pace.request_s))
            if number % 4 == 3:
                for box in self.boxes:
                    box.wait()
        for box in self.boxes:
            box.wait()

    def _config(self, number: int) -> Path:
        folder = self.folder / str(number)
        folder.mkdir()
        url = self.remote.url if number else f"https://127.0.0.1:{self.link.port}"
        (folder / "enrol").write_text(self.remote.enrolment_token(role="canary" if not number else "other"))
        config = {
            "version": 1,
            "agent": {
                "name": f"box-{number}", "listen": [f"unix:{folder}/s"], "metrics": "127.0.0.1:0",
                "state_dir": "state", "flights": 100_000,
            },
            "cloud": {"endpoint": self._cloud},
            "release": {
                "source": str(self.releases.place), "root": str(self.releases.root), "every": "1h", "clock": "trusted"
            },
            "fleet": {"endpoint": url, "ca": str(self.remote.ca), "enrol_token_file": "enrol", "labels": {}},
            "models": {MODEL: {"edge": {"runtime": "onnx", "threads": 1}, "cloud": {"model": "truth"}}},
        }  # fmt: skip
        path = folder / "agent.yaml"
        path.write_text(json.dumps(config))
        return path

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`upwell fleet …` as an operator types it."""
        words = [UPWELL, "fleet", *arguments]
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=600)

    @property
    def environment(self) -> dict[str, str]:
        """That of an operator."""
        return {
            **os.environ, "UPWELL_FLEET": self.remote.url, "UPWELL_FLEET_CA": str(self.remote.ca),
            "UPWELL_FLEET_TOKEN_FILE": str(self.folder / "token"),
        }  # fmt: skip

    def done(self, *arguments: str) -> str:
        """What it prints, where it succeeds."""
        found = self.command(*arguments)
        assert found.returncode == 0, (arguments, found.stdout, found.stderr)
        return found.stdout

    def rollout(self, release: int, *options: str) -> str:
        """Begin a roll-out; its id."""
        done = self.command("rollout", str(release), "--json", *options)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def chosen(self) -> list[int | None]:
        """The releases that the service chose, of the devices that have heard of one."""
        files = self.folder.glob(f"[0-9]*/state/**/{CHOICE_NAME}")
        return [json.loads(one.read_text())["sequence"] for one in files]

    def runs(self) -> dict[str, int | None]:
        """The release that each device says it runs."""
        return {one["name"]: one["release"] for one in self.remote.get("/devices?limit=1000")["devices"]}


@contextlib.contextmanager
def live_fleet(folder: Path, pace: Pace) -> Iterator[LiveFleet]:
    """A fleet without devices, until the block ends."""
    fleet = LiveFleet(folder, pace)
    try:
        yield fleet
    finally:
        fleet.close()


def within(seconds: float, ask: Callable[[], Any], what: str) -> Any:
    """What `ask` gives once that is something, waited for."""
    until_s = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < until_s, what
        time.sleep(0.2)
    return found
