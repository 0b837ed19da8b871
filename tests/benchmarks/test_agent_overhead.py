"""What the agent costs on the device: a whole request beside the bare run, one decision, the queue, the start."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.unit.models_for_tests import identity
from upwell.edge import Agent
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import CloudAnswered, EdgeRan, Outcome, RouterState, Signals
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Plan
from upwell.shared.routing.scheduling.run_queue import QueuedRun, RunQueue
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.routing.scheduling.schedulability import ScheduledRun, by_deadline, late
from upwell.tools.demo.digit_data import ASSETS

ROUNDS = 3000
WARM_UP = 300
DECISIONS = 20_000
IMPORTS = 9

RULES = """
timezone: Europe/Berlin
defaults: {deadline: 100ms, large: {above: 256KiB}}
rules:
  - {name: private, match: {tags: {privacy: device}}, egress: deny}
  - {name: night, match: {hours: "22:00-06:00"}, set: {hard: {below: 0.2}}}
  - {name: big, match: {size: {above: 1MiB}}, route: cloud}
  - {name: dock, match: {tags: {camera: [dock, gate]}, model: [digits, pages]}, set: {deadline: 50ms}}
models:
  digits: {deadline: 50ms}
"""

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]


def timed_us(call: Callable[[], object]) -> float:
    begin_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin_ns) / 1e3


def summary(name: str, samples: list[float], unit: str) -> str:
    """Median and spread: the 10th and the 90th percentile."""
    tenths = statistics.quantiles(samples, n=10)
    return f"{name}: median {statistics.median(samples):.1f} {unit} (p10 {tenths[0]:.1f}, p90 {tenths[-1]:.1f})"


def test_a_request_on_the_edge_route_beside_the_bare_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = identity(tmp_path)
    config = tmp_path / "agent.yaml"
    config.write_text(f"models: {{m: {{edge: {{file: {model.name}, threads: 1}}}}}}\n")
    inputs = {"x": np.ones((1, 2), np.float32)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    bare = OnnxRuntime(model, RuntimeOptions(threads=1))
    with Agent.from_config(config) as agent, Agent.from_config(config) as plain:
        plain.core.router._router._edge_shortcuts = {}  # what `EdgeShortcut` buys: it repeats `before_edge`
        calls: dict[str, Callable[[], object]] = {
            "session.run": lambda: session.run(None, inputs),
            "OnnxRuntime.run": lambda: bare.run(inputs),
            "Agent.infer": lambda: agent.infer("m", inputs),
            "Agent.infer without the shortcut of the router": lambda: plain.infer("m", inputs),
        }
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        taken = {name: list[float]() for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                taken[name].append(timed_us(call))
    bare.close()
    added = [infer - run for infer, run in zip(taken["Agent.infer"], taken["OnnxRuntime.run"], strict=True)]
    with capsys.disabled():
        print(f"\none FP32 [1, 2] request, identity model, {ROUNDS} rounds in turn")
        for name, samples in taken.items():
            print("  " + summary(name, samples, "us"))
        medians = {name: statistics.median(samples) for name, samples in taken.items()}
        print("  " + summary("added by Agent.infer to OnnxRuntime.run (target 150 us)", added, "us"))
        print(f"  ratio to OnnxRuntime.run {medians['Agent.infer'] / medians['OnnxRuntime.run']:.2f}")
        print(f"  ratio to session.run {medians['Agent.infer'] / medians['session.run']:.2f}")


def test_one_decision_by_rules(capsys: pytest.CaptureFixture[str]) -> None:
    router, bare = Router(parse_yaml(RULES, Policy)), Router(Policy())
    past: list[Outcome] = [EdgeRan("digits", 1, 0.004), CloudAnswered("digits", 1, 4000, 0.02, 0.005)] * 64
    state, now_s = RouterState(), 1000.0
    for outcome in past:
        state = router.observe(state, outcome, now_s)
    request_facts = RequestFacts("digits", {"camera": "dock"}, 4000, 1_700_000_000.0)
    before = Signals(request_facts, (4000,), now_s)
    after = Signals(request_facts, (4000,), now_s, scored_rows=(0,), hardness=(0.1,))
    assert router.decide(state, before, now_s).plan is Plan.CASCADE
    assert router.decide(state, after, now_s).up_rows == (0,)
    calls: dict[str, Callable[[], object]] = {
        "no rules": lambda: bare.decide(state, before, now_s),
        "four rules, before the edge run": lambda: router.decide(state, before, now_s),
        "four rules, a hard row after it": lambda: router.decide(state, after, now_s),
        "observe an edge run": lambda: router.observe(state, past[0], now_s),
        "observe an answer of the cloud": lambda: router.observe(state, past[1], now_s),
    }
    taken = {name: list[float]() for name in calls}
    for _ in range(DECISIONS // len(calls)):
        for name, call in calls.items():
            taken[name].append(timed_us(call))
    with capsys.disabled():
        print("\none decision (target 20 us)")
        first = statistics.median(taken["no rules"])
        for name, samples in taken.items():
            print(f"  {summary(name, samples, 'us')}, ratio {statistics.median(samples) / first:.2f}")


class PlannedQueue(RunQueue):
    """A queue without the shortcut of a lone waiting run."""

    def _next(self, now_s: float) -> QueuedRun | None:
        return self._planned(now_s)


def meeting(queue: RunQueue) -> Callable[[], object]:
    """A run joins while another is on the device, and goes next when that leaves, as with two callers of a model."""
    run_request, now = RunRequest(run_s=0.001), 1000.0
    queue.join(QueuedRun(now + 1, run_request), now)

    def meet() -> None:
        queue.join(QueuedRun(now + 1, run_request), now)
        queue.leave(queue.running[0], now)

    return meet


def test_a_run_that_waits_for_another_and_what_the_shortcuts_of_the_queue_buy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start, job = ScheduledRun(1000.0), QueuedRun(1001.0, RunRequest(run_s=0.001))
    calls: dict[str, Callable[[], object]] = {
        "joins and goes next": meeting(RunQueue()),
        "the same by a plan of the device": meeting(PlannedQueue()),
        "what `make_room` saves if nothing waits": lambda: {id(one) for one in late(by_deadline(()), start)},
        "what `slots_due` saves without slots": lambda: (
            max(one.at_s for one in (start,)) + sum(one.run_request.known_run_s for one in (job,))
        ),
    }
    taken = {name: list[float]() for name in calls}
    for _ in range(DECISIONS):
        for name, call in calls.items():
            taken[name].append(timed_us(call))
    with capsys.disabled():
        print("\none run that waits for another")
        for name, samples in taken.items():
            print(f"  {summary(name, samples, 'us')}")


def in_a_new_process(arguments: Sequence[str], compiled: Path) -> tuple[str, str]:
    """What such an interpreter writes and logs. Modules are compiled once, as on a device, and into `compiled`."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(compiled)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout, done.stderr


