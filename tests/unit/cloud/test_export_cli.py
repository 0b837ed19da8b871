"""`upwell model export-jax` where its packages are missing."""

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from upwell.shared.errors import ExtraMissing
from upwell.tools.export.cli import export_jax


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "upwell.tools.export.torch_to_jax", raising=False)
    app = typer.Typer()
    app.command()(export_jax)
    result = CliRunner().invoke(app, ["package.Class", "weights.safetensors", str(tmp_path / "1")])
    assert isinstance(result.exception, ExtraMissing)
    assert str(result.exception) == "upwell model export-jax needs jax: pip install 'upwell[jax-export]'"
    assert list(tmp_path.iterdir()) == []
