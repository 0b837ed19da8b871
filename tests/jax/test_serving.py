"""`upwell serve` with programs of JAX: the demo's large network, whole and from its second layer on, side by side."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("jax")

from tests.faults.programs import UPWELL
from tests.integration.cloud.processes import children, until
from tests.integration.cloud.serving import serving
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.tensors import Array

MODELS = Path(__file__).with_name("models")
LARGE = Path(__file__).parents[2] / "shared/upwell/tools/demo/assets/cloud/digits-large/1"
BUCKETS = (1, 3, 8)
SHARED_BUCKETS = (1, 3)
CUT = "relu_1"
LARGEST_ERROR = 1e-5
LIMIT_S = 20.0
REPEATS = 4
START_S = 90.0
"""Two models with three programs each are compiled first."""
COMPILES = re.compile(r"compil(ing|ation)", re.IGNORECASE)


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Array]:
    """Pictures `x` and torch's `logits` for them."""
    return dict(np.load(MODELS / "reference.npz", allow_pickle=False))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The ONNX model's head and tail, cut at the tensor where the tail in JAX begins."""
    folder = tmp_path_factory.mktemp("split")
    command = [UPWELL, "partition", "split", LARGE / "model.onnx", "--cut", "3", "--name", "onnx", "--out", folder]
    done = subprocess.run([*map(str, command), "--json"], capture_output=True, text=True, check=True)
    (cut,) = json.loads(done.stdout)["cuts"]
    assert [tensor["name"] for tensor in cut["tensors"]] == [CUT]
    return folder / cut["head"], folder / "tails" / cut["tail"] / "1" / "model.onnx"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, split: tuple[Path, Path]) -> Path:
    """Four models side by side, whole and tail in JAX and in ONNX; a fifth is in JAX and not trusted."""
    root = tmp_path_factory.mktemp("repository")
    trusted = []
    for name in ("digits", "digits-tail", "stranger"):
        folder = root / "models" / name / "1"
        folder.mkdir(parents=True)
        program = (MODELS / f"{'digits' if name == 'stranger' else name}.jax").read_bytes()
        (folder / "model.jax").write_bytes(program + (b"\0" if name == "stranger" else b""))
        shutil.copy(LARGE / "model.safetensors", folder)
        if name != "stranger":
            trusted.append(hashlib.sha256(program).hexdigest())
    for name, file in (("digits-onnx", LARGE / "model.onnx"), ("tail-onnx", split[1])):
        (root / "models" / name / "1").mkdir(parents=True)
        shutil.copy(file, root / "models" / name / "1")
    jax = {"engine": "jax", "max_batch": BUCKETS[-1], "buckets": list(BUCKETS)}
    document = {
        "serve": {"listen": ["127.0.0.1:0"], "models": "models", "trusted": trusted},
        "models": dict.fromkeys(("digits", "digits-tail", "stranger"), jax),
    }
    (root / "cloud.yaml").write_text(json.dumps(document))
    return root / "cloud.yaml"


@pytest.fixture(scope="module")
def shared_config(config: Path) -> Path:
    """One of these models for two workers."""
    document = json.loads(config.read_text())
    document["serve"] |= {"workers": 2, "models": str(config.parent / "one")}
    document["models"] = {"digits": {"engine": "jax", "buckets": list(SHARED_BUCKETS)}}
    shutil.copytree(config.parent / "models" / "digits", config.parent / "one" / "digits")
    path = config.with_name("shared.yaml")
    path.write_text(json.dumps(document))
    return path


@dataclass(frozen=True)
class Served:
    """What a service answered, by model and number of rows, what it said of its models, and all it wrote."""

    answers: Mapping[tuple[str, int], Array]
    ready: Mapping[str, bool]
    platform: str
    exit_code: int
    lines: Sequence[str]


