"""`upwell partition plan --graph` on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from upwell.shared.errors import ConfigError
from upwell.shared.partition.plan_file import PlanFacts
from upwell.shared.partition.planner import NoPlan
from upwell.tools.partition.plan_cli import plan

APP = typer.Typer()
APP.command()(plan)

# A small detector: the backbone is slow on the device, its picture is large and what it makes is not.
GRAPH = {
    "tiers": ["edge", "cloud"],
    "nodes": [
        {
            "name": "backbone",
            "inputs": ["picture"],
            "outputs": ["small", "large"],
            "cost_s": {"edge": 0.05, "cloud": 0.01},
        },
        {"name": "neck", "inputs": ["small"], "outputs": ["fused"], "cost_s": {"edge": 0.4, "cloud": 0.02}},
        {"name": "head", "inputs": ["fused", "large"], "outputs": ["boxes"], "cost_s": {"edge": 0.2, "cloud": 0.01}},
    ],
    "tensors": {
        "picture": {"bytes": 600000},
        "small": {"bytes": 20000},
        "large": {"bytes": 40000},
        "fused": {"bytes": 80000},
        "boxes": {"bytes": 2500},
    },
    "inputs": ["picture"],
    "outputs": ["boxes"],
    "input_tier": "edge",
    "output_tier": "edge",
    "links": [{"from": "edge", "to": "cloud", "bps": 8e6, "fixed_s": 0.02, "return_bps": 2e7}],
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps(GRAPH | changes))
    return path


def test_the_answer_as_json(tmp_path: Path) -> None:
    done = run("--graph", write(tmp_path), "--json")
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert list(answer) == ["total_s", "placement", "sent", "baselines", "alternatives"]
    assert answer["total_s"] == pytest.approx(0.05 + 0.02 + 0.06 + 0.02 + 0.01 + 0.001)
    assert answer["placement"] == {"backbone": "edge", "neck": "cloud", "head": "cloud"}
    assert answer["sent"] == [
        {"tensor": "small", "from": "edge", "to": "cloud", "bytes": 20000},
        {"tensor": "large", "from": "edge", "to": "cloud", "bytes": 40000},
    ]
    assert answer["baselines"] == pytest.approx({"edge_only_s": 0.65, "cloud_only_s": 0.6 + 0.02 + 0.04 + 0.001})
    assert [(one["placement"]["backbone"], one["placement"]["neck"]) for one in answer["alternatives"]] == [
        ("edge", "edge"), ("edge", "edge"), ("cloud", "cloud"),
    ]  # fmt: skip
    totals = [one["total_s"] for one in answer["alternatives"]]
    assert totals == pytest.approx([0.05 + 0.4 + 0.02 + 0.12 + 0.01 + 0.001, 0.65, 0.661])
    PlanFacts.model_validate(answer)  # what `upwell partition split --plan` reads


def test_a_codec_is_named_where_it_is_used(tmp_path: Path) -> None:
    tensors = dict(GRAPH["tensors"])  # type: ignore[call-overload]  # GRAPH holds values of several kinds
    tensors["large"] = {"bytes": 40000, "codecs": [{"name": "fp16", "bytes": 20000, "encode_s": 0.001}]}
    answer = json.loads(run("--graph", write(tmp_path, tensors=tensors), "--json").stdout)
    assert answer["sent"][1] == {"tensor": "large", "from": "edge", "to": "cloud", "bytes": 20000, "codec": "fp16"}
    assert PlanFacts.model_validate(answer).sent[1].codec == "fp16"


def test_a_person_sees_where_nodes_run_what_is_sent_and_what_that_gains(tmp_path: Path) -> None:
    shown = run("--graph", write(tmp_path)).stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "best placement 161.000 ms edge 1, cloud 2" in lines
    assert "edge only 650.000 ms 4.04 times the best" in lines
    assert "cloud only 661.000 ms 4.11 times the best" in lines
    assert "alternative 1 601.000 ms edge 2, cloud 1" in lines
    assert "edge: backbone" in lines
    assert "cloud: neck, head" in lines
    assert "large edge cloud 40,000" in lines


def test_of_many_nodes_the_first_and_last_are_shown(tmp_path: Path) -> None:
    names = [f"layer{index}" for index in range(60)]
    nodes = [
        {"name": name, "inputs": [f"t{index}"], "outputs": [f"t{index + 1}"], "cost_s": {"edge": 0.001}}
        for index, name in enumerate(names)
    ]
    tensors = {f"t{index}": {"bytes": 1} for index in range(61)}
    path = write(tmp_path, nodes=nodes, tensors=tensors, inputs=["t0"], outputs=["t60"])
    shown = run("--graph", path).stdout
    assert "edge: layer0 … layer59 (60 nodes)" in shown
    assert "cloud: nothing" in shown
    assert "cloud only" in shown
    assert "not possible" in shown


def test_a_conflict_is_told_with_nodes_tensors_and_tiers(tmp_path: Path) -> None:
    nodes = json.loads(json.dumps(GRAPH["nodes"]))
    nodes[0]["only"] = "cloud"
    nodes[2]["cost_s"] = {"edge": 0.2}
    with pytest.raises(NoPlan) as caught:
        CliRunner().invoke(APP, ["--graph", str(write(tmp_path, nodes=nodes))], catch_exceptions=False)
    assert str(caught.value) == (
        "no placement is possible: node 'head' has no tier left; "
        "not on 'edge': it reads 'large' of 'backbone', which cannot run there or below "
        "(not on 'edge': `only` pins it to 'cloud'); not on 'cloud': it has no cost there"
    )


def error_of(path: Path) -> tuple[int, str]:
    """Exit code and error output of the command as a user runs it."""
    script = (
        "import sys, typer; from upwell.tools import cli; from upwell.tools.partition.plan_cli import plan;"
        "app = typer.Typer(pretty_exceptions_enable=False); app.command()(plan);"
        "cli.build_app = lambda arguments: app; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--graph", str(path), "--json"], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.slow
def test_no_plan_is_exit_code_1_and_a_wrong_file_2(tmp_path: Path) -> None:
    one = {"name": "one", "outputs": ["small", "large", "boxes", "fused"], "cost_s": {"edge": 1, "cloud": 1}}
    code, text = error_of(write(tmp_path, non_empty=["edge", "cloud"], nodes=[one]))
    assert (code, text) == (
        1,
        "error: no placement is possible: the tiers 'edge', 'cloud' of `non_empty` cannot all hold a node at once\n",
    )
    path = write(tmp_path, input_tier="egde")
    assert error_of(path) == (
        2,
        f"error: {path}: input_tier: there is no tier 'egde'; did you mean 'edge'?\n",
    )


def test_something_to_plan_is_needed() -> None:
    with pytest.raises(ConfigError):
        CliRunner().invoke(APP, [], catch_exceptions=False)


def test_without_scipy_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ConfigError, match=r"planning needs scipy: pip install 'upwell\[partition\]'"):
        CliRunner().invoke(APP, ["--graph", str(write(tmp_path))], catch_exceptions=False)
