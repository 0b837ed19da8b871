"""What commands print when no terminal reads it."""

from __future__ import annotations

import pytest
from rich.table import Table

from upwell.tools.terminal import print_table, stdout_console


def test_a_pipe_gets_the_cells_of_a_table_whole_and_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cells = [f"{letter}-" * 1000 for letter in "abc"]
    table = Table("first", "second", "third", box=None)
    table.add_row(*cells)
    stdout_console().print(table)
    print_table(("first", "second", "third"), [cells])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1::2]] == [cells, cells]
