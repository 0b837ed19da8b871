"""Run the accelerators' tests, each in its own environment, and write the matrix of what was really executed.

    python .ci/accelerators.py [NAME ...]        # NAME: a file of tests/accelerators/requirements, without .txt

The packages of accelerators exclude each other, so each gets `.venv-accelerators/NAME`, created if it is missing or
its pins have changed. A cell of the matrix is what a test recorded after its asserts; nothing else can write one.
Exit code 1 if an environment cannot be built or one of its tests fails; the pages then keep their table.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "accelerators"
REQUIREMENTS = TESTS / "requirements"
ENVIRONMENTS = ROOT / ".venv-accelerators"
DEEP = {
    "litert_npu": "test_litert_npu.py",
    "openvino": "test_openvino.py",
    "ort_profile": "test_onnx_profile.py",
    "qnn": "test_qnn.py",
}
"""Tests that an environment runs beside the common rows: each of these modules needs one version of its packages."""
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "onnx", "flatbuffers")
PAGE = TESTS / "results.md"
START, END = "<!-- accelerators: written by make test-accelerators -->", "<!-- end of accelerators -->"
COLUMNS = ("with", "executed", "placement", "agreement", "no device")
HEADS = ("what", "with", "executed here", "nodes there", "answers", "without the device")
STAMP = ".upwell"

Cells = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """The result of one environment: what its tests recorded, row by row, and the error (empty without one)."""

    name: str
    rows: Mapping[str, Cells]
    failure: str
    summary: str


def constraints(pins: str) -> str:
    """The tested set without the packages that `pins`, the text of a requirements file, sets itself."""
    pinned = {package(line) for line in pins.splitlines() if "==" in line and not line.startswith("#")}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if package(line) not in pinned) + "\n"


def package(line: str) -> str:
    """The normalized name of the package in a line of a requirements file."""
    return re.sub(r"[-_.]+", "-", re.split(r"[=<>!~; \[]", line, maxsplit=1)[0]).lower()


def prepare(name: str) -> str:
    """Create the environment or reuse the existing one; returns the error, or nothing."""
    folder, pins = ENVIRONMENTS / name, (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    bound = constraints(pins)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stamp = hashlib.sha256("\0".join([sys.version, pins, bound, project, *TOOLS]).encode()).hexdigest()
    if (folder / STAMP).is_file() and (folder / STAMP).read_text() == stamp:
        return ""
    uv = [sys.executable, "-m", "uv"]
    folder.parent.mkdir(exist_ok=True)
    file = folder.parent / f"{name}.constraints.txt"
    file.write_text(bound, encoding="utf-8")
    install = [*uv, "pip", "install", "--quiet", "--python", str(python(folder)), "--constraint", str(file),
               "--requirement", str(REQUIREMENTS / f"{name}.txt"), *TOOLS, "--editable", str(ROOT)]  # fmt: skip
    for command in ([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], install):
        # Not in the project's folder: there uv would apply the project's own constraints.
        done = subprocess.run(command, cwd=Path.home(), capture_output=True, text=True, check=False)  # noqa: S603  fixed
        if done.returncode != 0:
            return "cannot be built here: " + " ".join(done.stderr.split())[-400:]
    (folder / STAMP).write_text(stamp)
    return ""


def python(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run_tests(name: str) -> Outcome:
    """Run the tests in a prepared environment."""
    with tempfile.TemporaryDirectory(prefix="upwell-matrix-") as scratch:
        recorded = Path(scratch) / "recorded.jsonl"
        modules = [str(TESTS / module) for module in ("test_matrix_rows.py", DEEP.get(name)) if module]
        command = [str(python(ENVIRONMENTS / name)), "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules]
        environment = os.environ | {"UPWELL_ACCELERATOR": name, "UPWELL_MATRIX": str(recorded)}
        done = subprocess.run(  # noqa: S603  a fixed command
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        lines = recorded.read_text(encoding="utf-8").splitlines() if recorded.exists() else []
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
    if done.returncode < 0:
        last = f"signal {-done.returncode} ended them after {last}"
    failure = "" if done.returncode == 0 else f"its tests failed: {last}"
    return Outcome(name, gathered(map(json.loads, lines)), failure, last)


def gathered(records: Iterable[Mapping[str, str]]) -> Mapping[str, Cells]:
    """Row -> column -> the recorded texts, each once and in the order of the tests."""
    rows: dict[str, dict[str, list[str]]] = {}
    for one in records:
        cell = rows.setdefault(one["accelerator"], {}).setdefault(one["column"], [])
        if one["said"] not in cell:
            cell.append(one["said"])
    return rows


def table(outcomes: Sequence[Outcome]) -> str:
    """The matrix as Markdown. An environment that failed is a row that says so, whatever it recorded.

    A row recorded by two environments is merged: both of the exclusive packages may report it.
    """
    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    rows: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        if outcome.failure:
            lines.append(f"| environment `{outcome.name}` | **{escaped(outcome.failure)}** |" + " |" * (len(HEADS) - 2))
            continue
        for row, cells in outcome.rows.items():
            for column, said in cells.items():
                rows.setdefault(row, {}).setdefault(column, []).extend(said)
    for row, cells in rows.items():
        shown = ("; ".join(fullest(cells.get(column, ()))) or "–" for column in COLUMNS)
        lines.append(f"| {escaped(row)} | " + " | ".join(map(escaped, shown)) + " |")
    return "\n".join(lines)


def fullest(texts: Sequence[str]) -> Sequence[str]:
    """The texts without those that are the beginning of another: `int8 digits` beside `int8 digits, 594 pictures`."""
    return [text for text in texts if not any(other != text and other.startswith(text) for other in texts)]


def escaped(text: str) -> str:
    """Text for a cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def write(page: Path, matrix: str) -> bool:
    """Write the matrix between its marks; a page without them stays unchanged."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        return False
    page.write_text(f"{before}{START}\n{matrix}\n{END}{after}", encoding="utf-8")
    return True


def main(names: Sequence[str]) -> int:
    """Prepare and test each environment, print the matrix, and write it if all of them succeeded."""
    known = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such environment: {', '.join(unknown)}; expected some of {', '.join(known)}", file=sys.stderr)
        return 2
    outcomes = []
    for name in names or known:
        started = time.monotonic()
        failure = prepare(name)
        outcome = Outcome(name, {}, failure, failure) if failure else run_tests(name)
        print(f"{'FAIL' if outcome.failure else 'ok  '} {name} ({time.monotonic() - started:.0f} s): {outcome.summary}")
        outcomes.append(outcome)
    matrix = table(outcomes)
    print(f"\n{matrix}\n")
    if any(outcome.failure for outcome in outcomes):
        return 1
    written = not names and write(PAGE, matrix)
    print(f"written to {PAGE}" if written else "not written: the page has no marks, or not all were asked")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
