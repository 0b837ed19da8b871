"""The program behind `make test-accelerators`: whose pins hold, and that a cell shows what was recorded and no more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accelerators", ROOT / ".ci" / "accelerators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_an_environment_keeps_the_tested_set_but_for_its_own_pins(program: ModuleType) -> None:
    text = program.constraints("# about ai_edge_litert==1\nai_edge.litert==2.3.0\nopenvino==2026.3.1\n")
    bound = {program.package(line) for line in text.splitlines() if "==" in line and not line.startswith("#")}
    assert "ai-edge-litert" not in bound
    assert {"numpy", "grpcio", "ruamel-yaml", "pytest"} <= bound


def test_every_environment_pins_what_it_is_about(program: ModuleType) -> None:
    files = sorted(program.REQUIREMENTS.glob("*.txt"))
    assert [file.stem for file in files] == ["litert_npu", "openvino", "ort_profile", "qnn", "tflite"]
    for file in files:
        pins = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert pins
        assert all("==" in pin for pin in pins)


def test_a_cell_holds_what_was_recorded(program: ModuleType) -> None:
    def line(accelerator: str, column: str, said: str) -> dict[str, str]:
        return {"accelerator": accelerator, "column": column, "said": said}

    first = program.gathered([line("npu", "executed", "digits"), line("npu", "executed", "digits, 594"),
                              line("npu", "placement", "10 of 10"), line("npu", "placement", "10 of 10")])  # fmt: skip
    second = program.gathered([line("npu", "no device", "`a|b` refused")])
    outcomes = [program.Outcome("one", first, "", ""), program.Outcome("two", second, "", ""),
                program.Outcome("three", second, "cannot be built here: no wheel", "")]  # fmt: skip
    _, _, *rows = program.table(outcomes).splitlines()
    assert rows == [
        "| environment `three` | **cannot be built here: no wheel** | | | | |",
        r"| npu | – | digits, 594 | 10 of 10 | – | `a\|b` refused |",
    ]


def test_a_page_is_written_between_its_marks_alone(program: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{program.START}\nold\n{program.END}\nafter\n")
    assert program.write(page, "new")
    assert page.read_text() == f"before\n{program.START}\nnew\n{program.END}\nafter\n"
    page.write_text("no marks")
    assert not program.write(page, "new")
    assert page.read_text() == "no marks"
    assert not program.write(tmp_path / "none.md", "new")


def test_an_environment_that_does_not_exist_is_wrong_use(
    program: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["hailo"]) == 2
    assert "hailo" in capsys.readouterr().err
