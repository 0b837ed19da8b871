"""A device with two network interfaces and a server beyond both, in network namespaces of their own (needs root).

As a program it is the device: `unshare --net python -m tests.faults.two_links grpc|http FOLDER` asks its agent in one
situation after another, and prints as JSON what came of that. With `far` as its only argument it is the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.faults.clouds import ScriptedCloud
from tests.faults.http_clouds import ScriptedHttpCloud
from tests.faults.oracles import pictures
from tests.faults.scene import Ask, in_process, write_agent
from upwell.edge.server.agent_assembly import embedded_agent

SERVER = "10.9.0.1"
NAMES = ("wlan0", "wwan0")
DEADLINE_S = 0.4
LARGE_ROWS = 100
SLOW = ("tbf", "rate", "100kbit", "burst", "4kb", "latency", "2s")
"""A rate that carries one picture in time, and not a large request."""
RETURN_S = 5.0
REQUEST_BYTES = 250
"""Fewer than a request sends, and more than what asks whether a link is back."""


@dataclass(frozen=True)
class Came:
    """What came of requests: how many the cloud answered, the longest time, the bytes that left by each interface."""

    asked: int
    answered_up: int
    longest_s: float
    sent_bytes: tuple[int, ...]


def ip(*words: str) -> None:
    """Run `ip`; it must succeed."""
    subprocess.run(["ip", *words], check=True)


def serve() -> None:
    """The server's side, until its standard input ends."""
    sys.stdin.readline()  # the links are there
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{SERVER}/32", "dev", "lo")
    for number in range(len(NAMES)):
        ip("address", "add", f"10.{number}.0.1/24", "dev", f"far{number}")
        ip("link", "set", f"far{number}", "up")
    with ScriptedCloud(host=SERVER) as by_grpc, ScriptedHttpCloud(host=SERVER) as by_http:
        print(json.dumps({"grpc": by_grpc.address, "http": f"http://{SERVER}:{by_http.port}"}), flush=True)
        sys.stdin.readline()


def join(far: subprocess.Popen[str]) -> dict[str, str]:
    """Make both links to the server; where it listens."""
    assert far.stdin is not None
    assert far.stdout is not None
    ip("link", "set", "lo", "up")
    for number, name in enumerate(NAMES):
        ip("link", "add", name, "type", "veth", "peer", "name", f"far{number}", "netns", str(far.pid))
        ip("address", "add", f"10.{number}.0.2/24", "dev", name)
        raise_link(number)
    print(file=far.stdin, flush=True)
    found: dict[str, str] = json.loads(far.stdout.readline())
    return found


def raise_link(number: int) -> None:
    """Switch an interface on, with its way to the server."""
    ip("link", "set", NAMES[number], "up")
    ip("route", "add", SERVER, "via", f"10.{number}.0.1", "dev", NAMES[number], "metric", str(number + 1))


def sent_bytes() -> list[int]:
    """What left by each interface so far."""
    lines = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()]
    found = {words[0].rstrip(":"): int(words[9]) for words in lines[2:]}
    return [found[name] for name in NAMES]


def asked(ask: Ask, times: int, rows: int, pause_s: float = 0.05) -> Came:
    """Ask so many times, one after the other."""
    before, images = sent_bytes(), pictures(range(rows))
    seen = []
    for _ in range(times):
        seen.append(ask(images))
        time.sleep(pause_s)
    sent = tuple(now - then for now, then in zip(sent_bytes(), before, strict=True))
    return Came(times, sum(one.route == "cloud" for one in seen), max(one.took_s for one in seen), sent)


def device(kind: str, folder: Path) -> dict[str, Came]:
    """The device's side: what came of each situation."""
    policy = {
        "defaults": {"deadline": f"{DEADLINE_S}s", "prices": {"interfaces": {"wlan0": 0, "wwan0": 4}}},
        "rules": [{"name": "up", "match": {}, "route": "cloud"}],
    }
    with ExitStack() as stack:
        words = ["unshare", "--net", sys.executable, "-m", "tests.faults.two_links", "far"]
        far = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stack.callback(far.terminate)
        section = {"endpoint": join(far)[kind], "interfaces": list(NAMES), "insecure": True}
        agent = stack.enter_context(embedded_agent(write_agent(folder, policy, section)))
        ask = in_process(agent)
        asked(ask, 10, LARGE_ROWS)
        came = {"warm": asked(ask, 10, 1), "both are well": asked(ask, 10, LARGE_ROWS)}
        subprocess.run(["tc", "qdisc", "add", "dev", "wlan0", "root", *SLOW], check=True)
        asked(ask, 20, LARGE_ROWS)
        asked(ask, 5, 1)
        came["the first is slow, large"] = asked(ask, 10, LARGE_ROWS)
        came["the first is slow, small"] = asked(ask, 10, 1)
        subprocess.run(["tc", "qdisc", "delete", "dev", "wlan0", "root"], check=True)
        ip("link", "set", "wlan0", "down")
        asked(ask, 15, 1)
        came["the first is gone"] = asked(ask, 10, 1)
        raise_link(0)
        began_s = time.monotonic()
        while time.monotonic() < began_s + RETURN_S:
            first, second = asked(ask, 1, 1).sent_bytes
            if first > REQUEST_BYTES > second:
                break
        back_s = time.monotonic() - began_s
        came["the first is back"] = replace(asked(ask, 10, 1), longest_s=back_s)
        for name in NAMES:
            ip("link", "set", name, "down")
        came["both are gone"] = asked(ask, 20, 1)
    return came


if __name__ == "__main__":
    if sys.argv[1] == "far":
        serve()
    else:
        print(json.dumps({name: asdict(one) for name, one in device(sys.argv[1], Path(sys.argv[2])).items()}))
