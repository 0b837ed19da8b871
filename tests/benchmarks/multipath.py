"""Multipath TCP beside a choice of interface for each message: times of single messages over two links.

Needs root and Linux with MPTCP: `unshare --net python -m tests.benchmarks.multipath`. Each link is a pair of veth with
a token bucket; the rates in kbit/s are those of `wlan0`, which routes prefer, and of `wwan0`. Every kind keeps one
connection, as the agent does, and they take turns.
"""

from __future__ import annotations

import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

MPTCP = 262  # socket.IPPROTO_MPTCP, which Python has no name for before 3.13
SERVER, NAMES = "10.9.0.1", ("wlan0", "wwan0")
PORTS = {socket.IPPROTO_TCP: 7000, MPTCP: 7001}
RATES_KBIT = ((1000, 1000), (200, 1000), (1000, 200), (2000, 400))
SIZES_BYTES = (5_000, 20_000, 100_000)
ROUNDS = 7


def run(*words: str) -> None:
    """Run a program; it must succeed."""
    subprocess.run(words, check=True)


def receive(connection: socket.socket, size_bytes: int) -> None:
    """Read exactly so many bytes. Raises `EOFError`."""
    while size_bytes:
        part = connection.recv(min(size_bytes, 1 << 16))
        if not part:
            raise EOFError
        size_bytes -= len(part)


def answer(connection: socket.socket) -> None:
    """Answer each message with one byte."""
    with connection:
        try:
            while True:
                head = connection.recv(4, socket.MSG_WAITALL)
                if len(head) < 4:
                    return
                receive(connection, struct.unpack("!I", head)[0])
                connection.sendall(b"k")
        except (EOFError, OSError):
            return


def listen(protocol: int) -> None:
    """Serve that protocol."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    listener.bind((SERVER, PORTS[protocol]))
    listener.listen()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def far() -> None:
    """The server's side, until its standard input ends."""
    sys.stdin.readline()
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{SERVER}/32", "dev", "lo")
    for number in range(len(NAMES)):
        run("ip", "address", "add", f"10.{number}.0.1/24", "dev", f"far{number}")
        run("ip", "link", "set", f"far{number}", "up")
    run("ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2")
    for protocol in PORTS:
        threading.Thread(target=listen, args=(protocol,), daemon=True).start()
    time.sleep(0.5)
    print("ready", flush=True)
    sys.stdin.readline()


def join(pid: int) -> None:
    """Make both links; what leaves from an interface's address leaves by it."""
    run("ip", "link", "set", "lo", "up")
    for number, name in enumerate(NAMES):
        run("ip", "link", "add", name, "type", "veth", "peer", "name", f"far{number}", "netns", str(pid))
        run("ip", "address", "add", f"10.{number}.0.2/24", "dev", name)
        run("ip", "link", "set", name, "up")
        way = (SERVER, "via", f"10.{number}.0.1", "dev", name)
        run("ip", "route", "add", *way, "metric", str(number + 1))
        run("ip", "route", "add", *way, "table", str(100 + number))
        run("ip", "rule", "add", "from", f"10.{number}.0.2", "table", str(100 + number))
    run("ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2")
    run("ip", "mptcp", "endpoint", "add", "10.1.0.2", "dev", NAMES[1], "subflow")


def connect(kind: str) -> socket.socket:
    """A connection of MPTCP, or of TCP bound to the interface of that name; both links are in use by then."""
    protocol = MPTCP if kind == "MPTCP" else socket.IPPROTO_TCP
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    if protocol != MPTCP:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, kind.encode() + b"\0")
    connection.settimeout(30.0)
    connection.connect((SERVER, PORTS[protocol]))
    for _ in range(2):
        ask(connection, 2000)
    return connection


def ask(connection: socket.socket, size_bytes: int) -> float:
    """Seconds from sending to answer."""
    began_s = time.monotonic()
    connection.sendall(struct.pack("!I", size_bytes) + bytes(size_bytes))
    receive(connection, 1)
    return time.monotonic() - began_s


def main() -> None:
    """Print a table of medians (least to most) in ms, and of MPTCP beside the faster interface."""
    words = ["unshare", "--net", sys.executable, "-m", "tests.benchmarks.multipath", "far"]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        ExitStack() as end,
    ):
        end.callback(server.terminate)
        assert server.stdin is not None
        assert server.stdout is not None
        join(server.pid)
        print(file=server.stdin, flush=True)
        server.stdout.readline()
        print("| kbit/s | bytes | wlan0 | wwan0 | MPTCP | MPTCP / faster |\n|---|---|---|---|---|---|")
        for rates in RATES_KBIT:
            for name, rate in zip(NAMES, rates, strict=True):
                bucket = ("tbf", "rate", f"{rate}kbit", "burst", "4kb", "latency", "2s")
                run("tc", "qdisc", "replace", "dev", name, "root", *bucket)
            for size_bytes in SIZES_BYTES:
                print(row(rates, size_bytes), flush=True)


def row(rates: tuple[int, ...], size_bytes: int) -> str:
    """One line of the table."""
    with ExitStack() as stack:
        connections = {kind: stack.enter_context(connect(kind)) for kind in (*NAMES, "MPTCP")}
        times: dict[str, list[float]] = {kind: [] for kind in connections}
        for _ in range(ROUNDS):
            for kind, connection in connections.items():
                times[kind].append(ask(connection, size_bytes))
                time.sleep(0.15)
    medians = {kind: statistics.median(seen) for kind, seen in times.items()}
    cells = [f"{medians[kind] * 1e3:.0f} ({min(seen) * 1e3:.0f}-{max(seen) * 1e3:.0f})" for kind, seen in times.items()]
    ratio = medians["MPTCP"] / min(medians[name] for name in NAMES)
    return f"| {rates[0]}, {rates[1]} | {size_bytes} | {' | '.join(cells)} | {ratio:.2f} |"


if __name__ == "__main__":
    far() if sys.argv[1:] == ["far"] else main()
