"""Wrong use of `upwell serve`: one clear sentence, the right exit code, no traceback."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_process import InProcess
from tests.integration.cloud.serving import serve_and_fail

BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv[:] = ["upwell", *{arguments!r}]
from upwell.tools.cli import main
main()
"""


def without(absent: list[str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `upwell` as if these packages were not installed."""
    program = BLOCKED.format(absent=absent, arguments=list(map(str, arguments)))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --config cloud.yaml, or --models"),
        (["--models", "{missing}"], "no such folder; expected a model repository"),
        (["--models", "{here}"], "no model here; expected <name>/<version>/model.onnx"),
        (["--config", "{missing}"], "no such file"),
        (["--config", "{missing}", "--models", "{here}"], "--models cannot be combined with --config"),
        (["--config", "{missing}", "--insecure"], "--insecure cannot be combined with --config"),
        (["--models", "{models}", "--tls-cert", "{here}"], "TLS needs --tls-cert and --tls-key"),
        (["--models", "{models}", "--client-ca", "{here}"], "--client-ca needs both"),
        (["--models", "{models}", "--max-message", "64"], "--max-message: .*64MiB"),
        (["--models", "{models}", "--max-message", "0"], "--max-message: expected more than 0"),
        (["--models", "{models}", "--listen", "nowhere"], "'nowhere' is not an address"),
        (["--models", "{models}", "--tokens", "{missing}", "--listen", "127.0.0.1:0"], "missing"),
    ],
)
def test_wrong_use_is_one_sentence(
    tmp_path: Path, repository: Path, in_process: InProcess, arguments: list[str], says: str
) -> None:
    places = {"missing": tmp_path / "missing", "here": tmp_path, "models": repository}
    ended = in_process("serve", *[argument.format(**places) for argument in arguments])
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(f"error: .*{says}.*\n", ended.err)


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path: Path, in_process: InProcess) -> None:
    (tmp_path / "cloud.yaml").write_text("version: 1\nserve: {listen: [], modles: m}\ndefaults: {threads: 0}\n")
    ended = in_process("serve", "-c", tmp_path / "cloud.yaml")
    assert ended.code == 2
    for wrong in ("serve.listen", "modles", "defaults.threads", "cloud.yaml:2:"):
        assert wrong in ended.err


def test_a_metrics_port_in_use_is_said_before_any_model_is_looked_for(tmp_path: Path, in_process: InProcess) -> None:
    path = tmp_path / "cloud.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(f"serve: {{listen: ['127.0.0.1:0'], models: {tmp_path}, metrics: '{address}'}}\n")
        ended = in_process("serve", "-c", path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith(f"serve.metrics: cannot listen on {address}: it is in use by another program\n")


@pytest.mark.slow
def test_settings_of_what_is_not_there_are_said_with_the_file_that_holds_them(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "cloud.yaml"
    path.write_text(
        f"serve: {{listen: ['127.0.0.1:0'], models: {repository}}}\n"
        "models: {nobody: {max_batch: 2}, linear: {versions: [9]}}\n"
    )
    code, said = serve_and_fail("-c", path)
    assert code == 2
    first, second = said.splitlines()
    assert first.startswith(f"error: {path}: models.nobody: not in {repository}; available: ")
    assert second.startswith(f"{path}: models.linear.versions: there is no version 9; available: 1, 2")


@pytest.mark.parametrize("engine", ["onnx", pytest.param("torch", marks=pytest.mark.exhaustive)])
def test_without_any_good_model_it_ends_with_all_reasons(tmp_path: Path, engine: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "notes.txt").touch()
    code, said = serve_and_fail("--models", tmp_path, "--engine", engine)
    assert code == 1
    assert "error: no model can be served: one version 1: no model." in said
    assert "; two version 1: no model." in said
    assert "Traceback" not in said


def test_a_port_in_use_is_said_to_be_so_before_models_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = serve_and_fail("--models", tmp_path, "--listen", address)
    assert code == 2
    assert said.strip() == f"error: cannot listen on {address}: it is in use by another program"


@pytest.mark.parametrize(
    ("absent", "flags", "says"),
    [
        (["grpc_health"], [], "upwell serve needs grpc_health: pip install 'upwell[cloud]'"),
        pytest.param(
            ["grpc_reflection"],
            [],
            "upwell serve needs grpc_reflection: pip install 'upwell[cloud]'",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ["onnxruntime"],
            [],
            "engine onnx needs onnxruntime: pip install 'upwell[cloud]'",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ["torch"],
            ["--engine", "torch"],
            "engine torch needs torch: pip install 'upwell[torch]'",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ["safetensors"],
            ["--engine", "torch"],
            "engine torch needs safetensors: pip install 'upwell[torch]'",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_missing_extra_is_named(repository: Path, absent: list[str], flags: list[str], says: str) -> None:
    done = without(absent, "serve", "--models", repository, "--listen", "127.0.0.1:0", *flags)
    assert done.stderr == f"error: {says}\n"
    assert done.returncode == 2


@pytest.mark.slow
def test_help_needs_no_extra() -> None:
    done = without(["grpc_health", "grpc_reflection", "onnxruntime", "torch"], "serve", "--help")
    assert done.returncode == 0, done.stderr
    assert "--models" in done.stdout
