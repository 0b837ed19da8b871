"""The whole loop on this machine: inputs drift, the drift is detected, cases are collected and labelled, a better
model is trained, evaluated, calibrated, released and rolled out, and fewer requests go to the cloud at the same risk.

Every step but the training is a command of `upwell`, as a team would run it; three agents, a cloud service and a
fleet service are real.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loop_model import train_edge, write_edge_onnx
from loop_stream import LOOP_SEED, Asked, Stream
from PIL import Image
from rich.console import Console

from upwell.edge import Agent
from upwell.shared.tensors import Array
from upwell.tools.demo.demonstration import CloudProcess
from upwell.tools.demo.digit_data import ASSETS
from upwell.tools.plot_style import ALARM, CLOUD, EDGE, MUTED, picture

BOXES = ("box-1", "box-2", "box-3")
MAX_RISK = "4%"
HOME = "home"
MARK = ".upwell-loop"
"""The file by which a later run knows that it may delete the folder."""
LABELS = 180
KEEP = "1MiB"
WAIT_S = 600.0
WAVES = ("1", "100%")
SERVED = 40
"""The number of requests a device must serve with the new release before the next wave begins."""

POLICY: dict[str, Any] = {
    "version": 1,
    "defaults": {
        "deadline": "2s",
        "hard": {"max_risk": MAX_RISK, "below": 0.9},
        "on_drift": {"hard": {"below": 0.97}},
        "collect": {"hard": 1.0, "random": "30%", "keep": KEEP, "per_day": 10_000},
    },
}


@dataclass
class Phase:
    """A part of the requests, and the requests at which drift was detected."""

    name: str
    asked: list[Asked] = field(default_factory=list)
    seen_at: int | None = None

    def figures(self) -> dict[str, Any]:
        """The summary of the phase."""
        kept = [one.right for one in self.asked if one.route == "edge"]
        return {
            "requests": len(self.asked),
            "accuracy": round(float(np.mean([one.right for one in self.asked])), 4),
            "accuracy_of_the_kept": round(float(np.mean(kept)), 4) if kept else None,
            "share_up": round(float(np.mean([one.route != "edge" for one in self.asked])), 4),
            "drift_seen_after": self.seen_at,
        }


class Loop:
    """One run in `folder`, which is created anew: an earlier run's is deleted, another one refused."""

    def __init__(self, folder: Path, requests: int, console: Console) -> None:
        if folder.exists() and not (folder / MARK).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SystemExit(f"{folder} exists and is not of an earlier run: name another folder with --out")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / MARK).touch()
        self.folder, self.requests, self.console = folder.resolve(), requests, console
        self.stream = Stream(LOOP_SEED)
        self.phases: list[Phase] = []
        self.facts: dict[str, Any] = {}
        self.drifted_unix_s = 0.0
        self.is_drifted = False  # as reported by the agents
        self.environment = dict(os.environ)

    def upwell(self, *arguments: str, code: int = 0) -> Any:
        """Run a command of `upwell`; returns its --json output, or else its text."""
        self.console.print(f"$ upwell {' '.join(arguments)}", style="dim", markup=False, highlight=False)
        command = [sys.executable, "-m", "upwell.tools.entry", *arguments]
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, cwd=self.folder, env=self.environment, check=False
        )
        if done.returncode != code:
            raise SystemExit(f"upwell {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    def run(self) -> None:
        """Run all phases."""
        with ExitStack() as stack:
            cloud = stack.enter_context(CloudProcess(ASSETS / "cloud", "onnx", self.folder / "cloud.log"))
            self.write_keys()
            fleet = stack.enter_context(self.fleet())
            shutil.copytree(ASSETS / "edge" / "digits", self.folder / "v1")
            self.release(1, self.stream.plain(500), cloud.endpoint)
            self.publish()
            self.upwell("fleet", "group", "put", "boxes", "true")
            self.upwell("fleet", "assign", "1", "--group", "boxes")
            agents = [stack.enter_context(self.agent(name, cloud.endpoint, fleet)) for name in BOXES]
            self.wait(lambda: all(sequence(agent) == 1 for agent in agents), "release 1 to be installed")
            self.phase("before", agents, drifted=False, count=self.requests)
            self.drifted_unix_s = time.time()
            self.phase("drift", agents, drifted=True, count=2 * self.requests)
            self.wait(lambda: self.has_all_home(agents), "cases to come home")
            self.label()
            seen = self.upwell("drift", f"{BOXES[0]}/agent.yaml", "--json", code=1)["models"]["digits"]
            self.facts["drift"] = seen["text"]
            self.facts["moved"] = {name: one["text"] for name, one in seen["quantities"].items() if one["moved"]}
            self.train()
            self.evaluate()
            self.release(2, self.labelled("recent"), cloud.endpoint)
            self.stream.use_other_originals()
            self.publish()
            self.roll_out(2, agents)
            self.phase("after", agents, drifted=True, count=self.requests)
        self.report()

    def write_keys(self) -> None:
        """The keys of the release repository."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        pem, nobody = serialization.Encoding.PEM, serialization.NoEncryption()
        for name in ("root", "targets", "online"):
            key = Ed25519PrivateKey.generate()
            private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, nobody)
            (self.folder / f"{name}.pem").write_bytes(private)
            (self.folder / f"{name}.pem").chmod(0o600)
            public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
            (self.folder / f"{name}.pub.pem").write_bytes(public)
        keys = [part for name in ("root", "targets", "online") for part in (f"--{name}", f"{name}.pub.pem")]
        self.upwell("release", "init", "releases", *keys)
        self.upwell("release", "sign", "releases", "--key", "root.pem")

    def release(self, number: int, rows: Sequence[tuple[bytes, int]], endpoint: str) -> None:
        """Make bundle `v<number>` with its reference and a calibration, and a signed release of it."""
        name = f"v{number}"
        data = self.folder / f"{name}-data"
        data.mkdir()
        with (self.folder / f"{name}-labels.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("file", "label"))
            for index, (png, label) in enumerate(rows):
                (data / f"{index:04}.png").write_bytes(png)
                writer.writerow((f"{index:04}.png", label))
        self.upwell("model", "reference", name, "--data", data.name)
        (self.folder / "policy.yaml").write_text(json.dumps(POLICY))
        workstation = {"policy": "policy.yaml", "cloud": {"endpoint": endpoint},
                "models": {"digits": {"edge": {"bundle": name}, "cloud": {"model": "digits-large"}}}}  # fmt: skip
        (self.folder / "desk.yaml").write_text(json.dumps({"version": 1, **workstation}))
        log = f"{name}.jsonl"
        self.upwell("policy", "collect", "desk.yaml", "digits", "--data", data.name, "--labels", f"{name}-labels.csv",
                    "--out", log)  # fmt: skip
        found = self.upwell("policy", "calibrate", "policy.yaml", "--log", log, "--max-risk", MAX_RISK,
                            "--out", f"{name}-policy.yaml", "--json")  # fmt: skip
        self.facts[f"{name}_calibration"] = {
            key: value for key, value in found["calibrations"][0].items() if isinstance(value, (int, float, str))
        }
        bundle = f"digits-{number}.bundle.tar"
        self.upwell("model", "pack", name, "--version", str(number), "--name", "digits", "--out", bundle)
        self.upwell("release", "add", "releases", "--bundle", f"digits={bundle}", "--policy", f"{name}-policy.yaml")
        self.upwell("release", "sign", "releases", "--key", "targets.pem")

    def publish(self) -> None:
        """Publish what is signed; the fleet service decides which devices take it."""
        self.upwell("release", "publish", "releases", "--key", "online.pem", "--to", "site")

    @contextmanager
    def fleet(self) -> Iterator[str]:
        """Start a fleet service, which also stores the cases; returns its address."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        section = {"listen": [f"127.0.0.1:{port}"], "names": ["127.0.0.1"], "poll": "1s", "cases": {"folder": HOME}}
        (self.folder / "fleet.yaml").write_text(json.dumps({"version": 1, "fleet": section}))
        (self.folder / "operator").write_text(self.upwell("fleet", "user", "add", "ann", "--role", "operator",
                                                          "-c", "fleet.yaml"))  # fmt: skip
        self.environment |= {"UPWELL_FLEET": f"https://127.0.0.1:{port}", "UPWELL_FLEET_CA": "fleet-ca.pem",
                             "UPWELL_FLEET_TOKEN_FILE": "operator"}  # fmt: skip
        command = [sys.executable, "-m", "upwell.tools.entry", "fleet", "serve", "-c", "fleet.yaml"]
        with (self.folder / "fleet.log").open("w") as log, subprocess.Popen(command, cwd=self.folder, stderr=log) as it:  # noqa: S603
            try:
                self.wait(lambda: is_open(port), "the fleet service")
                yield self.environment["UPWELL_FLEET"]
            finally:
                it.terminate()

    def agent(self, name: str, endpoint: str, fleet: str) -> Agent:
        """Start a device that takes the releases that the fleet service chooses for it."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "token").write_text(self.upwell("fleet", "token", "add"))
        document = {
            "version": 1,
            "agent": {"name": name, "state_dir": "state", "cases": {"fleet": True, "every": "1s"}},
            "cloud": {"endpoint": endpoint},
            "fleet": {"endpoint": fleet, "ca": "../fleet-ca.pem", "enrol_token_file": "token", "every": "1s"},
            "policy": "../v1-policy.yaml",
            "release": {"source": "../site", "root": "../releases/metadata/1.root.json", "every": "1s",
                        "clock": "trusted"},
            "models": {"digits": {"edge": {"bundle": "../v1"}, "cloud": {"model": "digits-large"}}},
        }  # fmt: skip
        (folder / "agent.yaml").write_text(json.dumps(document))
        return Agent.from_config(folder / "agent.yaml")

    def roll_out(self, release: int, agents: Sequence[Agent]) -> None:
        """Roll out in waves: one device, then the others once it has served well. Requests go on meanwhile."""
        waves = [part for wave in WAVES for part in ("--wave", wave)]
        began = self.upwell("fleet", "rollout", str(release), "--group", "boxes", *waves, "--requests", str(SERVED),
                            "--json")  # fmt: skip
        phase, order = Phase("roll-out"), list[str]()
        self.phases.append(phase)
        end_s = time.monotonic() + WAIT_S
        found: dict[str, Any] = {}
        while found.get("phase", "running") == "running":
            if time.monotonic() > end_s:
                raise SystemExit(f"waited {WAIT_S:.0f} s for the roll-out: {found}")
            for _ in range(10):
                for agent in agents:
                    phase.asked.append(self.stream.ask(agent, drifted=True))
            order += [box for box, agent in zip(BOXES, agents, strict=True)
                      if sequence(agent) == release and box not in order]  # fmt: skip
            found = self.upwell("fleet", "rollouts", began["id"], "--json")
        if found["phase"] != "finished":
            raise SystemExit(f"the roll-out was {found['phase']}: {found['halted_by']}")
        self.facts["rollout"] = {"order": order, "waves": [one["stages"] for one in found["waves"]]}
        self.console.print(f"roll-out: {phase.figures()}, {self.facts['rollout']}", markup=False, highlight=False)

    def phase(self, name: str, agents: Sequence[Agent], *, drifted: bool, count: int) -> None:
        """Send requests to the agents in turn."""
        phase = Phase(name)
        self.phases.append(phase)
        for index in range(count):
            agent = agents[index % len(agents)]
            phase.asked.append(self.stream.ask(agent, drifted=drifted))
            time.sleep(0.002)  # real callers leave time for background work
            was_drifted, self.is_drifted = self.is_drifted, any(has_drifted(one) for one in agents)
            if phase.seen_at is None and self.is_drifted and not was_drifted:
                phase.seen_at = index + 1
        self.console.print(f"{name}: {phase.figures()}", markup=False, highlight=False)

    def has_all_home(self, agents: Sequence[Agent]) -> bool:
        """Whether every case that the devices hold has been uploaded."""
        held = sum(agent.core.collector.held()[0] for agent in agents if agent.core.collector is not None)
        return len(list((self.folder / HOME).rglob("*.case"))) >= held

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        end_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end_s:
                raise SystemExit(f"waited {WAIT_S:.0f} s for {what}")
            time.sleep(0.05)

    def label(self) -> None:
        """A person labels what `select` chooses and the random sample; the cloud labels the rest."""
        cases = self.upwell("cases", "list", HOME, "--json")["cases"]
        chosen = set(self.upwell("cases", "select", HOME, "--budget", str(LABELS), "--json")["cases"])
        chosen |= {one["id"] for one in cases if one.get("inclusion")}
        with (self.folder / "labels.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("id", "label"))
            writer.writerows((one["id"], self.stream.truth[one["request_id"]]) for one in cases if one["id"] in chosen)
        self.upwell("cases", "import", HOME, "labels.csv", "--format", "csv")
        to_folder = ("cases", "export", HOME, "--format", "imagefolder")
        self.upwell(*to_folder, "--out", "training")
        recent = [one["id"] for one in cases if one.get("inclusion") and one["created_unix_s"] >= self.drifted_unix_s]
        (self.folder / "recent.txt").write_text("\n".join(recent))
        # The distribution of today's requests: those before the drift are no reference for the next ones.
        self.upwell(*to_folder, "--set", "evaluation", "--ids", "recent.txt", "--out", "recent")
        self.facts |= {
            "cases": len(cases), "labelled_by_a_person": len(chosen), "selected": LABELS,
            "cases_bytes": sum(path.stat().st_size for path in (self.folder / HOME).rglob("*.case")),
            "byte_budget_a_box": KEEP,
        }  # fmt: skip

    def labelled(self, which: str) -> list[tuple[bytes, int]]:
        """The pictures of an export with their labels."""
        return [(path.read_bytes(), int(path.parent.name)) for path in sorted((self.folder / which).rglob("*.png"))]

    def train(self) -> None:
        """Train the next model on the first one's data and the cases; then convert it to int8."""
        rows = self.labelled("training")
        self.facts["training_cases"] = len(rows)
        images = np.stack([pixels(png) for png, _ in rows])
        began_s = time.monotonic()
        net = train_edge(images, np.array([label for _, label in rows]))
        self.facts["training_s"] = round(time.monotonic() - began_s, 1)
        made = self.folder / "v2"
        shutil.copytree(ASSETS / "edge" / "digits", made, ignore=shutil.ignore_patterns("model.*ite", "model.onnx"))
        write_edge_onnx(net, self.folder / "float.onnx")
        np.savez(self.folder / "calibration.npz", x=images[:300, None].astype(np.float32) / 255)
        self.upwell("model", "quantize", "float.onnx", "--data", "calibration.npz", "--out", "v2/model.onnx")

    def evaluate(self) -> None:
        """Is it better, over all requests, and may it be rolled out?"""
        found = self.upwell("evaluate", "v1", "v2", "--cases", HOME, "--gate", "--max-risk", MAX_RISK, "--json")
        self.facts["evaluation"] = {
            "cases": found["cases"], "a": found["quality"][0], "b": found["quality"][1],
            "difference": found["difference"], "share_up": [found["a"]["share_up"], found["b"]["share_up"]],
        }  # fmt: skip

    def report(self) -> None:
        """Write the figures and the plot."""
        document = {"phases": {one.name: one.figures() for one in self.phases}, **self.facts}
        (self.folder / "report.json").write_text(json.dumps(document, indent=1))
        (self.folder / "loop.png").write_bytes(draw(self.phases))
        self.console.print_json(data=document)
        self.console.print(f"{self.folder / 'report.json'} and loop.png", markup=False)


def is_open(port: int) -> bool:
    """Whether a server listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def sequence(agent: Agent) -> int:
    """The release that an agent runs."""
    return 0 if agent.core.release is None else agent.core.release.status().sequence


def has_drifted(agent: Agent) -> bool:
    """Whether an agent reports drift."""
    reports = {} if agent.core.drift is None else agent.core.drift.reports()
    return any(one.findings for one in reports.values())


def pixels(png: bytes) -> Array:
    """A picture as uint8 [8, 8]."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"))