@pytest.fixture(scope="module")
def served(config: Path, split: tuple[Path, Path], reference: Mapping[str, Array]) -> Served:
    """One life of a service: every model asked for every number of rows up to beyond twice its largest bucket."""
    pictures = np.concatenate([reference["x"]] * REPEATS)
    head = onnxruntime.InferenceSession(split[0], providers=["CPUExecutionProvider"])
    middle = head.run([CUT], {"x": pictures})[0]
    feeds = {
        "digits": ("x", pictures),
        "digits-onnx": ("x", pictures),
        "digits-tail": (CUT, middle),
        "tail-onnx": (CUT, middle),
    }
    answers = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_LOG_COMPILES", "1")
        patch.setattr("tests.integration.cloud.serving.LIMIT_S", START_S)
        with serving("--config", config) as service:
            client = OipClient(service.address)
            for model, (name, array) in feeds.items():
                for rows in range(1, 2 * BUCKETS[-1] + 2):
                    answer = client.infer(InferRequest(model, {name: array[:rows]}), LIMIT_S)
                    answers[model, rows] = answer.outputs["logits"]
            ready = {model: client.ready(LIMIT_S, model) for model in (*feeds, "stranger")}
            platform = client.metadata("digits", LIMIT_S).platform
            client.close()
            service.terminate()
            exit_code = service.exit_code()
    return Served(answers, ready, platform, exit_code, service.lines)


def test_whole_and_tail_side_by_side_answer_as_torch_does(served: Served, reference: Mapping[str, Array]) -> None:
    expected = np.concatenate([reference["logits"]] * REPEATS)
    assert {model for model, _ in served.answers} == {"digits", "digits-onnx", "digits-tail", "tail-onnx"}
    for (model, rows), answer in served.answers.items():
        assert answer.shape == (rows, 10), (model, rows)
        error = np.abs(answer - expected[:rows]).max() / np.abs(expected).max()
        assert error <= LARGEST_ERROR, (model, rows)
    assert served.platform == "jax_export"


def test_no_batch_size_is_compiled_once_it_serves(served: Served) -> None:
    (ready,) = (place for place, line in enumerate(served.lines) if line.startswith("serving on"))
    compiled = [place for place, line in enumerate(served.lines) if COMPILES.search(line)]
    assert len(compiled) >= 2 * len(BUCKETS), "JAX no longer says what it compiles"
    assert [served.lines[place] for place in compiled if place > ready] == []
    assert served.exit_code == 0


def test_a_program_of_a_stranger_is_not_served_and_says_what_to_list(served: Served) -> None:
    digest = hashlib.sha256((MODELS / "digits.jax").read_bytes() + b"\0").hexdigest()
    (line,) = (line for line in served.lines if "model stranger version 1 is not served" in line)
    assert line.rstrip().endswith(f"add {digest}")
    assert [model for model, is_ready in served.ready.items() if not is_ready] == ["stranger"]


@pytest.mark.timeout(400)  # three processes import JAX and compile
def test_two_workers_compile_before_anybody_listens_and_one_that_is_restarted_before_it_does(
    shared_config: Path, reference: Mapping[str, Array]
) -> None:
    pictures = np.concatenate([reference["x"]] * REPEATS)
    expected = np.concatenate([reference["logits"]] * REPEATS)

    def ask(address: str, rows: int) -> None:
        client = OipClient(address)  # a connection of its own, which either worker may get
        answer = client.infer(InferRequest("digits", {"x": pictures[:rows]}), LIMIT_S).outputs["logits"]
        client.close()
        np.testing.assert_allclose(answer, expected[:rows], atol=LARGEST_ERROR * np.abs(expected).max())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_LOG_COMPILES", "1")
        patch.setattr("tests.integration.cloud.serving.LIMIT_S", START_S)
        with serving("--config", shared_config) as service:
            for rows in [*range(1, 2 * SHARED_BUCKETS[-1] + 2)] * 4:
                ask(service.address, rows)
            before = len(service.lines)
            os.kill(children(service.process.pid)[0], signal.SIGKILL)
            until(lambda: any("serves" in line for line in service.lines[before:]), START_S)
            again = len(service.lines)
            for rows in [*range(1, 2 * SHARED_BUCKETS[-1] + 2)] * 4:
                ask(service.address, rows)
            service.terminate()
            assert service.exit_code() == 0
    lines = service.lines
    ready = next(place for place, line in enumerate(lines) if line.startswith("serving on"))
    for number in ("worker 1", "worker 2"):
        assert sum("Compiling" in line for line in lines[:ready] if number in line) == len(SHARED_BUCKETS)
        assert [f"{number} upwell.cloud: model digits version 1: preparing batches of 1, 3 rows" in line
                for line in lines[:ready]].count(True) == 1  # fmt: skip
    compiled = [place for place, line in enumerate(lines) if place > ready and COMPILES.search(line)]
    assert compiled
    assert all(before <= place < again for place in compiled), [lines[place] for place in compiled]
    assert len({re.search(r"worker \d", lines[place])[0] for place in compiled}) == 1  # type: ignore[index]  # all match
