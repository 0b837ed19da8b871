"""The promise over many requests: real service and agent processes, a link over TLS, and one fault after the other.

A steady stream of requests (open loop: each is sent at its time, whatever became of the others) goes to `upwell agent`,
whose cloud, `upwell serve` behind a proxy, is killed, frozen, slow and garbled in turn. Each fault begins once the
cloud answers and ends after its share of the time; then the stream goes on until the cloud answers again.

    python tests/faults/soak.py [--requests 1000] [--rate 20] [--deadline-ms 1000] [--plan cascade] [--fault killed]
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.ballast import heavy_bundle
from tests.faults.certificates import Authority
from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, cloud_scores, edge_scores, pictures
from tests.faults.programs import Program
from tests.faults.proxy import Proxy
from tests.faults.scene import write_agent
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, PendingInfer, RemoteError

POLICY_DEADLINE_S = 0.1
LATE_S = 0.11
RECOVERY_S = 5.0
DIGITS = 50
SHORTEST_S = 1.0
"""A fault lasts as long at least: the breaker has opened by then and probed in vain."""
FAULTS = ("killed", "frozen", "slow", "garbling")


@dataclass
class Sent:
    """One request and what became of it; times are instants of the monotonic clock."""

    digit: int
    due_s: float
    ended_s: float = math.nan
    route: str = ""
    reason: str = ""
    error: str = ""
    right: bool = True

    @property
    def took_s(self) -> float:
        """As the caller sees it, from when the request was due to be sent."""
        return self.ended_s - self.due_s


@dataclass
class Report:
    """What came out. `from_the_dead` counts answers that a cloud gave after it had gone and before it was back."""

    requests: int = 0
    answered: int = 0
    late: int = 0
    wrong: int = 0
    from_the_dead: int = 0
    from_cloud: int = 0
    p50_ms: float = math.nan
    p99_ms: float = math.nan
    worst_ms: float = math.nan
    recovery_s: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def shortcomings(self, deadline_ms: float, late_share: float = 0.01) -> list[str]:
        """What is not as promised; empty if all is well."""
        needed = self.requests if deadline_ms > LATE_S * 1e3 else math.ceil(0.99 * self.requests)
        found = {
            f"{self.answered} of {self.requests} answered, expected {needed}": self.answered < needed,
            f"{self.late} late, expected at most {late_share:.0%}": self.late > late_share * self.requests,
            f"{self.wrong} answers are neither the device's nor the cloud's": self.wrong > 0,
            f"{self.from_the_dead} answers from a cloud that was gone": self.from_the_dead > 0,
            f"recovery took {self.recovery_s}": any(not one <= RECOVERY_S for one in self.recovery_s.values()),
            "the cloud never answered": self.from_cloud == 0,
        }
        return [text for text, is_so in found.items() if is_so]


class Caller:
    """Sends digits at a steady rate until it is told that enough is enough and `at_least` have been sent."""

    def __init__(self, address: str, rate: float, timeout_s: float, at_least: int) -> None:
        self._client = OipClient(address)
        self._rate, self._timeout_s, self._at_least = rate, timeout_s, at_least
        self._images = [pictures([digit]) for digit in range(DIGITS)]
        self._truth = {"edge": edge_scores(pictures(range(DIGITS))), "cloud": cloud_scores(pictures(range(DIGITS)))}
        self._enough = threading.Event()
        self._news = threading.Condition()
        self._open = 0
        self.sent: list[Sent] = []
        self._thread = threading.Thread(target=self._send_all)
        self._thread.start()

    def wait_for_cloud(self, since_s: float, timeout_s: float) -> float:
        """Seconds from `since_s` to the first answer of the cloud to a request that was due after it; or infinity."""

        def first() -> Sent | None:
            return next((one for one in self.sent if one.route == "cloud" and one.due_s > since_s), None)

        with self._news:
            self._news.wait_for(lambda: first() is not None, timeout_s)
            found = first()
        return math.inf if found is None else found.ended_s - since_s

    def finish(self) -> list[Sent]:
        """All requests, once the last has ended."""
        self._enough.set()
        self._thread.join()
        with self._news:
            self._news.wait_for(lambda: self._open == 0)
        self._client.close()
        return self.sent

    def _send_all(self) -> None:
        start_s = time.monotonic()
        number = 0
        while not (self._enough.is_set() and number >= self._at_least):
            due_s = start_s + number / self._rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._send(Sent(number % DIGITS, due_s))
            number += 1

    def _send(self, one: Sent) -> None:
        with self._news:
            self.sent.append(one)
            self._open += 1
        request = InferRequest("digits", {"image": self._images[one.digit]})
        self._client.infer_async(request, self._timeout_s).add_done_callback(lambda call: self._note(one, call))

    def _note(self, one: Sent, call: PendingInfer) -> None:
        one.ended_s = time.monotonic()
        with self._news:
            try:
                answer = call.result()
            except RemoteError as error:
                one.error = str(error)
            else:
                one.route, one.reason = (str(answer.parameters[f"upwell.{fact}"]) for fact in ("route", "reason"))
                one.right = bool(np.allclose(answer.outputs["scores"][0], self._truth[one.route][one.digit], atol=1e-4))
            self._open -= 1
            self._news.notify_all()


class Cloud:
    """`upwell serve` over TLS, and the proxy before it."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        pair = authority.sign("cloud")
        self.ca = authority.ca
        self._tls = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
        self._program = self._start("127.0.0.1:0")
        self._address = self._program.address()
        self.proxy = Proxy(self._address)

    def fault(self, kind: str) -> Callable[[], None]:
        """Bring it about; the function returned ends it, and returns when the cloud could answer again."""
        if kind == "killed":
            self._program.end()
            return self._restart
        if kind == "frozen":
            self._program.send(signal.SIGSTOP)
            return lambda: self._program.send(signal.SIGCONT)
        if kind == "slow":
            self.proxy.down.delay(1.0)
        else:
            self.proxy.down.garble(mask=0x10)
        return self.proxy.restore

    def close(self) -> None:
        """End process and proxy."""
        self.proxy.close()
        self._program.end()

    def _restart(self) -> None:
        self._program = self._start(self._address)
        self._program.address()

    def _start(self, listen: str) -> Program:
        return Program(["serve", "--models", str(CLOUD_MODELS), "--listen", listen, *self._tls])


