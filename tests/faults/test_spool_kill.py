"""Kill -9 in the middle: no case whose id was given out is lost, and every answer lies under its id."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.spool.harness import Cloud
from upwell.edge.spool.spooled_request import SPOOL_ID
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.grpc.server.server import start_server

ROOT = Path(__file__).parents[2]
POISON = 7


class Child:
    """The program, and what it has promised so far."""

    def __init__(self, folder: Path, address: str, first: int, last: int) -> None:
        arguments = [sys.executable, "-m", "tests.faults.spool_child", str(folder), address, str(first), str(last)]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def promises(self, count: float = float("inf")) -> dict[int, str]:
        """The next ids it gives out, by number, until there are so many or it is idle."""
        assert self.process.stdout is not None
        found: dict[int, str] = {}
        for line in self.process.stdout:
            if line == "idle\n":
                break
            if not line.endswith("\n"):
                continue  # cut short by the kill: it was said to nobody
            number, _, id = line.strip().partition(" ")
            assert id, f"the case {number} was not kept"
            found[int(number)] = id
            if len(found) >= count:
                break
        return found

    def kill(self) -> dict[int, str]:
        """Kill it; what it had promised that nobody has read yet."""
        self.process.kill()
        left = self.promises()
        self.end()
        return left

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def run(folder: Path, cases: int, kills: int) -> None:
    cloud = Cloud()
    cloud.faults[POISON] = InvalidRequest("not like this")
    server = start_server(cloud, ["127.0.0.1:0"], max_workers=4)
    dice = random.Random(kills)
    promised: dict[int, str] = {}
    try:
        for _ in range(kills):
            child = Child(folder, server.addresses[0], len(promised), cases)
            try:
                promised |= child.promises(dice.randint(cases // kills // 2, cases // kills))
                promised |= child.kill()
            finally:
                child.end()
        last = Child(folder, server.addresses[0], max(promised) + 1, cases)
        try:
            promised |= last.promises()
            assert last.process.wait(20) == 0
        finally:
            last.end()
    finally:
        server.stop(0)
    check(folder, cloud, promised, cases)


def check(folder: Path, cloud: Cloud, promised: dict[int, str], cases: int) -> None:
    assert sorted(promised) == list(range(cases))
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    found = {line["spool_id"]: line["outputs"]["fp32"]["data"] for line in lines}
    assert len(found) == len(lines), "a result is in the file twice"
    poison = promised.pop(POISON)
    assert poison not in found
    for number, id in promised.items():
        assert found[id] == [float(number)]
    # A case that was kept just as the child died was promised to nobody and may be answered too, under its own id.
    sent = {str(r.parameters[SPOOL_ID]): float(r.inputs["fp32"].flat[0]) for r in cloud.requests}
    assert all([sent[id]] == data for id, data in found.items())
    assert len(cloud.requests) >= cases


def test_no_case_is_lost_in_kills(tmp_path: Path) -> None:
    run(tmp_path, cases=100, kills=2)


@pytest.mark.slow
def test_no_case_of_a_thousand_is_lost_in_ten_kills(tmp_path: Path) -> None:
    run(tmp_path, cases=1000, kills=10)