AGENT = "from upwell.edge.server import agent_assembly"
STEPS = "from upwell.shared.signature import postprocess, preprocess"
IMPORTS_OF = {
    "nothing": "",
    "numpy and grpc": "import numpy, grpc",
    "an agent by itself": AGENT,
    "an agent with a model.yaml": f"{AGENT}; {STEPS}",
    "an agent with a model.yaml of pictures": f"{AGENT}; {STEPS}, picture_transforms",
    "an agent with a cloud": f"{AGENT}; from upwell.edge.uplink import uplink; "
    "from upwell.edge.observe import cloud_model_check",
}


def test_the_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measured(statement: str) -> tuple[float, int]:
        """Processor time of a new interpreter with these imports, made as an agent makes them (ms), and its modules."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        script = f"import gc, sys; gc.disable(); {statement}\nprint(len(sys.modules))"
        said, _ = in_a_new_process(["-c", script], tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime), int(said)

    modules = {name: measured(statement)[1] for name, statement in IMPORTS_OF.items()}  # which also compiles them
    taken = {name: list[float]() for name in IMPORTS_OF}
    for _ in range(IMPORTS):
        for name, samples in taken.items():
            samples.append(measured(IMPORTS_OF[name])[0])
    bare = statistics.median(taken.pop("nothing"))
    with capsys.disabled():
        print("\nprocessor time of imports (target: what an agent is made of at most twice numpy and grpc)")
        unit = statistics.median(taken["numpy and grpc"]) - bare
        for name, samples in taken.items():
            above = [one - bare for one in samples]
            ratio = statistics.median(above) / unit
            print(f"  {summary(name, above, 'ms')}, ratio {ratio:.2f}, {modules[name]} modules")


BARE_START = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {session.get_inputs()[0].name: numpy.zeros((1, 1, 8, 8), numpy.float32)})
"""
AGENT_START = """
import sys, numpy
from upwell.edge import Agent
agent = Agent.from_config(sys.argv[1])
agent.infer("digits", {"image": numpy.zeros((8, 8), numpy.uint8)})
"""


def test_the_first_answer_in_a_new_process_beside_the_bare_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, config, with_cloud = ASSETS / "edge" / "digits", tmp_path / "agent.yaml", tmp_path / "with_cloud.yaml"
    text = f"models: {{digits: {{edge: {{bundle: {bundle}, runtime: onnx, threads: 1}}, CLOUD}}}}\n"
    config.write_text(text.replace(", CLOUD", ""))
    with_cloud.write_text("cloud: {endpoint: '127.0.0.1:1'}\n" + text.replace("CLOUD", "cloud: {model: digits}"))
    timing = "import time; began = time.perf_counter(){}print(time.perf_counter() - began, flush=True)"
    scripts = {
        "bare runtime": (BARE_START, bundle / "model.onnx"),
        "numpy and grpc": ("\nimport numpy, grpc\n", config),
        "agent by itself": (AGENT_START, config),
        "agent with a cloud": (AGENT_START, with_cloud),
    }
    taken = {name: list[float]() for name in scripts}
    for number in range(IMPORTS + 1):
        for name, (script, file) in scripts.items():
            said, _ = in_a_new_process(["-c", timing.format(script), str(file)], tmp_path)
            if number:  # the first compiles
                taken[name].append(1e3 * float(said))
    with capsys.disabled():
        print("\nfrom the first import to the first answer, digits of the demo")
        first = statistics.median(taken["bare runtime"])
        for name, samples in taken.items():
            print(f"  {summary(name, samples, 'ms')}, ratio {statistics.median(samples) / first:.2f}")
