"""Kill -9 of `upwell agent` amid its cases: what an answer gave an id is not lost, and has its result under that id."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.faults.clouds import ScriptedCloud, good, status
from tests.faults.oracles import cloud_scores, pictures
from tests.faults.programs import Program
from tests.faults.scene import HARD_ALWAYS, until, write_agent
from upwell.edge.spool.spooled_request import SPOOL_ID
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, PendingInfer, RemoteError

POISON = "case-7"
DIGITS = 360
AT_ONCE = 4
LIMIT_S = 20.0
AGENT = {"listen": ["127.0.0.1:0"], "state_dir": "state", "spool": {"results": "results.jsonl"}}
refused = status(grpc.StatusCode.INVALID_ARGUMENT)


def behave(request: InferRequest, context: grpc.ServicerContext) -> bytes:
    """Take no live request, which speaks against nobody else's; answer what was kept, but for one."""
    return (good if SPOOL_ID in request.parameters and request.id != POISON else refused)(request, context)


@contextmanager
def agent(config: Path) -> Iterator[tuple[Program, OipClient]]:
    with Program(["agent", "-c", str(config)]) as program:
        client = OipClient(program.address())
        try:
            yield program, client
        finally:
            client.close()
            assert not [line for line in program.lines if "Traceback" in line or "ERROR" in line], program.lines


def ask(client: OipClient, number: int) -> PendingInfer:
    image = {"image": pictures([number % DIGITS])}
    return client.infer_async(InferRequest("digits", image, id=f"case-{number}"), LIMIT_S)


class Promises:
    """The ids that answers named, by the number of the case. `lost` were asked and not answered, as the agent died."""

    def __init__(self, cases: int) -> None:
        self.ids: dict[int, str] = {}
        self.lost = 0
        self._numbers = iter(range(cases))
        self._under_way: list[tuple[int, PendingInfer]] = []

    def gather(self, client: OipClient, count: int) -> None:
        """Ask for so many cases, some at once, and leave the last few under way."""
        wanted = len(self.ids) + count
        while len(self.ids) < wanted:
            while len(self._under_way) < AT_ONCE and (number := next(self._numbers, None)) is not None:
                self._under_way.append((number, ask(client, number)))
            if not self._under_way:
                return
            self._take(*self._under_way.pop(0))

    def settle(self) -> None:
        """Take the answers that were under way; after a kill those of which none came are nobody's promise."""
        for number, call in self._under_way:
            try:
                self._take(number, call)
            except RemoteError:
                self.lost += 1
        self._under_way = []

    def _take(self, number: int, call: PendingInfer) -> None:
        facts = call.result(LIMIT_S).parameters
        assert facts["upwell.degraded"] is True
        if SPOOL_ID in facts:  # a disk that is too slow for the deadline promises nothing
            self.ids[number] = str(facts[SPOOL_ID])


def run(folder: Path, cases: int, kills: int) -> None:
    dice = random.Random(kills)
    promises = Promises(cases)
    with ScriptedCloud() as cloud:
        cloud.behaviour = behave
        policy = {"defaults": {**HARD_ALWAYS, "deadline": "2s", "spool": True}}
        config = write_agent(folder, policy, cloud.address, agent=AGENT)
        for kill in range(kills):
            with agent(config) as (program, client):
                promises.gather(client, cases // kills)
                if kill % 2:  # else in the middle of keeping
                    promises.settle()
                    drain_some(cloud, dice.randint(1, cases // kills // 4))
                program.send(signal.SIGKILL)
                program.wait()
                promises.settle()
        with agent(config) as (program, client):
            promises.gather(client, cases)
            promises.settle()
            wanted = {id for number, id in promises.ids.items() if f"case-{number}" != POISON}
            wait_for_results(folder, wanted)
            program.send(signal.SIGTERM)
            assert program.wait() == 0
    check(folder, config, cloud, promises, cases)


def wait_for_results(folder: Path, wanted: set[str]) -> None:
    """As long as the machine takes, if only results still come."""
    missing = len(wanted)

    def fewer() -> bool:
        return len(wanted - set(results(folder))) < missing

    while missing:
        until(fewer, LIMIT_S, pace_s=0.1)
        missing = len(wanted - set(results(folder)))


def drain_some(cloud: ScriptedCloud, count: int) -> None:
    """Wait until so many more cases have gone up."""
    before = len(cloud.requests)
    until(lambda: len(cloud.requests) >= before + count, LIMIT_S)


def results(folder: Path) -> dict[str, list[float]]:
    path = folder / "results.jsonl"
    whole = (
        [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    )
    found = [json.loads(line) for line in whole]
    assert len({one["spool_id"] for one in found}) == len(found), "a result is in the file twice"
    return {one["spool_id"]: one["outputs"]["scores"]["data"] for one in found}


def check(folder: Path, config: Path, cloud: ScriptedCloud, promises: Promises, cases: int) -> None:
    assert len(promises.ids) + promises.lost >= cases * 0.98
    assert promises.lost <= cases * 0.05
    assert len(set(promises.ids.values())) == len(promises.ids)
    found = results(folder)
    for number, id in promises.ids.items():
        if f"case-{number}" != POISON:
            want = cloud_scores(pictures([number % DIGITS]))
            np.testing.assert_allclose(np.reshape(found[id], (1, 10)), want, atol=1e-5)
    sent = {str(one.parameters[SPOOL_ID]): one.id for one in cloud.requests if SPOOL_ID in one.parameters}
    assert all(sent[id] == f"case-{number}" for number, id in promises.ids.items())
    command = [str(Path(sys.executable).with_name("upwell")), "spool", "list", "-c", str(config), "--json"]
    listed = subprocess.run(command, capture_output=True, check=True)
    states = {item["request_id"]: item["state"] for item in json.loads(listed.stdout)["items"]}
    assert states.pop(POISON) == "poisoned"
    assert set(states.values()) == {"done"}


@pytest.mark.slow
def test_kills_amid_cases_lose_none(tmp_path: Path) -> None:
    run(tmp_path, cases=90, kills=3)


@pytest.mark.slow
def test_ten_kills_amid_a_thousand_cases_lose_none(tmp_path: Path) -> None:
    run(tmp_path, cases=1000, kills=10)
