"""A reader who does what a page of the docs says: writes its files, runs its commands in its terminals, compares.

The blocks of a page, in their order: one with `title=FILE` is a file to write. A `console` block holds commands after
`$ ` and the output that they must give, where a line `…` stands for any lines and `…` within a line for any text;
without output a command must succeed. In a block with `terminal=NAME` a command goes on running once the lines below it
have appeared, lines above the first command are of the one that runs there, and `^C` ends it. Times and request ids are
not compared, and numbers only to two places.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMIT_S = 60.0

_BLOCK = re.compile(r"^```(\w+)(?: (title|terminal)=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY = "…"


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
    pattern = "".join(r"(.*\n)*" if line == _ANY else _pattern(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(plain(line) + "\n" for line in lines)) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in plain(line).split(_ANY))


def steps(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Each command of a console block as its words, with the lines of output below it; `^C` is a command, too.

    Lines above the first are of no command, an empty one.
    """
    parts = re.split(r"^(\$ .*|\^C)\n", text, flags=re.MULTILINE)
    if parts[0]:
        yield [], parts[0].splitlines()
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
        """Take lines until one is as `wanted`."""
        seen: list[str] = []
        while not seen or not matches([wanted], seen[-1:]):
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
        elif not command:
            pytest.fail(f"output before the first command: {output}")
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
        elif command:
            terminal.start(command, self.folder, self.environment)
        for line in output:
            terminal.expect(line)


@contextmanager
def reading(folder: Path, *, links: Sequence[str]) -> Iterator[Reader]:
    """A reader in an empty folder with links to these of the repository. What runs at the end is ended as by Ctrl-C."""
    for name in links:
        (folder / name).symlink_to(ROOT / name)
    reader = Reader(folder)
    with ExitStack() as stack:
        yield reader
        for terminal in reader.terminals.values():
            stack.callback(terminal.interrupt)
