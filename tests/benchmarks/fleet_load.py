"""Simulated devices polling one fleet service on this machine: how late answers are, memory, and writes per poll.

    python -m tests.benchmarks.fleet_load --devices 10000 --poll 60 --seconds 90
    python -m tests.benchmarks.fleet_load --devices 100 1000 10000 --seconds 60 --plot load.png

Every device has a key and a certificate of its own, makes a new TLS connection for each poll, and says what it counted
with every fifteenth. The service is a process of its own with SQLite; the devices share the machine with it. They are
one event loop, where a poll also waits for those of other devices; `alone_*` are the times of twenty more that are a
process of their own and poll one after the other, ten times a second: what the service itself takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from upwell.fleet.config import FleetServiceSection
from upwell.fleet.enrolment.certificate_authority import read_request
from upwell.fleet.enrolment.enrolment import add_token
from upwell.fleet.service.application import open_fleet
from upwell.fleet.service.server import FleetServer
from upwell.fleet.users import Actor
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.opamp import STATISTICS
from upwell.tools import plot_style
from upwell.tools.plot_style import check_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLLS_A_COUNT = 15
ALONE, ALONE_EVERY_S = 20, 0.1


def section(folder: Path, poll_s: float) -> FleetServiceSection:
    """The service's settings."""
    return FleetServiceSection.model_validate(
        {"listen": ("127.0.0.1:0",), "database": {"file": folder / "fleet.db"}, "poll": f"{poll_s:g}s",
         "authority": {"cert": folder / "ca.pem", "key": folder / "ca.key"}}
    )  # fmt: skip


def serve(folder: Path, poll_s: float) -> None:
    """The service; prints its port, and at the end what it counted."""
    fleet = open_fleet(section(folder, poll_s))
    server = FleetServer(fleet)
    print(server.addresses[0].rpartition(":")[2], flush=True)
    signal.signal(signal.SIGUSR1, lambda *_: print(json.dumps(counted(fleet)), flush=True))
    server.run()


def counted(fleet: object) -> dict[str, int]:
    """Polls and statements that wrote, so far."""
    state = fleet.state  # type: ignore[attr-defined]
    return {"polls": state.presence.polls, "writes": state.database.writes}


def enrol(folder: Path, count: int, poll_s: float) -> None:
    """Enrol so many devices into the database itself, their keys and certificates into files."""
    fleet = open_fleet(section(folder, poll_s))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "device")])
    with fleet.state.database.writing() as connection:
        for number in range(count):
            key = ec.generate_private_key(ec.SECP256R1())
            csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
            request = read_request(csr.public_bytes(serialization.Encoding.PEM))
            token = add_token(connection, Actor("load", time.time()), {"site": f"s{number % 50}"}, 3600.0)["token"]
            _, certificate = fleet.state.enrolment.enrol(connection, token, request, time.time())
            pem = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            (folder / f"{number}.pem").write_bytes(pem + certificate.pem)
    fleet.close()


