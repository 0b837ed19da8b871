"""NVIDIA's own client examples, unchanged, against the real service.

They are not part of this repository. With `TRITON_EXAMPLES` naming the folder `src/python/examples` of
triton-inference-server/client, those that can apply are run.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from onnx import helper

from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import save, tensor

EXAMPLES = os.environ.get("TRITON_EXAMPLES", "")
PYTHON = os.environ.get("TRITON_PYTHON", sys.executable)  # one with `tritonclient[all]`, for the asyncio examples
CANNOT = {
    "health_metadata": "the server's name must be triton",
    "sequence": "a state between requests",
    "shm": "shared memory",
    "custom_repeat": "several answers to one request",
}
STATUS_HAS_TEXT = '"Invalid file path" not in st'
"""Of `simple_grpc_model_control.py` since 2026: it looks for a text in what its own client fills with a status code."""
NAMES = sorted(
    path.name
    for path in (Path(EXAMPLES).glob("simple_*.py") if EXAMPLES else ())
    if not any(part in path.name for part in CANNOT) and STATUS_HAS_TEXT not in path.read_text()
)
NAMES.sort(key=lambda name: "model_control" in name)  # these unload a model that the others ask
OTHERS = ("simple_int8", "simple_sequence", "simple_dyna_sequence", "inception_graphdef")
"""What fills NVIDIA's repository up to the seven models that the examples count over HTTP; over gRPC it has eight."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NAMES, reason="TRITON_EXAMPLES names no folder with NVIDIA's examples"),
]


def sum_and_difference(path: Path, datatype: str) -> Path:
    """Two inputs of 16 numbers, or texts of such, and their sum and difference."""
    nodes, numbers = [], ["INPUT0", "INPUT1"]
    if datatype == "BYTES":
        numbers = ["number0", "number1"]
        nodes = [helper.make_node("Cast", [f"INPUT{n}"], [f"number{n}"], to=6) for n in (0, 1)]
    results = ["total", "rest"] if datatype == "BYTES" else ["OUTPUT0", "OUTPUT1"]
    nodes += [helper.make_node("Add", numbers, results[:1]), helper.make_node("Sub", numbers, results[1:])]
    if datatype == "BYTES":
        nodes += [helper.make_node("Cast", [results[n]], [f"OUTPUT{n}"], to=8) for n in (0, 1)]
    sides = [[tensor(f"{side}{n}", ("rows", 16), datatype) for n in (0, 1)] for side in ("INPUT", "OUTPUT")]
    return save(path, nodes, sides[0], sides[1])


def repository(root: Path, *more: str) -> Path:
    """The examples' models: those that they ask, and those that they count."""
    for name in ("simple", "simple_string", "simple_identity", *OTHERS, *more):
        file = root / name / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        if name == "simple_identity":
            sides = [[tensor(f"{side}0", ("rows", 16), "BYTES")] for side in ("INPUT", "OUTPUT")]
            save(file, [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], sides[0], sides[1])
        else:
            sum_and_difference(file, "BYTES" if name == "simple_string" else "INT32")
    return root


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where each protocol is served, with as many models as the examples of that protocol count."""
    root = tmp_path_factory.mktemp("triton")
    with ExitStack() as running:
        found = {}
        for protocol, more in (("grpc", ["densenet_onnx"]), ("http", [])):
            folder = repository(root / protocol / "models", *more).parent
            (folder / "cloud.yaml").write_text(
                "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models, "
                "repository: {control: true}}\nmodels: {simple: {max_batch: 8}}\n"
            )
            service = running.enter_context(serving("-c", folder / "cloud.yaml"))
            over_http = next(line.split()[-1] for line in service.lines if line.startswith("HTTP on"))
            found[protocol] = over_http if protocol == "http" else service.address
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_well(addresses: dict[str, str], name: str) -> None:
    source = Path(EXAMPLES, name)
    address = addresses["http" if "_http_" in name else "grpc"]
    command = [PYTHON, str(source), "-u", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout or "PASS" not in source.read_text(), done.stdout + done.stderr
