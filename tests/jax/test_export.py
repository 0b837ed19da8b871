"""`upwell model export-jax`: torch networks become programs that answer alike, or nothing is written."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

if any(find_spec(package) is None for package in ("jax", "torch", "torchax")):
    pytest.skip("needs JAX, torch and torchax: make test-jax-export", allow_module_level=True)

import jax
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from tests.jax.make_models import FOLDER, NETWORKS, WEIGHTS
from tests.jax.programs import warmed
from tests.jax.torch_networks import Noisy, Several
from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.oip.dataplane import Call
from upwell.tools.export.cli import export_jax
from upwell.tools.export.torch_network import load_module
from upwell.tools.export.torch_to_jax import PLATFORMS, exported

app = typer.Typer(pretty_exceptions_enable=False)
app.command("export-jax")(export_jax)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `Several`, with size 4."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save(Several(), path)
    return path


def save(module: torch.nn.Module, path: Path) -> None:
    """All names of a module, tied ones each for itself."""
    save_file({name: tensor.clone() for name, tensor in module.state_dict().items()}, path)


def run(name: str, *arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, [f"tests.jax.torch_networks.{name}", *map(str, arguments)])


def inputs_of(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(rows)
    return {
        "x": random.standard_normal((rows, 4)).astype(np.float32),
        "place": random.integers(0, 2, rows),
    }


def test_the_engine_answers_as_torch_does_for_any_batch(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "models" / "several" / "1"
    result = run("Several", weights, out, "--json", "--arguments", '{"size": 4}')
    assert result.exit_code == 0, (result.output, result.exception)
    report = json.loads(result.stdout)
    assert report["written"] == str(out)
    assert report["largest_relative_error"] <= 1e-6
    assert sorted(one.name for one in out.iterdir()) == ["model.jax", "model.safetensors"]
    assert [one.name for one in out.parent.iterdir()] == ["1"], "no draft is left"
    written = load_file(out / "model.safetensors")
    assert sorted(written) == ["again.bias", "first.bias", "first.weight", "table"]
    assert {name: list(array.shape) for name, array in written.items()} == report["weights"]

    engine, module = warmed(out), load_module("tests.jax.torch_networks.Several", weights, {})
    batcher = Batcher(engine, ModelSettings(buckets=engine.buckets))
    assert {(spec.name, spec.datatype, spec.shape) for spec in (*engine.inputs, *engine.outputs)} == {
        *Several.inputs,
        *Several.outputs,
    }
    for rows in range(1, 10):
        batch = inputs_of(rows)
        with torch.inference_mode():
            best, y = (one.numpy() for one in module(*(torch.from_numpy(batch[name]) for name in ("x", "place"))))
        outputs = batcher.run(batch, Call()).outputs
        np.testing.assert_allclose(outputs["y"], y, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(outputs["best"], best)


def test_the_programs_of_these_tests_are_what_the_tool_makes() -> None:
    """To the byte, so that whoever vouches for a digest can make the program again on another machine."""
    for name, network in NETWORKS.items():
        module = load_module(f"{network.__module__}.{network.__qualname__}", WEIGHTS, {})
        data = exported(module, PLATFORMS).data
        assert data == (FOLDER / f"{name}.jax").read_bytes(), f"{name}: make jax-models"
        assert str(Path.home()).encode() not in data
        assert b".py" not in data


def test_products_are_exact_unless_told_otherwise() -> None:
    module = load_module("upwell.cloud.engines.torch.demo.LargeNet", WEIGHTS, {})
    for is_exact in (True, False):
        program = jax.export.deserialize(bytearray(exported(module, ("cpu",), is_exact=is_exact).data))
        assert ("HIGHEST" in program.mlir_module()) is is_exact


def test_a_network_that_answers_otherwise_is_not_written(tmp_path: Path) -> None:
    save(Noisy(), tmp_path / "weights.safetensors")
    result = run("Noisy", tmp_path / "weights.safetensors", tmp_path / "1")
    assert result.exit_code == 1
    assert "nothing is written" in result.output
    assert [one.name for one in tmp_path.iterdir()] == ["weights.safetensors"]


def test_a_network_whose_rows_depend_on_each_other_is_not_written(weights: Path, tmp_path: Path) -> None:
    """It would answer wrongly in a bucket filled up with zeros, and tell one caller of another's rows."""
    result = run("Leaning", weights, tmp_path / "1")
    assert isinstance(result.exception, ModelFailed)
    assert "output 'y' of a row depends on the rows beside it" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_cannot_be_traced_is_named(weights: Path, tmp_path: Path) -> None:
    result = run("Branching", weights, tmp_path / "1")
    assert isinstance(result.exception, ModelFailed)
    assert str(result.exception).startswith("Branching cannot be exported: ")
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--platform", "abacus"), "--platform: expected one of cpu, cuda, rocm, tpu, got 'abacus'"),
        (("--platform", "tpu"), "--platform: cpu must be included"),
        (("--arguments", "{"), "--arguments: not JSON"),
        (("--arguments", "[]"), "--arguments: expected a JSON object"),
    ],
)
def test_wrong_options_say_what_would_be_right(
    weights: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    result = run("Several", weights, tmp_path / "1", *options)
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)


def test_a_folder_that_is_there_is_left_alone(weights: Path, tmp_path: Path) -> None:
    result = run("Several", weights, tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert "already exists" in str(result.exception)
    assert list(tmp_path.iterdir()) == []
