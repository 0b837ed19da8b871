"""An agent for a long time while everything around it changes: the link flaps, the policy is replaced each second,
tokens rotate and the collector of traces dies. No request fails, none is late, nothing private leaves, nothing grows.

The agent is a process of its own, so that what it takes is read from /proc.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import picture
from tests.faults.proxy import Proxy
from tests.faults.scene import write_agent
from tests.integration.agent.harness import agent_process
from tests.integration.telemetry.collector import Collector
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, PendingInfer, RemoteError

pytestmark = pytest.mark.alone

DEADLINE_S = 0.25
SLACK_S = 0.15
"""What the caller, the proxy and the cloud of this test, all in one process, may add on a busy machine."""
MARK = b"only-for-the-device"
DIGITS = 50
RULES = [{"name": "private", "match": {"unless_tags": {"privacy": "public"}}, "egress": "deny"}]


@dataclass
class Taken:
    """What the agent's process took at one moment."""

    resident_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Taken:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tasks, descriptors = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("task", "fd"))
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), tasks, descriptors)


@dataclass
class Load:
    """Requests at a steady rate, each sent at its time whatever became of the others; every fifth is private."""

    client: OipClient
    rate: float
    errors: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    sent: int = 0
    _open: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)

    def run(self, seconds: float) -> None:
        images = [(picture(digit), picture(digit) + MARK) for digit in range(DIGITS)]
        start_s = time.monotonic()
        for number in range(int(seconds * self.rate)):
            due_s = start_s + number / self.rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            private = number % 5 == 0
            image = np.array([images[number % DIGITS][private]], dtype=object)
            tags = {} if private else {"upwell.tag.privacy": "public"}
            with self._news:
                self._open += 1
            self.sent += 1
            request = InferRequest("digits", {"image": image}, parameters=dict(tags))
            self._begin(request, due_s, private)
        with self._news:
            assert self._news.wait_for(lambda: self._open == 0, 30.0)

    def _begin(self, request: InferRequest, due_s: float, private: bool) -> None:
        try:
            call = self.client.infer_async(request, 5.0)
        except RemoteError as error:
            self._note(due_s, str(error), "")
            return
        call.add_done_callback(lambda ended: self._end(ended, due_s, private))

    def _end(self, call: PendingInfer, due_s: float, private: bool) -> None:
        try:
            answer = call.result()
        except RemoteError as error:
            self._note(due_s, str(error), "")
            return
        route = str(answer.parameters["upwell.route"])
        self._note(due_s, "a private request was answered by the cloud" if private and route != "edge" else "", route)

    def _note(self, due_s: float, error: str, route: str) -> None:
        with self._news:
            self.took_s.append(time.monotonic() - due_s)
            if error:
                self.errors[error[:120]] += 1
            else:
                self.routes[route] += 1
            self._open -= 1
            self._news.notify_all()


def put(path: Path, content: str) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(content)
    os.replace(draft, path)


def policy(below: float) -> dict[str, object]:
    hard = {"measure": "max_prob", "below": below}
    return {"defaults": {"deadline": f"{round(DEADLINE_S * 1e3)}ms", "hard": hard}, "rules": RULES}


