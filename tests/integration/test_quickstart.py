"""Runs docs/quickstart.md: writes its files, runs its commands in its terminals, compares what they print.

The blocks of the page, in their order: one with `title=FILE` is a file to write. A `console` block holds commands after
`$ ` and the output that they must give, where a line `…` stands for any lines; without output a command must succeed.
In a block with `terminal=NAME` a command goes on running once the lines below it have appeared, and `^C` ends it.
Ports are replaced by free ones. Times and request ids are not compared, and numbers only to two places.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
LIMIT_S = 60.0

_BLOCK = re.compile(r"^```(\w+)(?: (title|terminal)=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_LINES = "…"


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, `title` or `terminal` with its value, and its text."""

    language: str
    key: str
    value: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match.groups(default="")) for match in _BLOCK.finditer(page)]


def with_free_ports(page: str) -> str:
    """The page with each port of 127.0.0.1 replaced by one that is free now."""
    with ExitStack() as stack:
        for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", page))):
            probe = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            page = page.replace(f"127.0.0.1:{port}", f"127.0.0.1:{probe.getsockname()[1]}")
    return page


def plain(line: str) -> str:
    """A line of output without what differs from run to run."""
    line = re.sub(r"\d+\.\d+ ms", "# ms", line.rstrip())
    line = re.sub(r"\b[0-9a-f]{32}\b", "#", line)
    return re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.2f}", line)


def matches(expected: list[str], lines: list[str]) -> bool:
    """Whether the lines are those expected."""
    pattern = "".join(r"(.*\n)*" if line == _ANY_LINES else re.escape(plain(line)) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(plain(line) + "\n" for line in lines)) is not None


def steps(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Each command of a console block as its words, with the lines of output below it; `^C` is a command, too."""
    parts = re.split(r"^(\$ .*|\^C)\n", text, flags=re.MULTILINE)
    assert parts[0] == "", f"output before the first command: {parts[0]!r}"
    for command, output in zip(parts[1::2], parts[2::2], strict=True):
        yield shlex.split(command.removeprefix("$ ")), output.splitlines()


class Terminal:
    """One terminal, with a command that goes on running."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread()

    def start(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        assert self._process is None, "a command runs in this terminal"
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._reader = threading.Thread(target=self._read, args=[self._process])
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put(line.rstrip())

    def expect(self, wanted: str) -> None:
        """Take lines until one is `wanted`."""
        seen: list[str] = []
        while not seen or seen[-1] != wanted:
            try:
                seen.append(self._lines.get(timeout=LIMIT_S))
            except queue.Empty:
                pytest.fail(f"expected the line {wanted!r}, got only {seen}")

    def interrupt(self) -> None:
        """Press Ctrl-C and wait for the end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            self._reader.join()
        assert code == 0, f"{process.args!r} ended with exit code {code}"


@dataclass
class Reader:
    """Somebody who does what the page says, beginning in `folder`."""

    folder: Path
    terminals: dict[str, Terminal] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """This interpreter and its commands first; no colors and no narrow window."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONUTF8": "1"}

    def do(self, block: Block) -> None:
        if block.key == "title":
            (self.folder / block.value).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command, output in steps(block.text):
                self._step(command, output, block.value)

    def _step(self, command: list[str], output: list[str], terminal: str) -> None:
        if terminal:
            self._in_terminal(self.terminals.setdefault(terminal, Terminal()), command, output)
        elif command[0] == "cd":
            self.folder = (self.folder / command[1]).resolve(strict=True)
        else:
            done = subprocess.run(
                command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S
            )
            if done.returncode != 0 or (output and not matches(output, done.stdout.splitlines())):
                page = "\n".join(output)
                pytest.fail(
                    f"{shlex.join(command)} ended with {done.returncode} and printed\n{done.stdout}{done.stderr}\n"
                    f"where the page says\n{page}",
                    pytrace=False,
                )

    def _in_terminal(self, terminal: Terminal, command: list[str], output: list[str]) -> None:
        if command == ["^C"]:
            terminal.interrupt()
        else:
            terminal.start(command, self.folder, self.environment)
        for line in output:
            terminal.expect(line)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    reader = Reader(tmp_path)
    with ExitStack() as stack:
        yield reader
        for terminal in reader.terminals.values():
            stack.callback(terminal.interrupt)


@pytest.mark.slow
def test_the_page_does_what_it_says(reader: Reader) -> None:
    page = blocks(with_free_ports(PAGE.read_text(encoding="utf-8")))
    assert {block.value for block in page if block.key == "title"} >= {"agent.yaml", "policy.yaml"}
    for block in page:
        reader.do(block)


@pytest.mark.parametrize(
    ("expected", "lines", "same"),
    [
        (["time  1.5 ms", "id 0f" + "0" * 30], ["time  99.9 ms  ", "id 1e" + "1" * 30], True),
        (["route edge"], ["route cloud"], False),
        (["route edge"], ["route edge", "reason hard"], False),
        (["first", "…"], ["first", "second", "third"], True),
        (["first", "…", "last"], ["first", "second"], False),
        (["0.332, 0.8008"], ["0.3319, 0.8012"], True),
        (["0.332, 0.8008"], ["0.432, 0.8008"], False),
        (["16 shapes"], ["15 shapes"], False),
    ],
)
def test_output_is_compared(expected: list[str], lines: list[str], same: bool) -> None:
    assert matches(expected, lines) is same
