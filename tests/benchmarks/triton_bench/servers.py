"""The servers side by side: how each is set up with the same models, started, awaited and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.benchmarks.triton_bench.report import TRITON
from tests.benchmarks.triton_bench.work import ROOT, SERVICE, Work, WrongAnswer, check
from upwell.shared.oip.codec.converters import parse_server_metadata

HERE = Path(__file__).parent
ENVIRONMENT = ROOT / ".venv-triton"
INSTANCES = 2
MLSERVER, PLAIN = "MLServer", "20-line server"
UPWELL, UPWELL_WORKERS = "Upwell, one process", "Upwell, two workers"

_START_S, _STOP_S, _CHILDREN_S, _END_S = 90.0, 20.0, 5.0, 2.0
_LOG_LINES = 40

_FACTS = """
import importlib.metadata as m, json, sysconfig
names = ("nvidia-pytriton", "mlserver", "onnxruntime", "numpy", "grpcio")
print(json.dumps({
    "versions": {name: m.version(name) for name in names}, "python": sysconfig.get_python_version(),
    "packages": sysconfig.get_path("purelib"), "libraries": sysconfig.get_config_var("LIBDIR"),
    "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
}))
"""


class CannotStart(Exception):
    """A server, or the environment that the others live in, is not there or does not work."""


@dataclass(frozen=True)
class Environment:
    """The virtual environment with Triton and MLServer in it."""

    python: Path
    packages: Path
    libraries: Path
    python_version: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Launch:
    """How one server is started: it is to listen on 127.0.0.1 at `port` alone."""

    name: str
    port: int
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"


def find_environment() -> Environment:
    """What `make bench-triton` has built. Raises `CannotStart`."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise CannotStart(f"{ENVIRONMENT.name} is not there: run `make bench-triton`, which builds it")
    ran = subprocess.run([python, "-c", _FACTS], capture_output=True, text=True, check=False, timeout=60)
    if ran.returncode:
        raise CannotStart(f"{ENVIRONMENT.name} is broken, remove it and build it again:\n{ran.stderr.strip()}")
    facts: dict[str, Any] = json.loads(ran.stdout)
    if not facts["shared"]:
        raise CannotStart(
            "Triton's Python backend needs libpython, and this Python was built without it: make .venv-triton with a "
            "Python that has one (a system's own, or one built with --enable-shared)"
        )
    return Environment(python, Path(facts["packages"]), Path(facts["libraries"]), facts["python"], facts["versions"])


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def upwell(name: str, folder: Path, models: Path, *, workers: int) -> Launch:
    """Our service: `INSTANCES` of each model in all, over so many processes."""
    folder.mkdir()
    port = free_port()
    config = {
        "version": 1,
        "serve": {"listen": [f"127.0.0.1:{port}"], "models": str(models), "workers": workers},
        "defaults": {"instances": INSTANCES // workers, "threads": 1},
    }
    (folder / "cloud.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = [str(Path(sys.executable).with_name("upwell")), "serve", "--config", str(folder / "cloud.yaml")]
    return Launch(name, port, command, folder)


def plain(folder: Path, works: Sequence[Work]) -> Launch:
    """The 20-line server with as many threads as others have instances."""
    folder.mkdir()
    port = free_port()
    models = [f"{work.name}={work.model}" for work in works]
    return Launch(PLAIN, port, [sys.executable, str(HERE / "plain_server.py"), str(port), *models], folder)


def triton(folder: Path, works: Sequence[Work], environment: Environment) -> Launch:
    """The real binary on a model repository of Python models, with nothing but gRPC."""
    home = environment.packages / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(home / "backends" / "python", backend)
    stub = home / "python_backend_stubs" / environment.python_version / "triton_python_backend_stub"
    if not stub.exists():
        raise CannotStart(f"this nvidia-pytriton has no Python backend for Python {environment.python_version}")
    (backend / stub.name).write_bytes(stub.read_bytes())
    for file in (backend / stub.name, home / "bin" / "tritonserver"):
        file.chmod(0o755)
    for work in works:
        version = folder / "models" / work.name / "1"
        version.mkdir(parents=True)
        shutil.copy(HERE / "triton_model.py", version / "model.py")
        (version / "packages.txt").write_text(str(environment.packages))
        version.with_name("config.pbtxt").write_text(_triton_config(work))
    port = free_port()
    places = ["--model-repository", str(folder / "models"), "--backend-directory", str(folder / "backends")]
    grpc_only = ["--allow-http=false", "--allow-metrics=false", "--grpc-address=127.0.0.1", f"--grpc-port={port}"]
    libraries = [environment.packages / "nvidia_pytriton.libs", environment.libraries]
    variables = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}
    return Launch(TRITON, port, [str(home / "bin" / "tritonserver"), *places, *grpc_only], folder, variables)


def _triton_config(work: Work) -> str:
    def sides(word: str, arrays: Mapping[str, Any]) -> str:
        return "".join(
            f'{word} [ {{ name: "{name}" data_type: TYPE_FP32 dims: {list(array.shape)} }} ]\n'
            for name, array in arrays.items()
        )

    return (
        f'name: "{work.name}"\nbackend: "python"\nmax_batch_size: 0\n'
        f"{sides('input', work.inputs)}{sides('output', work.expected)}"
        f"instance_group [ {{ count: {INSTANCES} kind: KIND_CPU }} ]\n"
        f'parameters {{ key: "file" value: {{ string_value: "{work.model}" }} }}\n'
    )


def mlserver(folder: Path, works: Sequence[Work], environment: Environment) -> Launch:
    """MLServer with a custom runtime in as many worker processes as others have instances."""
    folder.mkdir()
    shutil.copy(HERE / "mlserver_runtime.py", folder)
    port = free_port()
    ports = {"grpc_port": port, "http_port": free_port(), "metrics_port": free_port()}
    settings = {"host": "127.0.0.1", **ports, "parallel_workers": INSTANCES, "debug": False, "metrics_endpoint": None}
    (folder / "settings.json").write_text(json.dumps(settings))
    for work in works:
        model = {
            "name": work.name,
            "implementation": "mlserver_runtime.SessionRuntime",
            "parameters": {"uri": str(work.model), "version": "1"},
        }
        (folder / work.name).mkdir()
        (folder / work.name / "model-settings.json").write_text(json.dumps(model))
    command = [str(environment.python.with_name("mlserver")), "start", str(folder)]
    return Launch(MLSERVER, port, command, folder, {"PYTHONPATH": str(folder)})


def triton_version(launch: Launch) -> str:
    """The version that the server itself tells."""
    with grpc.insecure_channel(launch.target) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{SERVICE}/ServerMetadata")
        return parse_server_metadata(call(b"", timeout=10)).version


class Server:
    """A server under way, from its first right answers on; with `with`, until it is stopped with all it has started."""

    def __init__(self, launch: Launch, works: Sequence[Work]) -> None:
        self._launch, self._works = launch, works

    def __enter__(self) -> Server:
        """Raises `CannotStart` with the end of its log where it does not answer, `WrongAnswer` where wrongly."""
        with (self._launch.folder / "log.txt").open("ab") as sink:
            self._process = subprocess.Popen(
                self._launch.command,
                cwd=self._launch.folder,
                env={**os.environ, **self._launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait(self._launch, self._process, self._works)
        except BaseException:
            _stop(self._process)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _stop(self._process)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        return self._process.pid

    def revive(self) -> None:
        """Start it again if it has ended by itself, or does so within a moment."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return
        _stop(self._process)
        self.__enter__()


def _wait(launch: Launch, process: subprocess.Popen[bytes], works: Sequence[Work]) -> None:
    limit_s = time.monotonic() + _START_S
    with grpc.insecure_channel(launch.target, [("grpc.max_reconnect_backoff_ms", 200)]) as channel:
        for work in works:
            while True:
                try:
                    check(channel, work)
                    break
                except (grpc.RpcError, WrongAnswer) as error:
                    if isinstance(error, WrongAnswer) or process.poll() is not None or time.monotonic() > limit_s:
                        said = error.details() if isinstance(error, grpc.Call) else error
                        log = launch.folder / "log.txt"
                        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
                        raise CannotStart(f"{launch.name} does not serve {work.name}: {said}\n{tail}") from None
                time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it, and then whatever it has left behind."""
    started = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    limit_s = time.monotonic() + _CHILDREN_S  # they end by themselves, and may have to tidy up
    while (left := [child for child, born in started.items() if _born(child) == born]) and time.monotonic() < limit_s:
        time.sleep(0.05)
    for child in left:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _descendants(pid: int) -> dict[int, str]:
    """The processes that `pid` and its children have started, with the time at which each was."""
    found: dict[int, str] = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child: _born(child)} | _descendants(child)
    return found


def _born(pid: int) -> str:
    """When `pid` was started, in the system's own unit; empty where there is no such process."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