class Changes(threading.Thread):
    """Everything that changes around the agent, each at its own pace, until it is told to end."""

    def __init__(self, folder: Path, proxy: Proxy, collector: Collector) -> None:
        super().__init__(daemon=True)
        self._folder, self._proxy, self._collector = folder, proxy, collector
        self._ending = threading.Event()
        self.failure: BaseException | None = None
        self.policies = self.tokens = self.faults = 0
        self._names = (f"token-{number}" for number in itertools.count(1))
        self.token = next(self._names)
        self.let_in(self.token)
        (folder / "token").write_text(self.token)

    def let_in(self, *names: str) -> None:
        entries = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]
        put(self._folder / "tokens.yaml", json.dumps({"version": 1, "tokens": entries}))

    def run(self) -> None:
        try:
            for second in itertools.count():
                if self._ending.wait(1.0):
                    return
                put(self._folder / "policy.yaml", json.dumps({"version": 1, **policy(0.9 if second % 2 else 0.95)}))
                self.policies += 1
                self._link(second)
                self._rotate(second)
                if second % 10 == 5:
                    self._collector.status = 503 if second % 20 == 5 else 200
        except BaseException as error:  # noqa: BLE001  told by the test
            self.failure = error

    def _link(self, second: int) -> None:
        faults: Sequence[Callable[[], None]] = (
            self._proxy.cut, self._proxy.refuse, self._proxy.blackhole, lambda: self._proxy.down.delay(0.5),
        )  # fmt: skip
        if second % 4 == 0:
            faults[second // 4 % len(faults)]()
            self.faults += 1
        elif second % 4 == 2:
            self._proxy.restore()

    def _rotate(self, second: int) -> None:
        """New and old are let in, then the client changes, then the old one goes: none that is valid is refused."""
        step = second % 9
        if step == 0:
            self._next = next(self._names)
            self.let_in(self.token, self._next)
        elif step == 3:
            put(self._folder / "token", self._next)
        elif step == 8:
            self.token = self._next
            self.let_in(self.token)
            self.tokens += 1

    def end(self) -> None:
        self._ending.set()
        self.join(10.0)
        self._proxy.restore()
        if self.failure is not None:
            raise self.failure


def soak(folder: Path, seconds: float, rate: float) -> tuple[Load, list[Taken], Changes]:
    """The load, what the agent took each second, and what was changed; fails where a private request left."""
    collector = Collector()
    with ScriptedCloud() as cloud, Proxy(cloud.address, record=True) as proxy:
        changes = Changes(folder, proxy, collector)
        section = {
            "listen": ["127.0.0.1:0"], "state_dir": str(folder / "state"), "tokens": "tokens.yaml",
            "traces": {"endpoint": collector.endpoint, "sample": "20%"}, "metrics": "127.0.0.1:0",
        }  # fmt: skip
        path = write_agent(folder, policy(0.9), cloud.endpoint(proxy.address), agent=section)
        taken: list[Taken] = []
        ended = threading.Event()
        with agent_process(path) as running:
            client = OipClient(running.addresses[0], ClientSecurity(token_file=folder / "token"))
            load = Load(client, rate)

            def measure() -> None:
                while not ended.wait(1.0):
                    taken.append(Taken.of(running.program.pid))

            measuring = threading.Thread(target=measure)
            measuring.start()
            changes.start()
            try:
                load.run(seconds)
            finally:
                ended.set()
                measuring.join()
                changes.end()
                client.close()
        assert proxy.up.record is not None
        assert MARK not in proxy.up.record, "a request that may not leave did"
    collector.close()
    return load, taken, changes


def growth(values: Sequence[float]) -> float:
    """How much more it is in the last third than in the middle one, by medians."""
    third = len(values) // 3
    return statistics.median(values[2 * third :]) - statistics.median(values[third : 2 * third])


def check(load: Load, taken: Sequence[Taken], changes: Changes) -> None:
    late = [took_s for took_s in load.took_s if took_s > DEADLINE_S + SLACK_S]
    print(
        f"\n{load.sent} requests, {dict(load.routes)}, late {len(late)}, worst {max(load.took_s) * 1e3:.0f} ms, "
        f"p99 {np.quantile(load.took_s, 0.99) * 1e3:.0f} ms; {changes.policies} policies, {changes.faults} faults, "
        f"{changes.tokens} rotations; memory {taken[len(taken) // 3].resident_bytes >> 20} to "
        f"{taken[-1].resident_bytes >> 20} MiB, threads {taken[len(taken) // 3].threads} to {taken[-1].threads}, "
        f"descriptors {taken[len(taken) // 3].descriptors} to {taken[-1].descriptors}"
    )
    assert load.errors == {}
    assert sum(load.routes.values()) == load.sent
    assert load.routes["cloud"] > 0
    assert len(late) <= 0.005 * load.sent  # this process stands still now and then; the agent's own is in the answers
    assert abs(growth([one.threads for one in taken])) <= 8
    assert abs(growth([one.descriptors for one in taken])) <= 8


@pytest.mark.slow
def test_nothing_fails_while_everything_changes(tmp_path: Path) -> None:
    load, taken, changes = soak(tmp_path, 20.0, 60.0)
    check(load, taken, changes)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_minutes(tmp_path: Path) -> None:
    """From the middle third to the last 40,000 requests pass: 200 bytes for each would be 8 MB."""
    load, taken, changes = soak(tmp_path, 600.0, 200.0)
    check(load, taken, changes)
    assert growth([one.resident_bytes for one in taken]) < 8e6
