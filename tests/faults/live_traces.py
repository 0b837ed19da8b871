"""The promise on recorded links: real service and agent processes, and between them a link paced by a packet trace.

A steady stream of pictures of 20 to 200 kB goes to `upwell agent`; its cloud is `upwell serve` behind a `TraceLink`.

    python tests/faults/live_traces.py TRACE.up [TRACE.up ...] [--seconds 140] [--rate 5]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.ballast import heavy_bundle
from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, picture
from tests.faults.programs import Program
from tests.faults.scene import write_agent
from tests.faults.trace_link import Trace, TraceLink
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, PendingInfer, RemoteError
from upwell.shared.routing.estimators.circuit_breaker import Breaker

DEADLINE_S = 0.3
LATE_S = DEADLINE_S + 0.010
CALLERS_PATIENCE_S = 2.0
RTT_S = 0.06
OUTAGE_S = 1.0
RECOVERY_S = 5.0
UNTIL_OPEN = 10
SHORTEST_COOL_DOWN_S = 0.5
TRIES = frozenset({"cloud_deadline", "cloud_unavailable", "cloud_error", "cloud_garbage"})
"""Reasons that say that the cloud was asked in vain."""


@dataclass
class Sent:
    """One request and what became of it; times are seconds since the link's trace began."""

    due_s: float
    size_bytes: int
    began_s: float
    ended_s: float = math.nan
    route: str = ""
    reason: str = ""
    error: str = ""


@dataclass
class Report:
    """What came out of one trace. `vain_before_open` and `vain_per_cool_down` are the worst of all outages."""

    trace: str
    requests: int = 0
    answered: int = 0
    late: int = 0
    late_share: float = 0.0
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    worst_ms: float = math.nan
    cloud_share: float = 0.0
    outages: int = 0
    recovery_s: list[float] = field(default_factory=list)
    vain_before_open: int = 0
    vain_per_cool_down: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def shortcomings(self, late_share: float = 0.01) -> list[str]:
        """What is not as promised; empty if all is well."""
        found = {
            f"{self.answered} of {self.requests} answered": self.answered < self.requests,
            f"{self.late_share:.1%} later than {LATE_S * 1e3:.0f} ms": self.late_share > late_share,
            f"recovery took {self.recovery_s} s": any(one > RECOVERY_S for one in self.recovery_s),
            f"{self.vain_before_open} calls in vain before the breaker opened": self.vain_before_open > UNTIL_OPEN,
            f"{self.vain_per_cool_down} probes in one cool-down": self.vain_per_cool_down > 1,
            "the cloud never answered": self.cloud_share == 0,
        }
        return [text for text, is_so in found.items() if is_so]


def pictures_of(sizes_bytes: list[int]) -> list[bytes]:
    """Digits as PNG, each made as long as told by bytes behind its end, which readers of PNG pass over."""
    random = np.random.default_rng(1)
    digits = [picture(index % 500) for index in range(len(sizes_bytes))]
    return [png + random.bytes(max(0, size - len(png))) for png, size in zip(digits, sizes_bytes, strict=True)]


def drive(address: str, link: TraceLink, seconds: float, rate: float) -> list[Sent]:
    """Send at a steady rate, open loop; all requests once the last has ended."""
    client = OipClient(address)
    clock = link._loop.time
    random = np.random.default_rng(7)
    sizes = [int(size) for size in random.uniform(20e3, 200e3, int(seconds * rate))]
    bodies = pictures_of(sizes)
    ended = threading.Semaphore(0)
    sent: list[Sent] = []

    def note(one: Sent, call: PendingInfer) -> None:
        one.ended_s = clock() - link.started_s
        try:
            facts = call.result().parameters
            one.route, one.reason = str(facts["upwell.route"]), str(facts["upwell.reason"])
        except RemoteError as error:
            one.error = str(error)
        ended.release()

    start_s = clock()
    for number, (size, body) in enumerate(zip(sizes, bodies, strict=True)):
        due_s = start_s + number / rate
        time.sleep(max(0.0, due_s - clock()))
        one = Sent(due_s - link.started_s, size, clock() - link.started_s)
        sent.append(one)
        row = np.empty(1, dtype=np.object_)
        row[0] = body
        call = client.infer_async(InferRequest("digits", {"image": row}), CALLERS_PATIENCE_S)
        call.add_done_callback(lambda done, one=one: note(one, done))  # type: ignore[misc]  # a default binds it
    for _ in sent:
        ended.acquire()
    client.close()
    return sent