def draw(phases: Sequence[Phase]) -> bytes:
    """Plot accuracy and cloud share over time, smoothed, with the phases and the detections of drift."""
    asked = [one for phase in phases for one in phase.asked]
    window = np.ones(100) / 100

    def smooth(values: Sequence[bool]) -> Array:
        return np.convolve(np.array(values, np.float64), window, "valid")

    def on(figure: Any) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        at = np.arange(len(window) - 1, len(asked))
        upper.plot(at, smooth([one.right for one in asked]), color=EDGE)
        upper.set(ylabel="answers that are right", title="The loop, 100 requests at a time", ylim=(0.5, 1.02))
        lower.plot(at, smooth([one.route != "edge" for one in asked]), color=CLOUD)
        lower.set(ylabel="share sent up", xlabel="requests", ylim=(0, 1.02))
        start = 0
        for phase in phases:
            for axes in (upper, lower):
                axes.axvline(start, color=MUTED, linewidth=0.8, linestyle=":")
                if phase.seen_at is not None:
                    axes.axvline(start + phase.seen_at, color=ALARM, linewidth=1.2)
            upper.annotate(phase.name, (start + 5, 0.52), fontsize=8, color=MUTED)
            if phase.seen_at is not None:
                upper.annotate("drift seen", (start + phase.seen_at + 5, 0.57), fontsize=8, color=ALARM)
            start += len(phase.asked)

    return picture(on, "png", (10, 5.4))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("loop-out"), help="a folder, made anew")
    parser.add_argument("--requests", type=int, default=450, help="of a phase")
    given = parser.parse_args()
    torch.set_num_threads(1)
    Loop(given.out, given.requests, Console()).run()


if __name__ == "__main__":
    main()
