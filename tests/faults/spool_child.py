"""A small program that keeps cases until it is killed. Arguments: folder, the cloud's address, first and last number.

Each id that it was given is on its standard output before the next case is kept: what is there was promised.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.integration.spool.harness import ALLOWED, FAST, WAIT_S, case
from upwell.edge.spool.result_sinks import JsonlSink
from upwell.edge.spool.spool import FILE_NAME, Spool
from upwell.edge.spool.spool_drainer import CaseSender
from upwell.shared.oip.grpc.client.client import OipClient

LIMITS = replace(FAST, send_timeout_s=60.0)
"""An answer that a busy machine delays would cost its case an attempt."""


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(folder: Path, address: str, first: int, last: int) -> None:
    """Keep the cases of these numbers, and say `idle` when nothing waits any more."""
    results = folder / "results.jsonl"
    client = OipClient(address)
    spool = Spool(
        folder / FILE_NAME,
        limits=LIMITS,
        sender=CaseSender(client.infer, lambda: True, frozenset, lambda *_: True),
        sinks=[JsonlSink(results)],
    )
    for number in range(first, last):
        id = spool.put(case(number), ALLOWED, time.monotonic() + WAIT_S)
        print(number, id, flush=True)
    # Not by its counts: this process also delivers what one before it had answers to.
    while (held := spool.held()).waiting or lines(results) < held.results:
        time.sleep(0.01)
    spool.close()
    client.close()
    print("idle", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