def poll_alone(folder: Path, port: int, first: int) -> None:
    """Devices from `first` on, one after the other, until stdin ends; prints how long each poll took, in seconds."""
    took_s: list[float] = []
    contexts = [context_of(folder, first + number) for number in range(ALONE)]
    while not select.select([sys.stdin], [], [], ALONE_EVERY_S)[0]:
        number = len(took_s) % ALONE
        began_s = time.monotonic()
        with (
            socket.create_connection(("127.0.0.1", port), 30) as raw,
            contexts[number].wrap_socket(raw, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(request(first + number, 1 + len(took_s) // ALONE))
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:100]
        took_s.append(time.monotonic() - began_s)
    print(json.dumps(took_s))


def context_of(folder: Path, number: int) -> ssl.SSLContext:
    """TLS as that device speaks it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / f"{number}.pem")
    return context


def request(number: int, sequence: int) -> bytes:
    """A poll over HTTP."""
    body = message(number, sequence)
    head = (
        f"POST /v1/opamp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-protobuf\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Devices:
    """All devices; `took_s` are the times from the first packet of a poll to the last of its answer."""

    def __init__(self, folder: Path, port: int, poll_s: float) -> None:
        self._folder, self._port, self._poll_s = folder, port, poll_s
        self.took_s: list[float] = []
        self.failed = 0
        self.is_measured = self.is_over = False

    async def live(self, number: int) -> None:
        """One device, until it is cancelled; or `is_over`, where `wait_for` of Python 3.11 swallows that."""
        sequence = random.randrange(1, 1000)
        await asyncio.sleep(random.random() * self._poll_s)
        while not self.is_over:
            sequence += 1
            began_s = time.monotonic()
            try:
                await asyncio.wait_for(self._poll(number, sequence), 30)
                if self.is_measured:
                    self.took_s.append(time.monotonic() - began_s)
            except (OSError, asyncio.TimeoutError, AssertionError):
                self.failed += self.is_measured
            if not self.is_over:
                await asyncio.sleep(max(0.0, began_s + self._poll_s * random.uniform(0.9, 1.1) - time.monotonic()))

    async def _poll(self, number: int, sequence: int) -> None:
        context = context_of(self._folder, number)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
        try:
            writer.write(request(number, sequence))
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 "), answer[:100]
        finally:
            writer.close()


def message(number: int, sequence: int) -> bytes:
    """A poll; the first of a device says all, later ones only that it lives, and now and then what it counted."""
    found = opamp_pb2.AgentToServer(instance_uid=number.to_bytes(16, "big"), sequence_num=sequence, capabilities=0x1007)
    if number not in SPOKEN:
        SPOKEN.add(number)
        found.agent_description.non_identifying_attributes.add(
            key="upwell.agent.name"
        ).value.string_value = f"d{number}"
        found.health.healthy, found.health.start_time_unix_nano = True, 1
    if (sequence + number) % POLLS_A_COUNT == 0:
        counts = {"release": None, "since_unix_s": 1.0, "counts": {"requests": sequence * 600, "late": 0, "up": 7}}
        found.custom_message.capability, found.custom_message.type = STATISTICS, "counted"
        found.custom_message.data = json.dumps(counts).encode()
    return found.SerializeToString()


SPOKEN: set[int] = set()


def memory_bytes(pid: int) -> int:
    """What the process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """What the process has used of a core."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    arguments: argparse.Namespace, count: int, folder: Path, service: subprocess.Popen[str]
) -> dict[str, Any]:
    """Let the devices live for one interval, then measure."""
    assert service.stdout is not None
    port = int(service.stdout.readline())
    devices = Devices(folder, port, arguments.poll)
    tasks = [asyncio.ensure_future(devices.live(number)) for number in range(count)]
    await asyncio.sleep(arguments.poll * 1.15)  # every device has spoken once
    before, used_s = await asked(service), cpu_s(service.pid)
    words = ["-m", "tests.benchmarks.fleet_load", "--serve", str(folder), "--alone", str(port), str(count)]
    alone = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 20
    )
    devices.is_measured = True
    await asyncio.sleep(arguments.seconds)
    devices.is_measured = False
    alone_s = sorted(json.loads((await alone.communicate(b""))[0]))
    used_s, after = cpu_s(service.pid) - used_s, await asked(service)
    held = memory_bytes(service.pid)
    devices.is_over = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    took = sorted(devices.took_s)
    polls = after["polls"] - before["polls"]
    return {
        "devices": count, "poll_s": arguments.poll, "polls": len(took), "failed": devices.failed,
        "polls_per_s": round(len(took) / arguments.seconds, 1),
        **{f"p{share}_ms": round(1e3 * took[int(len(took) * share / 100)], 1) for share in (50, 90, 99)},
        **{f"alone_p{share}_ms": round(1e3 * alone_s[int(len(alone_s) * share / 100)], 1) for share in (50, 99)},
        "writes_per_poll": round((after["writes"] - before["writes"]) / polls, 4),
        "service_memory_mib": round(held / 2**20, 1), "service_cpu_ms_per_poll": round(1e3 * used_s / polls, 2),
    }  # fmt: skip


async def asked(service: subprocess.Popen[str]) -> dict[str, int]:
    """What the service has counted so far."""
    assert service.stdout is not None
    service.send_signal(signal.SIGUSR1)
    line = await asyncio.get_running_loop().run_in_executor(None, service.stdout.readline)
    return dict(json.loads(line))


def main() -> None:
    """Print one JSON object for each number of devices, and draw them."""
    parser = argparse.ArgumentParser(description="Simulated devices polling one fleet service.")
    parser.add_argument("--devices", type=int, nargs="+", default=[10_000])
    parser.add_argument("--plot", type=Path, help="draw what they cost, beside what that comes to for more of them")
    parser.add_argument("--from", dest="known", type=Path, help="draw these lines of an earlier run instead")
    parser.add_argument("--poll", type=float, default=60.0, help="seconds between two polls of a device")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long is measured, after one interval")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone is not None:
        poll_alone(arguments.serve, *arguments.alone)
        return
    if arguments.serve is not None:
        serve(arguments.serve, arguments.poll)
        return
    check_plot(arguments.plot)
    if arguments.known is not None:
        found = [json.loads(line) for line in arguments.known.read_text().splitlines()]
    else:
        found = [one_run(arguments, devices) for devices in arguments.devices]
    if arguments.plot is not None:
        arguments.plot.write_bytes(drawn(found, arguments.plot.suffix))


def one_run(arguments: argparse.Namespace, devices: int) -> dict[str, Any]:
    """Measure so many devices, in a service and a database of their own; prints what came of it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, words = Path(scratch), ["-m", "tests.benchmarks.fleet_load", "--serve", scratch]
        enrol(folder, devices + ALONE, arguments.poll)
        command = [sys.executable, *words, "--poll", str(arguments.poll)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                found = asyncio.run(measure(arguments, devices, folder, service))
            finally:
                service.terminate()
    print(json.dumps(found), flush=True)
    return found


def drawn(found: list[dict[str, Any]], kind: str) -> bytes:
    """Cores and memory of the service by the number of devices; dotted, what the largest run comes to for more."""
    by_count = sorted(found, key=lambda one: one["devices"])
    last = by_count[-1]

    def cores(devices: float, poll_s: float, cost: dict[str, Any]) -> float:
        return devices / poll_s * float(cost["service_cpu_ms_per_poll"]) / 1e3

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        counts = [one["devices"] for one in by_count]
        left.plot(counts, [cores(one["devices"], one["poll_s"], one) for one in by_count], "o-", color=plot_style.EDGE)
        more = [last["devices"], 100_000, 1_000_000]
        for poll_s, style in ((60.0, ":"), (300.0, "--")):
            line = [cores(count, poll_s, last) for count in more]
            left.plot(more, line, style, color=plot_style.MUTED)
            place = {"xytext": (-50, 0), "textcoords": "offset points", "ha": "right"}
            left.annotate(f"polls every {poll_s:.0f} s", (more[2], line[2]), color=plot_style.MUTED, **place)
        left.set_ylabel("cores of the service")
        right.plot(counts, [one["service_memory_mib"] for one in by_count], "o-", color=plot_style.EDGE)
        right.set_ylabel("memory of the service, MiB")
        right.set_ylim(0, 1.15 * max(one["service_memory_mib"] for one in by_count))
        left.set_yscale("log")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xlabel("devices")

    return plot_style.picture(draw, kind, (8.4, 3.4))


if __name__ == "__main__":
    main()