def run(path: Path, seconds: float, rate: float) -> Report:
    """One trace, with service and agent of its own."""
    trace = Trace.read(path)
    policy = {"defaults": {"deadline": f"{DEADLINE_S}s", "hard": {"measure": "max_prob", "below": 1.0}}}
    with (
        tempfile.TemporaryDirectory() as folder,
        Program(["serve", "--models", str(CLOUD_MODELS), "--listen", "127.0.0.1:0"]) as cloud,
    ):
        target = cloud.address()
        with TraceLink(target, trace, RTT_S) as link:
            bundle = heavy_bundle(Path(folder))
            models = {"digits": {"edge": {"bundle": str(bundle)}, "cloud": {"model": CLOUD_MODEL}}}
            config = write_agent(Path(folder), policy, link.address, models, agent={"listen": ["127.0.0.1:0"]})
            with Program(["agent", "-c", str(config)]) as agent:
                sent = drive(agent.address(), link, seconds, rate)
    return summed_up(path.name, sent, trace)


def summed_up(name: str, sent: list[Sent], trace: Trace) -> Report:
    """The report with everything counted."""
    took_ms = [(one.ended_s - one.due_s) * 1e3 for one in sent if not one.error]
    report = Report(name, len(sent), len(took_ms))
    report.late = sum(ms > LATE_S * 1e3 for ms in took_ms)
    report.late_share = report.late / len(sent)
    report.p50_ms, report.p99_ms, report.worst_ms = (
        round(float(value), 1) for value in np.percentile(took_ms, (50, 99, 100))
    )
    report.cloud_share = round(sum(one.route == "cloud" for one in sent) / len(sent), 3)
    report.reasons = dict(Counter(one.reason for one in sent if one.reason).most_common())
    report.errors = dict(Counter(one.error for one in sent if one.error).most_common())
    for start_s, end_s in trace.outages(sent[-1].due_s, OUTAGE_S):
        _judge_outage(report, sent, trace, start_s, end_s)
    return report


def _judge_outage(report: Report, sent: list[Sent], trace: Trace, start_s: float, end_s: float) -> None:
    """Recovery counts from the first request after the outage that alone on the link would have been in time."""
    within = [one for one in sent if start_s <= one.due_s and one.due_s + DEADLINE_S < end_s]
    after = [one for one in sent if one.due_s >= end_s]
    possible = next((one for one in after if _could(one, trace)), None)
    first = next((one for one in after if one.route == "cloud"), None)
    report.outages += 1
    if possible is not None and sent[-1].due_s > possible.due_s + RECOVERY_S:
        report.recovery_s.append(round(math.inf if first is None else first.due_s - possible.due_s, 2))
    opened = next((index for index, one in enumerate(within) if one.reason == "breaker_open"), len(within))
    report.vain_before_open = max(report.vain_before_open, sum(one.reason in TRIES for one in within[:opened]))
    asked = [one for one in within if one.reason in TRIES]
    # The breaker lets a message pass that is half as large as the smallest that was in vain: those find out something.
    tries = [
        one.began_s
        for one in within[opened:]
        if one.reason in TRIES
        and one.size_bytes * Breaker.SMALLER
        > min((past.size_bytes for past in asked if past.ended_s <= one.began_s), default=0)
    ]
    for at_s in tries:
        many = sum(at_s <= other < at_s + SHORTEST_COOL_DOWN_S for other in tries)
        report.vain_per_cool_down = max(report.vain_per_cool_down, many)


def _could(one: Sent, trace: Trace) -> bool:
    slack_s = 0.05  # reserve, edge run and compute
    return trace.leaves_by(one.due_s, one.size_bytes, one.due_s + DEADLINE_S - RTT_S - slack_s)


def main() -> int:
    """Run it as told on the command line, print one report for each trace, and say what is not as promised."""
    parser = argparse.ArgumentParser(description="The promise on recorded links.")
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--rate", type=float, default=5.0, help="per second")
    given = parser.parse_args()
    reports = [run(path, given.seconds, given.rate) for path in given.traces]
    print(json.dumps([asdict(report) for report in reports], indent=2))
    shortcomings = [f"{report.trace}: {text}" for report in reports for text in report.shortcomings()]
    for text in shortcomings:
        print(f"not as promised: {text}", file=sys.stderr)
    return 1 if shortcomings else 0


if __name__ == "__main__":
    sys.exit(main())
