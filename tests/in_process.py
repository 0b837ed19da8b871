"""`upwell` in this process, which takes a hundredth of the time that a process of its own does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from upwell.tools.cli import main


@dataclass(frozen=True)
class CommandResult:
    """Its exit code, and what it wrote."""

    code: int
    out: str
    err: str


class InProcess:
    """Runs commands that end by themselves and start nothing, as if the packages in `without` were not installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object, without: Sequence[str] = ()) -> CommandResult:
        before = signal.getsignal(signal.SIGINT)
        with self._monkeypatch.context() as patch:
            for package in without:
                patch.setitem(sys.modules, package, None)
            patch.setattr(sys, "argv", ["upwell", *map(str, arguments)])
            try:
                with pytest.raises(SystemExit) as caught:
                    main()
            finally:
                signal.signal(signal.SIGINT, before)
        said = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return CommandResult(caught.value.code, said.out, said.err)
