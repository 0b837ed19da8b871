"""Agent, service and commands ask nobody that the configuration does not name, and write nothing into the home folder.

Under strace, so that libraries of others are seen as well: each `connect` and `sendto` of the process and its children.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, EDGE_BUNDLE
from tests.integration.agent.harness import LIMIT_S, client_of, digits_request

STRACE = shutil.which("strace")
pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed")

ROOT = Path(__file__).parents[2]
TALK = re.compile(
    r"(?:connect|sendto|sendmsg|sendmmsg)\(\d+, .*?"
    r"(sin_port=htons\((\d+)\), sin_addr=inet_addr\(\"([\d.]+)\"\)"
    r"|sin6_port=htons\((\d+)\).*?inet_pton\(AF_INET6, \"([0-9a-f:.]+)\""
    r"|sun_path=@?\"([^\"]*)\")"
)
POLICY = {"defaults": {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}}}


UPWELL = ("-c", "from upwell.tools.entry import main; main()")


def environment(home: Path) -> dict[str, str]:
    """What a user's shell has, and nothing else: ONNX Runtime is also silent where `CI` or the like is set."""
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


class Watched:
    """A command under strace, with a home folder of its own."""

    def __init__(self, folder: Path, arguments: Sequence[str], program: Sequence[str] = UPWELL) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self._trace = folder / "trace"
        self._process = subprocess.Popen(
            [
                *(str(STRACE), "-f", "-s", "256", "-e", "trace=network", "-o", str(self._trace)),
                *(sys.executable, *program, *arguments),
            ],
            env=environment(self.home),
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_for(self, pattern: str) -> re.Match[str]:
        """A line of its standard error."""
        assert self._process.stderr is not None
        said = ""
        for line in self._process.stderr:
            said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(said)

    def stop(self) -> None:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for child in children:  # strace passes no signal on
            os.kill(int(child), signal.SIGTERM)

    def ended(self) -> tuple[int, str]:
        out, err = self._process.communicate(timeout=LIMIT_S * 6)
        return self._process.returncode, out + err

    def asked(self) -> set[str]:
        """Whom it asked: `ADDRESS:PORT`, or the path of a socket."""
        found = set()
        for match in TALK.finditer(self._trace.read_text(errors="replace")):
            _, port4, host4, port6, host6, path = match.groups()
            found.add(path if path is not None else f"{host4 or host6}:{port4 or port6}")
        return found

    def written(self) -> list[str]:
        """What it left in the home folder."""
        return [str(path.relative_to(self.home)) for path in self.home.rglob("*") if path.is_file()]


def test_a_process_that_imports_a_runtime_by_another_way_would_be_seen(tmp_path: Path) -> None:
    """The check itself: without the variable ONNX Runtime leaves a device id and a queue of events."""
    code = "import onnxruntime, sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], env=environment(tmp_path), stdin=subprocess.PIPE) as process:
        try:  # a thread of the library writes them, a while after the import
            until_s = time.monotonic() + 60.0
            while not any(path.is_file() for path in tmp_path.rglob("*")):
                assert time.monotonic() < until_s
                time.sleep(0.05)
        finally:
            process.kill()


def test_an_agent_alone_asks_nobody(tmp_path: Path) -> None:
    config = {
        "version": 1,
        "agent": {"listen": ["127.0.0.1:0"], "state_dir": str(tmp_path / "state")},
        "policy": "policy.yaml",
        "models": {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}},
    }
    (tmp_path / "agent.yaml").write_text(json.dumps(config))
    (tmp_path / "policy.yaml").write_text(json.dumps({"version": 1, **POLICY}))
    watched = Watched(tmp_path, ["agent", "-c", "agent.yaml"])
    try:
        address = watched.wait_for(r"(127\.0\.0\.1:\d+)")[1]
        with client_of(address) as client:
            assert client.infer(digits_request(0), LIMIT_S).outputs
        time.sleep(3.0)  # a queue of events would be sent later
    finally:
        watched.stop()
    code, said = watched.ended()
    assert code == 0, said
    assert watched.asked() == set()
    assert watched.written() == []


@pytest.mark.slow
def test_a_service_asks_nobody(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ["serve", "--models", str(CLOUD_MODELS), "--listen", "127.0.0.1:0"])
    try:
        address = watched.wait_for(r"(127\.0\.0\.1:\d+)")[1]
        with client_of(address) as client:
            assert client.infer(digits_request(0, model=CLOUD_MODEL), LIMIT_S).outputs
        time.sleep(3.0)
    finally:
        watched.stop()
    code, said = watched.ended()
    assert code == 0, said
    own = re.compile(r"/upwell-[^/]*/s$")  # itself, to see whether the fast path answers
    assert {one for one in watched.asked() if not own.search(one)} == set()
    assert watched.written() == []


MODEL = next(EDGE_BUNDLE.glob("*.onnx"))
REAL = [
    ["devices", "--json"],
    ["model", "verify", str(EDGE_BUNDLE)],
    ["model", "init", str(MODEL), "--out", "model.yaml"],
    ["policy", "schema"],
    ["policy", "check", "policy.yaml"],
    ["policy", "explain", "policy.yaml", "--request", "request.json"],
    ["spool", "list", "-c", "agent.yaml"],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments", REAL, ids=lambda words: " ".join(words[:2]))
def test_a_command_asks_nobody_and_leaves_nothing_at_home(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "policy.yaml").write_text(json.dumps({"version": 1, **POLICY}))
    (tmp_path / "request.json").write_text(json.dumps({"model": "digits", "size_bytes": 400}))
    models = {"digits": {"edge": {"bundle": str(EDGE_BUNDLE)}}}
    config = {"version": 1, "agent": {"state_dir": "state"}, "policy": "policy.yaml", "models": models}
    (tmp_path / "agent.yaml").write_text(json.dumps(config))
    watched = Watched(tmp_path, arguments)
    code, said = watched.ended()
    assert code in (0, 1), said  # 1: the check failed, such as a spool that is not there
    assert watched.asked() == set()
    assert watched.written() == []


@pytest.mark.slow
def test_no_command_asks_anybody_or_writes_as_it_is_loaded(tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "for group in ('upwell.commands', 'upwell.engines', 'upwell.partition_tiers'):\n"
        "    for entry in entry_points(group=group):\n"
        "        try: entry.load()\n"
        "        except ImportError as error: assert 'jax' in str(error) or 'flatbuffers' in str(error), error\n"
    )
    watched = Watched(tmp_path, [], ("-c", code))
    ended, said = watched.ended()
    assert ended == 0, said
    assert watched.asked() == set()
    assert watched.written() == []
