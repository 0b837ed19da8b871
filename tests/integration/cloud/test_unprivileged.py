"""The service without any rights: not root, and nothing that it may write."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.programs import Program
from tests.integration.agent.harness import client_of
from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import linear
from upwell.shared.oip.dataplane import InferRequest

NOBODY = 65_534
LIMIT_S = 30.0
needs_root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root can become somebody without rights"
)


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A model folder that everybody may read and nobody write, where everybody may go."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models" / "linear" / "1").mkdir(parents=True)
        linear(folder).rename(folder / "models" / "linear" / "1" / "model.onnx")
        for path in folder.rglob("*"):
            path.chmod(0o444 if path.is_file() else 0o555)
        folder.chmod(0o555)
        yield folder
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)


AS_NOBODY = f"""
import encodings.idna, os, sys
import upwell.cloud.cli, upwell.cloud.workers.serving_process, upwell.cloud.engines.onnx_engine, upwell.tools.cli
from upwell.tools.entry import main

# The interpreter itself may lie where only root can read, so the rights go once it has been read.
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
os.environ.clear()
sys.argv[0] = "upwell"
main()
"""


def serve_as_nobody(python: Path, models: Path) -> str:
    """Have the service of that interpreter's environment answer a request without any rights, and end; what it said."""
    arguments = ["serve", "--models", str(models), "--listen", "127.0.0.1:0"]
    with Program(arguments, [str(python), "-c", AS_NOBODY], cwd="/") as service:
        with client_of(service.find(r"serving on (\S+) \(1 model\)", 4 * LIMIT_S)) as client:
            answer = client.infer(InferRequest("linear", {"x": np.ones((1, 8), np.float32)}), LIMIT_S)
        assert answer.outputs["scores"].shape == (1, 3)
        service.send(signal.SIGTERM)
        assert service.wait(2 * LIMIT_S) == 0
        return "".join(service.lines)


@pytest.mark.slow
@needs_root
def test_it_serves_from_a_folder_that_it_cannot_write(read_only: Path) -> None:
    before = sorted(str(path) for path in read_only.rglob("*"))
    assert "root" not in serve_as_nobody(Path(sys.executable), read_only / "models")
    assert sorted(str(path) for path in read_only.rglob("*")) == before


@needs_root
def test_root_is_warned_of_only_where_others_can_reach_it(repository: Path) -> None:
    for listen, is_warned in (("127.0.0.1:0", False), ("0.0.0.0:0", True)):
        with serving("--models", repository, "--listen", listen, "--insecure") as running:
            assert any("runs as root" in line for line in running.lines) is is_warned
