"""Ctrl-C while the agent starts: it ends quietly, wherever in the start it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.oracles import EDGE_BUNDLE
from tests.faults.programs import START_S, UPWELL, Program
from tests.faults.scene import write_agent

INTERRUPTED = 130
COMPILED = "onnxruntime_pybind11_state"
UNLUCKY = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    import json.tool  # Python looks for signals now and then
except KeyboardInterrupt:
    raise ImportError("initialization failed") from None
"""
"""As a compiled package has it, when the interrupt comes while it is being imported."""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def config(folder: Path) -> Path:
    """The agent.yaml of an agent with a model for ONNX Runtime."""
    return write_agent(folder, {}, models={"digits": {"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}}})


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_ctrl_c_while_onnxruntime_is_imported_ends_it_quietly(config: Path) -> None:
    with Program(["agent", "-c", str(config)], [UPWELL]) as program:
        maps = Path(f"/proc/{program.pid}/maps")
        while COMPILED not in maps.read_text():  # empty, and then an error, where the process has ended
            assert not program.lines, program.lines
        program.send(signal.SIGINT)
        assert (program.wait(), program.lines) == (INTERRUPTED, [])


@pytest.mark.slow
def test_an_interrupt_that_an_import_would_turn_into_its_own_error_is_still_one(config: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text(UNLUCKY)
    done = subprocess.run(
        [Path(sys.executable).with_name("upwell"), "agent", "-c", str(config)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
