"""Engines by name, and what all of them share."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from upwell.cloud.engines.base import engine_type
from upwell.cloud.engines.batch_checks_and_buckets import zero_batch
from upwell.cloud.engines.error_text import reason_of, tellable
from upwell.cloud.engines.onnx_engine import INSTALL, OnnxEngine
from upwell.cloud.engines.torch.torch_engine import PACKAGES, TorchEngine
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.tensors import TensorSpec


def test_engines_come_from_their_entry_points() -> None:
    found: list[object] = [engine_type("onnx"), engine_type("torch")]
    assert found == [OnnxEngine, TorchEngine]
    with pytest.raises(ConfigError, match=r"unknown engine 'abacus'; installed: .*onnx, torch"):
        engine_type("abacus")


def test_an_engine_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    queued = EntryPoint("jax", "upwell.cloud.engines.jax_engine:JaxEngine", "upwell.engines")
    monkeypatch.setattr(
        "upwell.cloud.engines.base.entry_points", lambda group: [queued] if group == queued.group else []
    )
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "upwell.cloud.engines.jax_engine", raising=False)
    with pytest.raises(ExtraMissing, match=r"engine jax needs jax: pip install 'upwell\[jax\]'"):
        engine_type("jax")


def test_zeros_have_the_rows_asked_for_and_fixed_shapes_as_they_are() -> None:
    batch = zero_batch([TensorSpec("x", "UINT8", (-1, 3)), TensorSpec("limit", "FP32", (1,))], 4)
    assert batch is not None
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "x": ((4, 3), "uint8"),
        "limit": ((1,), "float32"),
    }


@pytest.mark.parametrize(
    "spec", [TensorSpec("x", "BYTES", (-1, 1)), TensorSpec("x", "FP32", (-1, -1)), TensorSpec("x", "FP32", (-1,))]
)
def test_what_only_real_data_can_warm_up_is_left_alone(spec: TensorSpec) -> None:
    assert zero_batch([spec], 1) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("first\nsecond", "first"),
        ("", "ValueError"),
        ("x" * 1000, "x" * 299 + "…"),
        ("  \n ", "ValueError"),
        ("a\x1b[31mred", r"a\x1b[31mred"),
    ],
)
def test_a_reason_is_one_short_line(text: str, reason: str) -> None:
    assert reason_of(ValueError(text)) == reason


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("No such file or directory: '/srv/secret/words.txt'", "No such file or directory: 'words.txt'"),
        ("in /srv/secret/, at /a/b/c/d.py:3", "in , at d.py:3"),
        ("no model.onnx in m/1; available: a/b", "no model.onnx in m/1; available: a/b"),
        ("see https://example.com/a/b, or 3/4 of it / all", "see https://example.com/a/b, or 3/4 of it / all"),
        ("two\nlines", r"two\nlines"),
        ("/" * 100_000 + " /a" * 100_000, "/" * 100_000 + " /a" * 100_000),
    ],
)
def test_callers_are_told_no_folders(text: str, told: str) -> None:
    assert tellable(text) == told


def test_the_table_of_accelerators_has_every_maker_and_every_package() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
    section = page.partition("## Which engine for which accelerator")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert all(len(row) == 4 for row in rows)
    assert "**all others are untested**" in section
    makers = {
        "NVIDIA": "cuda", "AMD": "cuda", "Intel GPU": "xpu", "Intel Gaudi": "hpu", "Google TPU": "tpu",
        "AWS": "neuron", "Huawei Ascend": "npu", "Apple": "mps",
    }  # fmt: skip
    for maker, device in makers.items():
        own = [row for row in rows if row[0].startswith(maker)]
        assert any(f"`device: {device}" in row[1] for row in own), maker
        assert not any(row[0].endswith("CPU") for row in own), maker
    assert [row[1] for row in rows if row[0].startswith("AWS Inferentia")] == ["not supported"]
    for module in (one.module.partition(".")[0].replace("_", "-") for one in PACKAGES.values()):
        assert re.search(module.replace("habana-frameworks", "habana-torch-plugin"), section), module
    for how in INSTALL.values():
        for package in re.findall(r"onnxruntime[a-z-]*", how):
            assert package in section
