"""Load from `h2load` (nghttp2), a client in C: the same body again and again as a gRPC call, and what it measured.

h2load counts a gRPC error as a success, since the HTTP status of one is 200 too. But an answer with an error has no
body, so the bytes of all bodies together tell whether every call was answered.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Seconds: TypeAlias = npt.NDArray[np.float64]

HEADERS = ("content-type: application/grpc", "te: trailers")
_OK = "200"
_PREFIX_BYTES = 5
_SILENCE_S = 20


class LoadFailed(Exception):
    """A run of h2load of which the figures count for nothing."""


class ConnectionBroke(LoadFailed):
    """The server ended a connection with calls under way."""


@dataclass(frozen=True)
class Load:
    """`connections` with `streams` calls at once on each."""

    title: str
    connections: int
    streams: int

    @property
    def at_once(self) -> int:
        """Calls under way together."""
        return self.connections * self.streams


@dataclass(frozen=True)
class Sample:
    """One measurement: answers per second, and percentiles of the time that one took."""

    per_s: float
    p50_s: float
    p99_s: float


def body_of(message: bytes, times: int = 1) -> bytes:
    """`message` as a gRPC body, not compressed; `times` over is a stream of so many."""
    return (struct.pack(">BI", 0, len(message)) + message) * times


def installed() -> str | None:
    """The version of h2load, or None where it is not there."""
    path = shutil.which("h2load")
    if path is None:
        return None
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def run(url: str, body: Path, load: Load, calls: int, answer_bytes: int) -> Sample:
    """Make `calls` calls of which each is answered with a message (or messages) of `answer_bytes` in all.

    Raises `LoadFailed` where any was not, `ConnectionBroke` where that is why.
    """
    log = body.with_suffix(".log")
    log.unlink(missing_ok=True)
    counts = ["-n", str(calls), "-c", str(load.connections), "-m", str(load.streams), "-N", f"{_SILENCE_S}s"]
    headers = [part for header in HEADERS for part in ("-H", header)]
    command = ["h2load", *counts, *headers, "-d", str(body), f"--log-file={log}", url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if ran.returncode:
        raise LoadFailed(f"h2load ended with {ran.returncode}: {ran.stderr.strip() or ran.stdout.strip()}")
    check_counts(ran.stdout, calls, answer_bytes)
    return read_log(log.read_text(), load.at_once)


def check_counts(told: str, calls: int, answer_bytes: int) -> None:
    """Raise `LoadFailed` unless h2load's own words say that `calls` answers of `answer_bytes` came.

    `ConnectionBroke` where calls have no HTTP status at all.
    """
    counts = re.search(r"^requests: .* (\d+) succeeded, (\d+) failed", told, re.MULTILINE)
    data = re.search(r"^traffic: .*\((\d+)\) data$", told, re.MULTILINE)
    if counts is None or data is None:
        raise LoadFailed(f"h2load's output is not understood:\n{told}")
    if int(counts[1]) != calls:
        raise ConnectionBroke(f"{counts[2]} of {calls} calls failed:\n{told}")
    if int(data[1]) != calls * answer_bytes:
        missing = calls - int(data[1]) / answer_bytes
        raise LoadFailed(f"about {missing:.1f} of {calls} answers are missing or of another size: errors count as done")


def read_log(text: str, at_once: int) -> Sample:
    """From h2load's log: for each call its start in µs, its HTTP status and its µs.

    What counts is the time while `at_once` calls were under way, so neither connecting nor the end, where one
    connection has made its share of the calls before the others. Raises `LoadFailed` where a call has no success.
    """
    rows = [line.split("\t") for line in text.splitlines()]
    if not rows or any(len(row) < 3 or row[1] != _OK for row in rows):
        raise LoadFailed("h2load's log is empty or has calls without an answer")
    start_s = np.array([int(row[0]) for row in rows]) / 1e6
    took_s = np.array([int(row[2]) for row in rows]) / 1e6
    return full_load(start_s, start_s + took_s, at_once)


def full_load(start_s: Seconds, end_s: Seconds, at_once: int) -> Sample:
    """What was measured between the first and the last instant at which `at_once` calls were under way.

    Raises `LoadFailed` where that never was so or no call ended meanwhile.
    """
    at_s = np.concatenate([start_s, end_s])
    change = np.repeat([1, -1], len(start_s))
    order = np.lexsort((change, at_s))  # of the same instant, ends first
    full = np.flatnonzero(np.cumsum(change[order]) >= at_once)
    if not len(full):
        raise LoadFailed(f"never were {at_once} calls under way together")
    begin_s = at_s[order][full[0]]
    # Full until the next change after the last instant of it.
    done_s = at_s[order][min(full[-1] + 1, len(order) - 1)]
    counted = (end_s > begin_s) & (end_s <= done_s)
    if not counted.any():
        raise LoadFailed(f"no call ended while {at_once} were under way")
    p50_s, p99_s = np.percentile((end_s - start_s)[counted], [50, 99])
    return Sample(float(counted.sum() / (done_s - begin_s)), float(p50_s), float(p99_s))


def answer_size(message_bytes: int, times: int = 1) -> int:
    """Bytes of body that `times` messages make."""
    return (message_bytes + _PREFIX_BYTES) * times
