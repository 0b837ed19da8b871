"""Coverage of TFLite models, compared with what the software delegate itself reports."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.examples import examples
from tests.unit.tflite_for_tests import TFLITE_PACKAGES, linear, two_in_two_out
from tests.unit.tflite_graphs_for_tests import mobile
from upwell.edge.runtimes.placement import AcceleratorNotUsable, Coverage
from upwell.edge.runtimes.runtime_loader import coverage_of
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.runtime import TfliteRuntime
from upwell.tools.demo.digit_data import ASSETS

DIGITS = ASSETS / "edge" / "digits" / "model.tflite"
SUBSETS = examples(100)


@pytest.fixture(params=TFLITE_PACKAGES)
def options(request: pytest.FixtureRequest) -> RuntimeOptions:
    return RuntimeOptions(package=request.param)


def software(library: Path, **options: str | int) -> AcceleratorOptions:
    return AcceleratorOptions(provider="software", library=library, options=options)


def partitions_of(coverage: Coverage) -> set[frozenset[int]]:
    """The positions of the nodes of each partition."""
    parts: dict[int, set[int]] = {}
    for position, node in enumerate(coverage.nodes):
        if node.partition is not None:
            parts.setdefault(node.partition, set()).add(position)
    return {frozenset(part) for part in parts.values()}


def reported(report: Path) -> set[frozenset[int]]:
    """What the delegate wrote down: a line of nodes for each partition."""
    lines = report.read_text().splitlines() if report.exists() else []
    return {frozenset(map(int, line.split())) for line in lines}


@pytest.mark.parametrize("which", ["digits", "mobile"])
def test_coverage_is_what_the_delegate_reports_in_many_subsets(
    options: RuntimeOptions, software_delegate: Path, tmp_path: Path, which: str
) -> None:
    model = DIGITS if which == "digits" else mobile(tmp_path)
    count = len(coverage_of(model, options, software(software_delegate)).nodes)
    seen = set()
    for seed in range(SUBSETS):
        share = random.Random(f"share {seed}").random()
        chosen = [node for node in range(count) if random.Random(f"{seed} {node}").random() < share]
        report = tmp_path / f"{seed}.txt"
        accelerator = software(software_delegate, nodes=",".join(map(str, chosen)), report=str(report))
        coverage = coverage_of(model, options, accelerator)
        assert partitions_of(coverage) == reported(report), f"seed {seed}"
        assert [position for position, node in enumerate(coverage.nodes) if node.partition is not None] == chosen
        assert coverage.partitions == len(reported(report))
        seen.add(coverage.partitions)
    assert len(seen) > 3


def test_a_runtime_takes_its_placement_from_the_same_walk(
    options: RuntimeOptions, software_delegate: Path, tmp_path: Path
) -> None:
    model = mobile(tmp_path)
    accelerator = software(software_delegate, nodes="1,2,3,40")
    coverage = coverage_of(model, options, accelerator)
    placement = TfliteRuntime(model, options, accelerator).placement
    assert (placement.nodes, placement.nodes_on_accelerator) == (77, 4)
    assert placement.left_on_cpu == tuple(node.name for node in coverage.left_on_cpu)


def test_coverage_names_its_nodes_and_says_how_it_knows(
    options: RuntimeOptions, software_delegate: Path, tmp_path: Path
) -> None:
    coverage = coverage_of(two_in_two_out(tmp_path), options, software(software_delegate, nodes="1"))
    assert (coverage.accelerator, coverage.source) == ("software", "delegate walk")
    assert coverage.runtime.startswith(str(options.package).replace("_", "-"))
    assert [(node.name, node.operator) for node in coverage.nodes] == [("0 ADD sum", "ADD"), ("1 MUL product", "MUL")]
    assert coverage.node_share == 0.5


def test_a_must_that_is_not_kept_is_covered_all_the_same(
    options: RuntimeOptions, software_delegate: Path, tmp_path: Path
) -> None:
    accelerator = software(software_delegate, claim="").model_copy(update={"require": "must"})
    assert coverage_of(two_in_two_out(tmp_path), options, accelerator).node_share == 0


@pytest.mark.parametrize("wrong", [{"nonsense": 1}, {"claim": "all", "device": "/nowhere"}])
def test_a_delegate_that_cannot_be_loaded_has_no_coverage(
    options: RuntimeOptions, software_delegate: Path, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(AcceleratorNotUsable, match="cannot be loaded"):
        coverage_of(two_in_two_out(tmp_path), options, software(software_delegate, **wrong))


def test_work_is_counted_in_multiplications(options: RuntimeOptions, software_delegate: Path, tmp_path: Path) -> None:
    work = {
        node.name.partition(" ")[2]: node.work
        for node in coverage_of(DIGITS, options, software(software_delegate)).nodes
        if node.operator in ("DEPTHWISE_CONV_2D", "CONV_2D", "FULLY_CONNECTED", "MAX_POOL_2D")
    }
    assert sorted(work.values()) == [32, 320, 3456, 6912]
    dense = coverage_of(linear(tmp_path, rows=4), options, software(software_delegate))
    assert [node.work for node in dense.nodes] == [4 * 8 * 3]


def test_the_share_of_work_is_not_the_share_of_nodes(
    options: RuntimeOptions, software_delegate: Path, tmp_path: Path
) -> None:
    model = mobile(tmp_path)
    conv = coverage_of(model, options, software(software_delegate, claim="3"))  # CONV_2D
    first, block = 8 * 8 * 8 * 27, 64 * 16 * 8 + 64 * 16 * 16 + 64 * 8 * 16
    assert sum(node.work for node in conv.taken) == first + 8 * block
    assert sum(node.work for node in conv.nodes if node.operator == "DEPTHWISE_CONV_2D") == 8 * 64 * 16 * 9
    assert conv.node_share == pytest.approx(25 / 77)
    assert conv.work_share > 0.7


def test_xnnpack_by_name_shows_what_it_takes(options: RuntimeOptions, tmp_path: Path) -> None:
    xnnpack = AcceleratorOptions(provider="xnnpack", require="must")
    placement = TfliteRuntime(mobile(tmp_path), options, xnnpack).placement
    assert (placement.nodes, placement.nodes_on_accelerator) == (77, 77)
    with pytest.raises(AcceleratorNotUsable, match="needs `library`"):
        TfliteRuntime(mobile(tmp_path), options, AcceleratorOptions(provider="xnnpack_"))


def test_xnnpack_takes_no_int8_convolutions_in_tflite_runtime(options: RuntimeOptions) -> None:
    coverage = coverage_of(DIGITS, options, AcceleratorOptions(provider="xnnpack"))
    taken = {node.operator for node in coverage.taken}
    assert ("CONV_2D" in taken) == (options.package == "ai_edge_litert")
