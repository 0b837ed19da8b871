"""The whole loop, as `make loop` runs it: drift is seen, cases make a better model, and fewer requests go up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).parents[3] / "examples/digits/loop.py"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_loop_closes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, str(LOOP), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((out / "report.json").read_text())
    before, drift, after = (report["phases"][name] for name in ("before", "drift", "after"))
    assert before["drift_seen_after"] is None
    assert drift["drift_seen_after"] is not None
    assert drift["drift_seen_after"] <= 300
    assert after["accuracy"] > drift["accuracy"]
    assert after["share_up"] < drift["share_up"] / 2
    assert after["drift_seen_after"] is None
    assert report["evaluation"]["difference"]["low"] > 0
    assert report["rollout"]["waves"] == [{"passed": 1}, {"passed": 2}]
    assert sorted(report["rollout"]["order"]) == ["box-1", "box-2", "box-3"]
    assert (out / "loop.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_something_else_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    command = [sys.executable, str(LOOP), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path} exists and is not of an earlier run: name another folder with --out\n"
    assert (tmp_path / "thesis.tex").read_text() == "mine"
