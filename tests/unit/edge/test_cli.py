"""The `upwell` command: exit codes, one clear sentence, no traceback; and what importing the agent brings along."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
import typer

from tests.in_process import InProcess

UPWELL = Path(sys.executable).with_name("upwell")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [UPWELL, *arguments], capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False
    )


@pytest.fixture
def upwell(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """The command in this process, with that environment."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return in_process


def test_the_version_is_that_of_the_package() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"upwell {version('upwell')}\n", "")


def test_help_names_every_command(upwell: InProcess) -> None:
    done = upwell("--help")
    assert (done.code, done.err) == (0, "")
    for entry in entry_points(group="upwell.commands"):
        assert entry.name.partition(".")[0] in done.out


def test_the_line_of_each_command_in_the_help_is_its_first_and_ends_there() -> None:
    for entry in entry_points(group="upwell.commands"):
        command = entry.load()
        if not isinstance(command, typer.Typer):
            first, _, rest = command.__doc__.partition("\n")
            assert first, entry.name
            assert not rest.partition("\n")[0].strip(), entry.name


def test_help_of_a_group_names_its_commands(upwell: InProcess) -> None:
    for group, names in {
        "policy": {"calibrate", "check", "collect", "explain", "schema", "simulate"},
        "spool": {"list", "purge"},
    }.items():
        done = upwell(group, "--help")
        assert (done.code, done.err) == (0, "")
        assert all(name in done.out for name in names)


WRONG = [
    (("nope",), "nope"),
    (("agent",), "--config"),
    (("agent", "--config"), "--config"),
    (("agent", "--confg", "x"), "--confg"),
    (("agent", "-c", "/nonexistent/agent.yaml"), "error: /nonexistent/agent.yaml: no such file"),
    (("agent", "-c", "/"), "error: /: this is a folder; expected a YAML file"),
    (("agent", "-c", "/dev/null"), "error: /dev/null: the file is empty"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_wrong_use_says_what_is_wrong_and_exits_with_2(
    upwell: InProcess, arguments: tuple[str, ...], says: str
) -> None:
    done = upwell(*arguments)
    assert done.code == 2
    assert says in done.err
    assert done.out == ""


def test_the_process_says_it_too_and_shows_no_traceback(upwell: InProcess) -> None:
    arguments, _ = WRONG[-1]
    done, expected = process(*arguments), upwell(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (expected.code, expected.out, expected.err)


def test_every_problem_of_a_file_is_a_line_with_its_place(upwell: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("agent: {listen: [nowhere]}\nmodels: {m: {}}\ntypo: 1\n")
    done = upwell("agent", "-c", str(path))
    assert done.code == 2
    lines = done.err.removeprefix("error: ").splitlines()
    assert [line.removeprefix(f"{path}:").split(" ")[0] for line in lines] == ["1:18:", "2:13:", "3:1:"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "section",
    [
        pytest.param("listen: ['127.0.0.1:{port}']", marks=pytest.mark.exhaustive),
        "listen: ['127.0.0.1:0'], metrics: '127.0.0.1:{port}'",
    ],
)
def test_an_address_that_is_taken_ends_the_agent_with_a_sentence(tmp_path: Path, section: str) -> None:
    import socket

    from tests.unit.models_for_tests import identity

    model = identity(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = tmp_path / "agent.yaml"
        path.write_text(f"agent: {{{section.format(port=port)}}}\nmodels: {{m: {{edge: {{file: {model.name}}}}}}}\n")
        done = process("agent", "-c", str(path))
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("listen", "endpoint"),
    [
        ("listen: ['127.0.0.1:8001']", "localhost:8001"),
        ("listen: ['0.0.0.0:8001'], insecure: true", "127.0.0.1:8001"),
        ("listen: ['unix:/run/a.sock']", "unix:/run/a.sock"),
        ("listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:8001']", "http://127.0.0.1:8001"),
    ],
)
def test_an_agent_that_would_be_its_own_cloud_does_not_start(
    upwell: InProcess, tmp_path: Path, listen: str, endpoint: str
) -> None:
    """Without a service on the default port, the agent took it, and each hard request came back until all were busy."""
    path = tmp_path / "agent.yaml"
    path.write_text(f"agent: {{{listen}}}\ncloud: {{endpoint: '{endpoint}'}}\nmodels: {{m: {{cloud: {{model: m}}}}}}\n")
    done = upwell("agent", "-c", str(path))
    assert done.code == 2
    assert f"cloud.endpoint: {endpoint} is this agent's own address" in done.err


@pytest.mark.parametrize(
    "arguments",
    ["agent --help", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("--version", "infer --help"))],
)
def test_a_command_imports_no_other_and_no_runtime(arguments: str) -> None:
    script = (
        "import sys; from upwell.tools import cli\n"
        f"sys.argv = ['upwell', *{arguments!r}.split()]\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print('\\n'.join(['-- modules', *sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.partition("-- modules\n")[2].split())
    assert modules
    heavy = {
        "torch",
        "onnxruntime",
        "ai_edge_litert",
        "tflite_runtime",
        "matplotlib",
        "sklearn",
        "upwell.cloud",
        "onnx",
    }
    assert not modules & heavy


def imported_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_the_agent_is_light() -> None:
    modules = imported_by("from upwell.edge import Agent")
    assert "upwell.edge.agent" in modules
    assert not modules & {"numpy", "grpc", "pydantic", "prometheus_client", "upwell.edge.server.agent_core"}


def test_what_an_agent_is_made_of_imports_no_runtime_and_no_terminal() -> None:
    modules = imported_by("from upwell.edge.server import agent_assembly")
    heavy = {"torch", "onnxruntime", "onnx", "ai_edge_litert", "tflite_runtime", "matplotlib", "sklearn", "scipy"}
    assert not modules & heavy
    assert not {name for name in modules if name.startswith(("upwell.cloud", "typer", "rich"))}


def test_listing_cases_imports_no_pipelines() -> None:
    modules = imported_by("import upwell.tools.cases.cli")
    assert "upwell.tools.cases.case_source" in modules
    assert not {name for name in modules if name.startswith("upwell.pipelines")}


def test_the_configuration_in_force_is_printed_and_nothing_is_run(upwell: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("models: {m: {edge: {file: missing.onnx}}}\n")
    asked = ("agent", "-c", path, "--print-config")
    written, as_json = upwell(*asked), upwell(*asked, "--json")
    assert (written.code, written.err, as_json.code, as_json.err) == (0, "", 0, "")
    found = json.loads(as_json.out)
    assert found["models"]["m"]["edge"]["file"] == str(tmp_path / "missing.onnx")
    assert f"file: {tmp_path}/missing.onnx" in written.out
    assert upwell("agent", "-c", path, "--json").err.strip() == "error: --json needs --print-config"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_clear_line() -> None:
    script = "import sys; from upwell.tools.cli import main; sys.argv[1:] = ['--version']; main()"
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device; make room" in done.stderr
