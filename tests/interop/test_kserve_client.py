"""KServe's clients, as their users use them. With `KSERVE_PYTHON`: an interpreter that has the package `kserve`, which
pins too much to be in the tested set."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import linear, linear_weights

PYTHON = os.environ.get("KSERVE_PYTHON", "")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="KSERVE_PYTHON names no Python with kserve")]


def test_kserve_s_clients_get_the_model_s_answers(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "linear" / "1"
    folder.mkdir(parents=True)
    linear(folder, seed=1).rename(folder / "model.onnx")
    (tmp_path / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models}\n"
    )
    with serving("-c", tmp_path / "cloud.yaml") as service:
        over_http = next(line.split()[-1] for line in service.lines if line.startswith("HTTP on"))
        script = Path(__file__).with_name("kserve_client.py")
        done = subprocess.run(
            [PYTHON, str(script), service.address, f"http://{over_http}", "linear"],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [found[what] for what in ("live", "ready", "model ready")] == [[True, True]] * 3
    assert found["ids"] == ["kserve"] * 3
    weights, bias = linear_weights(seed=1)
    expected = np.arange(16, dtype=np.float32).reshape(2, 8) @ weights + bias
    for scores in found["scores"]:
        np.testing.assert_allclose(scores, expected, rtol=1e-3)