@contextmanager
def everything(folder: Path, plan: str) -> Iterator[tuple[Cloud, str]]:
    """Cloud and agent; gives the agent's address."""
    defaults = {"deadline": f"{POLICY_DEADLINE_S}s", "hard": {"measure": "max_prob", "below": 1.0}}
    rules = [{"name": "up", "match": {}, "route": "cloud"}] if plan == "direct" else []
    cloud = Cloud(folder)
    try:
        section = {"endpoint": cloud.proxy.address, "tls": {"ca": str(cloud.ca)}}
        policy = {"defaults": defaults, "rules": rules}
        models = {"digits": {"edge": {"bundle": str(heavy_bundle(folder))}, "cloud": {"model": CLOUD_MODEL}}}
        path = write_agent(folder, policy, section, models, agent={"listen": ["127.0.0.1:0"]})
        with Program(["agent", "-c", str(path)]) as agent:
            yield cloud, agent.address()
    finally:
        cloud.close()


def soak(
    requests: int, rate: float, deadline_ms: float, plan: str = "cascade", faults: Sequence[str] = FAULTS
) -> Report:
    """Run it; each fault lasts its share of the time, less what recovering may take."""
    fault_s = max(SHORTEST_S, requests / rate / len(faults) - 4.0)
    report = Report()
    outages: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder, everything(Path(folder), plan) as (cloud, address):
        caller = Caller(address, rate, deadline_ms / 1e3, requests)
        try:
            for kind in faults:
                assert caller.wait_for_cloud(time.monotonic(), 2 * RECOVERY_S) < math.inf, "no answer from the cloud"
                heal = cloud.fault(kind)
                gone_s = time.monotonic()
                time.sleep(fault_s)
                outages.append((gone_s, time.monotonic()))
                heal()
                report.recovery_s[kind] = round(caller.wait_for_cloud(time.monotonic(), 2 * RECOVERY_S), 3)
        finally:
            sent = caller.finish()
    return summed_up(report, sent, outages)


def summed_up(report: Report, sent: list[Sent], outages: list[tuple[float, float]]) -> Report:
    """The report with everything counted."""
    took_ms = [one.took_s * 1e3 for one in sent if not one.error]
    report.requests = len(sent)
    report.answered = len(took_ms)
    report.late = sum(one.took_s > LATE_S for one in sent)
    report.wrong = sum(not one.right for one in sent)
    report.from_cloud = sum(one.route == "cloud" for one in sent)
    report.from_the_dead = sum(
        one.route == "cloud" and any(gone_s < one.due_s and one.ended_s < back_s for gone_s, back_s in outages)
        for one in sent
    )
    report.p50_ms, report.p99_ms, report.worst_ms = (
        round(float(value), 1) for value in np.percentile(took_ms, (50, 99, 100))
    )
    report.reasons = dict(Counter(one.reason for one in sent if one.reason).most_common())
    report.errors = dict(Counter(one.error for one in sent if one.error).most_common())
    return report


def main() -> int:
    """Run it as told on the command line, print the report, and say what is not as promised."""
    parser = argparse.ArgumentParser(description="The promise over many requests.")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0, help="per second")
    parser.add_argument("--deadline-ms", type=float, default=1000.0, help="of each call to the agent")
    parser.add_argument("--plan", choices=["cascade", "direct"], default="cascade")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one; may be repeated")
    given = parser.parse_args()
    report = soak(given.requests, given.rate, given.deadline_ms, given.plan, given.fault or FAULTS)
    print(json.dumps(asdict(report), indent=2))
    shortcomings = report.shortcomings(given.deadline_ms)
    for text in shortcomings:
        print(f"not as promised: {text}", file=sys.stderr)
    return 1 if shortcomings else 0


if __name__ == "__main__":
    sys.exit(main())
