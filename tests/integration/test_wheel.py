"""The wheel, installed as on a device: only the extra `edge`, in an environment of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from upwell.tools.demo.digit_data import ASSETS

ROOT = Path(__file__).resolve().parents[2]
AGENT = "version: 1\nagent: {{listen: ['127.0.0.1:0']}}\nmodels: {{digits: {{edge: {{bundle: '{bundle}'}}}}}}\n"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, cwd="/")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of that environment."""
    folder = tmp_path_factory.mktemp("device")
    built = run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
    assert built.returncode == 0, built.stderr
    wheel = next(folder.glob("*.whl"))
    assert run(sys.executable, "-m", "venv", folder / "venv").returncode == 0
    pip = run(folder / "venv/bin/pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[edge]")
    assert pip.returncode == 0, pip.stderr
    return folder / "venv" / "bin"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_agent_runs_and_the_service_names_its_extra(device: Path, tmp_path: Path) -> None:
    assert run(device / "python", "-c", "import torch").returncode != 0
    told = run(device / "upwell", "serve", "--models", tmp_path, "--listen", "127.0.0.1:0")
    assert (told.returncode, "pip install 'upwell[cloud]'" in told.stderr) == (2, True)
    config = tmp_path / "agent.yaml"
    config.write_text(AGENT.format(bundle=ASSETS / "edge" / "digits"))
    agent = subprocess.Popen([device / "upwell", "agent", "-c", config], stderr=subprocess.PIPE, text=True)
    try:
        assert agent.stderr is not None
        address = next(found[1] for line in agent.stderr if (found := re.search(r"serving on (\S+)", line)))
        picture = tmp_path / "zero.npy"
        make = "import numpy, sys; numpy.save(sys.argv[1], numpy.zeros((1, 8, 8, 1), numpy.uint8))"
        assert run(device / "python", "-c", make, picture).returncode == 0
        answer = run(device / "upwell", "infer", "digits", picture, "--at", address)
        assert (answer.returncode, "edge" in answer.stdout) == (0, True), answer.stderr
    finally:
        agent.terminate()
        assert agent.wait(20) == 0
        if agent.stderr is not None:
            agent.stderr.close()
