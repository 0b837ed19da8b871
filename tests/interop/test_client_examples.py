"""examples/clients against real servers, each where what it needs is installed."""

import http.server
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from ruamel.yaml import YAML

from tests.integration.cloud.serving import serving
from tests.integration.pipelines.preview.browser import CHROMIUM, DRIVER, Browser
from tests.unit.models_for_tests import linear, linear_weights, save, tensor
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.http.server.server import start_http_server

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "examples" / "clients"
PICTURES = """version: 1
signature:
  inputs: {image: {kind: image}}
  outputs: {scores: {kind: logits}}
pre:
  - {decode: image}
  - {resize: {to: [2, 2], fit: stretch}}
  - {normalize: {mean: [0, 0, 0], std: [1, 1, 1]}}
  - {layout: NCHW}
post: []
"""

GO_PACKAGES = tuple(Path("/usr/share/doc", name) for name in ("golang-google-grpc-dev", "protoc-gen-go-1-3"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A linear model over gRPC and HTTP: the two addresses."""
    root = tmp_path_factory.mktemp("clients")
    folder = root / "models" / "linear" / "1"
    folder.mkdir(parents=True)
    linear(folder, seed=1).rename(folder / "model.onnx")
    (root / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models}\n"
    )
    with serving("-c", root / "cloud.yaml") as running:
        yield running.address, next(line.split()[-1] for line in running.lines if line.startswith("HTTP on"))


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


NEEDED = {
    "client.cpp": ("protoc", "grpc_cpp_plugin", "g++", "pkg-config"),
    "client.go": ("protoc", "protoc-gen-go", "go"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_compiled_client_is_built_as_its_first_lines_say(service: tuple[str, str], tmp_path: Path, name: str) -> None:
    if missing := [one for one in NEEDED[name] if shutil.which(one) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    if name == "client.go" and not all(path.is_dir() for path in GO_PACKAGES):
        pytest.skip("Debian's packages of gRPC for Go are not installed")
    if (
        name == "client.cpp"
        and subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"], check=False).returncode
    ):
        pytest.skip("libgrpc++-dev or libprotobuf-dev is not installed")
    source = CLIENTS / name
    commands = re.findall(r"^//   (.*)", source.read_text(), re.MULTILINE)
    shutil.copy(source, tmp_path)
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    run("sh", "-ec", "\n".join(commands[:-1]), cwd=tmp_path)
    name, *values = run(tmp_path / "client", service[0], "linear", "x", "8").split()
    weights, bias = linear_weights(seed=1)
    assert name == "scores"
    np.testing.assert_allclose([float(one) for one in values], weights.sum(axis=0) + bias, rtol=1e-3)
    failed = subprocess.run([tmp_path / "client", service[0], "none", "x", "8"], capture_output=True, check=False)
    assert (failed.returncode, b"no model 'none'" in failed.stderr) == (1, True)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """A site of its own with the page: `localhost`, which is another site than 127.0.0.1."""
    shutil.copy(CLIENTS / "browser.html", tmp_path)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason="chromium and chromium-driver are not installed")
def test_a_page_of_an_allowed_site_calls_from_a_real_browser(
    pages: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    body = {"inputs": [{"name": "fp32", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 2]}]}
    browser = Browser(tmp_path_factory.mktemp("browser"))  # a short path, as its sockets lie there
    try:
        for origins, shown in (((pages,), '"outputs"'), ((), "failed: ")):
            server = start_http_server(
                FakeDataplane(), ["127.0.0.1:0"], max_workers=2, connections=Connections(origins=origins)
            )
            at = f"http://{server.addresses[0]}"
            browser.open(f"{pages}/browser.html?at={quote(at)}&model=echo&json={quote(json.dumps(body))}")
            browser.until(f"document.getElementById('answer').textContent.includes({json.dumps(shown)})")
            server.stop(0)
    finally:
        browser.close()


@pytest.fixture
def camera(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A model that takes pictures, and one."""
    folder = tmp_path / "models" / "cats" / "1"
    folder.mkdir(parents=True)
    _pictures_model(folder)
    (folder / "model.yaml").write_text(PICTURES)
    picture = tmp_path / "door.jpg"
    Image.new("RGB", (8, 8), (200, 40, 40)).save(picture)
    (tmp_path / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models}\n"
    )
    with serving("-c", tmp_path / "cloud.yaml") as running:
        yield next(line.split()[-1] for line in running.lines if line.startswith("HTTP on")), picture


def _pictures_model(folder: Path) -> None:
    node = helper.make_node("Flatten", ["x"], ["scores"])
    save(folder / "model.onnx", [node], [tensor("x", ("rows", 3, 2, 2))], [tensor("scores", ("rows", 12))])


def outputs_of(answer: str) -> list[str]:
    return [one["name"] for one in json.loads(answer)["outputs"]]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_home_assistant_s_command_gets_an_answer(camera: tuple[str, Path]) -> None:
    address, picture = camera
    file = YAML(typ="safe").load((CLIENTS / "home_assistant.yaml").read_text())
    command = file["shell_command"]["ask_upwell"].replace("upwell.local:8000", address)
    assert outputs_of(run(*shlex.split(command.replace("/config/www/door.jpg", str(picture))))) == ["scores"]
    assert file["automation"][0]["actions"][1]["action"] == "shell_command.ask_upwell"


def test_node_red_s_flow_sends_what_is_answered(camera: tuple[str, Path]) -> None:
    address, picture = camera
    flow = {one["id"]: one for one in json.loads((CLIENTS / "node_red.json").read_text())}
    assert all(to in flow for one in flow.values() for wire in one.get("wires", []) for to in wire)
    node = flow["ask"]
    headers = {one["keyType"]: one["valueValue"] for one in node["headers"]}
    url = node["url"].replace("upwell.local:8000", address)
    with urlopen(Request(url, picture.read_bytes(), headers, method=node["method"]), timeout=10) as reply:  # noqa: S310
        assert outputs_of(reply.read().decode()) == ["scores"]


def test_opencv_s_loop_asks_for_each_frame(camera: tuple[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    address, picture = camera
    frames = tmp_path / "frame_%02d.jpg"
    for number in range(3):
        shutil.copy(picture, str(frames) % number)
    url = f"http://{address}/v2/models/cats/infer"
    assert urlsplit(url).path.endswith("infer")
    said = run(sys.executable, CLIENTS / "opencv_loop.py", url, str(frames))
    assert len(re.findall(r" scores \[1, 12\] ", said)) == 3
