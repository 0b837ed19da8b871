"""`upwell doctor`: one report of all checks. Each returns findings, whatever the state of a machine or file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from upwell.cloud.config import CloudConfig
from upwell.cloud.repository.model_folders import scan
from upwell.edge.bundle.bundle import Trust
from upwell.edge.bundle.open_bundle import open_bundle
from upwell.edge.config import AgentConfig
from upwell.edge.models.model_config import EdgeSide, SplitSection
from upwell.edge.models.runtime_candidates import files_of
from upwell.edge.spool.open_database import DAMAGED_SUFFIX, check_integrity, connect, is_damage
from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.config.security import TlsFiles
from upwell.shared.config.yaml import load_yaml, read_text
from upwell.shared.errors import EXIT_FAILED, ConfigError, UpwellError
from upwell.shared.files import open_plain
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.open_client import open_client
from upwell.shared.partition.split.split_file import split_file_of
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.units import count_of
from upwell.tools.devices.cli import evidence, folded
from upwell.tools.devices.runtime_probe import installed, rows_of
from upwell.tools.server_yaml import load_server_yaml
from upwell.tools.terminal import AsJson, plain, stderr_console, stdout_console

Level = Literal["ok", "warning", "problem"]

SOON_S = 30 * 86400.0
"""Remaining lifetime below which a certificate gets a warning."""

TIMEOUT_S = 3.0
_LEAST_FREE_BYTES = 256 << 20
_LEAST_YEAR_S = 1_735_689_600.0  # 2025: no version of Upwell is older
_DAY_S = 86400.0
_SILENT = (RemoteErrorKind.UNAVAILABLE, RemoteErrorKind.DEADLINE, RemoteErrorKind.CERTIFICATE)
"""Errors that need no answer of the server; the others quote it."""

PACKAGES: Mapping[str, str] = {
    "numpy": "",
    "grpcio": "",
    "protobuf": "",
    "pillow": "",
    "pydantic": "",
    "onnxruntime": "onnx",
    "onnxruntime-gpu": "",
    "onnxruntime-openvino": "",
    "onnxruntime-qnn": "",
    "ai-edge-litert": "litert",
    "tflite-runtime": "",
    "torch": "torch",
    "av": "pipelines",
    "paho-mqtt": "pipelines",
    "cel-expr-python": "cel",
    "cryptography": "bundle",
    "opentelemetry-sdk": "telemetry",
}
"""Packages that decide what works, with the extra to name if one is missing."""

_MARKS: Mapping[Level, str] = {"ok": "  ", "warning": "? ", "problem": "! "}


@dataclass(frozen=True)
class DoctorFinding:
    """The result of one check: its subject, its status, and a sentence."""

    subject: str
    level: Level
    text: str


def machine() -> Iterator[DoctorFinding]:
    """Upwell, Python, the system, memory, and whether the clock can be relied on."""
    yield DoctorFinding("upwell", "ok", importlib.metadata.version("upwell"))
    yield DoctorFinding("python", "ok", f"{platform.python_version()} at {sys.prefix}")
    yield DoctorFinding("system", "ok", f"{platform.platform()}, {os.cpu_count()} cores{_memory()}")
    yield _clock(time.time(), _is_synchronized())


def _memory() -> str:
    try:
        size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # Windows
        return ""
    return f", {size_bytes / 2**30:.1f} GiB of memory"


def _is_synchronized() -> bool | None:
    """Whether the system's clock is synchronized; None if the system does not say."""
    command = shutil.which("timedatectl")
    if command is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  the system's own command, found on PATH, without a shell
            [command, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())


def _clock(now_s: float, synchronized: bool | None) -> DoctorFinding:
    told = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    if now_s < _LEAST_YEAR_S:
        return DoctorFinding("clock", "problem", f"{told}: the clock was never set; certificates and budgets need it")
    if synchronized is False:
        return DoctorFinding(
            "clock", "warning", f"{told}, not synchronized (no NTP): certificates and budgets may be judged wrongly"
        )
    return DoctorFinding("clock", "ok", told + (", synchronized" if synchronized else ", synchronization unknown"))


def packages() -> Iterator[DoctorFinding]:
    """The versions of installed packages, and conflicts between them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    yield DoctorFinding("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items()))
    absent = {extra for name, extra in PACKAGES.items() if extra and name not in found}
    if absent:
        yield DoctorFinding("extras not installed", "ok", ", ".join(sorted(absent)))
    yield from conflicts(found)


def conflicts(found: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """The conflicts between the packages `found`, by their versions."""
    builds = [name for name in found if name.startswith("onnxruntime") and name != "onnxruntime-qnn"]
    if len(builds) > 1:
        text = f"{' and '.join(builds)} overwrite each other's files; keep one per environment"
        yield DoctorFinding("onnxruntime", "problem", text)
    if "tflite-runtime" in found and not found.get("numpy", "1").startswith("1."):
        text = f"tflite-runtime needs numpy below 2, but {found['numpy']} is installed; use ai-edge-litert, or numpy 1"
        yield DoctorFinding("tflite-runtime", "problem", text)
    if not builds and "ai-edge-litert" not in found and "tflite-runtime" not in found:
        yield DoctorFinding(
            "runtimes", "warning", "no runtime is installed, so no model runs here: pip install 'upwell[edge]'"
        )


def configuration(path: Path, now_s: float) -> Iterator[DoctorFinding]:
    """An agent.yaml or cloud.yaml and everything it names: files, ports, disk, certificates, the cloud."""
    if unreadable := _unreadable(path):
        yield DoctorFinding("configuration", "problem", unreadable)
        return
    try:
        config = load_server_yaml(path)
    except ConfigError as error:
        for problem in error.problems:
            yield DoctorFinding("configuration", "problem", str(problem))
        return
    yield DoctorFinding("configuration", "ok", f"{path} is valid")
    if isinstance(config, CloudConfig):
        yield from _service(config, now_s)
    else:
        yield from _agent(config, now_s)


def _unreadable(path: Path) -> str:
    """Why the file cannot be read, empty where it can. A pipe is not waited for."""
    try:
        open_plain(path).close()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""


def _agent(config: AgentConfig, now_s: float) -> Iterator[DoctorFinding]:
    section = config.agent
    yield from ports([*section.listen, *section.listen_http, *([section.metrics] if section.metrics else [])])
    yield from _certificates("agent.tls", section.security.tls, now_s)
    if section.state_dir is not None:
        yield from disk("state_dir", section.state_dir, max(_LEAST_FREE_BYTES, section.spool.limit))
        yield from databases(section.state_dir)
    for name, model in config.models.items():
        if model.edge is not None and model.edge.has_source:
            yield _model(name, model.edge, config.agent.trust.trust)
        if isinstance(model.split, SplitSection):
            plan = model.split.plan
            unreadable = _unreadable(split_file_of(plan))
            yield DoctorFinding("split", "problem" if unreadable else "ok", f"{name}: {unreadable or plan}")
    if config.policy is not None and (unreadable := _unreadable(config.policy)):
        yield DoctorFinding("policy", "problem", unreadable)
    elif config.policy is not None:
        try:
            load_yaml(config.policy, Policy)
        except ConfigError as error:
            for problem in error.problems:
                yield DoctorFinding("policy", "problem", str(problem))
        else:
            yield DoctorFinding("policy", "ok", f"{config.policy} is valid")
    for key, path in _named_files(config):
        unreadable = _unreadable(path)
        yield DoctorFinding(key, "problem" if unreadable else "ok", unreadable or str(path))
    if config.pipelines is not None:
        yield from _pipelines(config, config.pipelines)
    if config.cloud is not None:
        yield from _certificates("cloud.tls", config.cloud.security.tls, now_s)
        for endpoint in config.cloud.endpoints:
            yield _endpoint(endpoint, config)


def _named_files(config: AgentConfig) -> Iterator[tuple[str, Path]]:
    """Keys, tokens and certificates that the configuration names, by their place in it."""
    agent, release = config.agent, config.release
    named: list[tuple[str, Path | None]] = [("agent.tokens", agent.tokens)]
    named += [("agent.trust.keys", path) for path in agent.trust.keys]
    if agent.cases is not None:
        named += [("agent.cases.key_file", agent.cases.key_file), ("agent.cases.storage_ca", agent.cases.storage_ca)]
    if config.cloud is not None:
        named.append(("cloud.token_file", config.cloud.token_file))
    if config.fleet is not None:
        named.append(("fleet.ca", config.fleet.ca))
    if release is not None:
        named += [("release.root", release.root), ("release.ca", release.ca)]
        named.append(("release.floor.policy", release.floor.policy))
    for name, model in config.models.items():
        if model.edge is not None and model.edge.updates is not None:
            named.append((f"models.{name}.edge.updates.ca", model.edge.updates.ca))
    yield from ((key, path) for key, path in named if path is not None)


def _pipelines(config: AgentConfig, path: Path) -> Iterator[DoctorFinding]:
    from upwell.pipelines.config.model_signatures import signatures_of  # an agent without pipelines needs neither
    from upwell.pipelines.config.pipelines_check import parse_pipelines

    if unreadable := _unreadable(path):
        yield DoctorFinding("pipelines", "problem", unreadable)
        return
    try:
        _, doubts = parse_pipelines(read_text(path), path, signatures_of(config))
    except ConfigError as error:
        yield from (DoctorFinding("pipelines", "problem", str(problem)) for problem in error.problems)
        return
    yield from (DoctorFinding("pipelines", "warning", str(doubt)) for doubt in doubts)
    yield DoctorFinding("pipelines", "ok", f"{path} is valid")


def _model(name: str, side: EdgeSide, trust: Trust) -> DoctorFinding:
    """Whether the files of a model on the device are there, and those of a bundle as they were packed and signed."""
    problem, bundle = "", None
    try:
        if side.bundle is not None and not side.bundle.is_dir():
            problem = _unreadable(side.bundle)  # an archive, which is verified as it is unpacked
        else:
            bundle = None if side.bundle is None else open_bundle(side.bundle, trust)
            described_by = files_of(side, bundle).description
            problem = _unreadable(described_by) if os.path.lexists(described_by) else ""
            if described_by.is_file():
                load_description(described_by)
    except ConfigError as error:
        problem = "; ".join(map(str, error.problems))
    return DoctorFinding("model", "problem" if problem else "ok", f"{name}: {problem or side.bundle or side.file}")


def _service(config: CloudConfig, now_s: float) -> Iterator[DoctorFinding]:
    serve = config.serve
    yield from ports([*serve.listen, *serve.listen_http, *([serve.metrics] if serve.metrics else [])])
    yield from _certificates("serve.tls", serve.security.tls, now_s)
    if serve.tokens is not None:
        unreadable = _unreadable(serve.tokens)
        yield DoctorFinding("serve.tokens", "problem" if unreadable else "ok", unreadable or str(serve.tokens))
    try:
        folders = scan(serve.models)
    except ConfigError as error:
        yield DoctorFinding("models", "problem", str(error))
    else:
        yield DoctorFinding("models", "ok", ", ".join(f"{one.name}/{one.version}" for one in folders))
    yield from disk("models", serve.models, 0)


def ports(listen: Sequence[str]) -> Iterator[DoctorFinding]:
    """Whether each address can be listened on. One in use may belong to the very process this file is for."""
    for text in listen:
        address = parse_address(text)
        if address.socket_path is None:
            yield _port(text, address)
        elif not address.socket_path.parent.is_dir():
            yield DoctorFinding("port", "problem", f"{text}: there is no folder {address.socket_path.parent}")
        elif not os.access(address.socket_path.parent, os.W_OK):
            yield DoctorFinding(
                "port", "problem", f"{text}: {address.socket_path.parent} cannot be written by this user"
            )
        else:
            yield DoctorFinding("port", "ok", f"{text} can be created")


def _port(text: str, address: Address) -> DoctorFinding:
    try:
        where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(*where[:3]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where[4])
    except OSError as error:
        hint = "; fine if that is this agent or service" if error.errno in (98, 48, 10048) else ""
        return DoctorFinding("port", "warning" if hint else "problem", f"{text}: {error.strerror or error}{hint}")
    return DoctorFinding("port", "ok", f"{text} is free")


def disk(what: str, folder: Path, wanted_bytes: int) -> Iterator[DoctorFinding]:
    """Whether the folder can be written and has room."""
    existing = next((one for one in (folder, *folder.parents) if one.is_dir()), None)
    if existing is None:
        yield DoctorFinding(what, "problem", f"{folder}: no such folder")
        return
    if wanted_bytes and not os.access(existing, os.W_OK):
        yield DoctorFinding(what, "problem", f"{folder} cannot be written by this user")
    free_bytes = shutil.disk_usage(existing).free
    text = f"{folder}: {free_bytes / 2**30:.1f} GiB free"
    if free_bytes < wanted_bytes:
        yield DoctorFinding(what, "warning", f"{text}, {wanted_bytes / 2**30:.1f} GiB may be needed")
    else:
        yield DoctorFinding(what, "ok", text)


def databases(state_dir: Path) -> Iterator[DoctorFinding]:
    """The databases of an agent, which may run, that cannot be read, and those that it has set aside as damaged."""
    for path in sorted(state_dir.glob(f"*.db{DAMAGED_SUFFIX}")):
        text = f"{path} was damaged and replaced; its contents were lost. Delete it once you have looked at it"
        yield DoctorFinding("state_dir", "warning", text)
    for path in sorted(state_dir.glob("*.db")):
        try:
            with closing(connect(path)) as connection:
                check_integrity(connection)
        except sqlite3.Error as error:
            if is_damage(error):
                text = f"{path}: {error}; the agent replaces it when it next starts, and its contents are lost"
                yield DoctorFinding("state_dir", "problem", text)
            else:
                yield DoctorFinding("state_dir", "warning", f"{path} cannot be checked: {error}")


def _certificates(what: str, files: TlsFiles | None, now_s: float) -> Iterator[DoctorFinding]:
    if files is None:
        return
    try:
        from cryptography.x509 import load_pem_x509_certificates
    except ImportError:
        yield DoctorFinding(
            what, "warning", "checking when certificates expire needs an extra: pip install 'upwell[bundle]'"
        )
        return
    for path in (files.cert, files.ca):
        if path is None:
            continue
        if problem := _unreadable(path):
            yield DoctorFinding(what, "problem", problem)
            continue
        try:
            end_s = min(one.not_valid_after_utc.timestamp() for one in load_pem_x509_certificates(path.read_bytes()))
            yield expiry(what, path, end_s, now_s)
        except ValueError:
            yield DoctorFinding(what, "problem", f"{path} contains no certificate in PEM")
        except OSError as error:
            yield DoctorFinding(what, "problem", f"{path} cannot be read: {error.strerror}")
    if problem := _key_problem(files):
        yield DoctorFinding(what, "problem", problem)


def _key_problem(files: TlsFiles) -> str:
    """What is wrong with the private key, empty if there is none or it is that of the certificate."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificates

    if files.key is None or files.cert is None or _unreadable(files.cert):
        return ""
    if unreadable := _unreadable(files.key):
        return unreadable
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        own = load_pem_private_key(files.key.read_bytes(), None).public_key().public_bytes(*form)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a TypeError for one with a passphrase
        return f"{files.key} contains no private key in PEM without a passphrase"
    try:
        certified = load_pem_x509_certificates(files.cert.read_bytes())[0].public_key().public_bytes(*form)
    except ValueError:
        return ""  # which is said of the certificate
    return "" if own == certified else f"{files.key} is not the key of {files.cert}"


def expiry(what: str, path: Path, end_s: float, now_s: float) -> DoctorFinding:
    """How long a certificate is still valid."""
    day = time.strftime("%Y-%m-%d", time.gmtime(end_s))
    if end_s <= now_s:
        return DoctorFinding(what, "problem", f"{path} expired on {day}")
    left = f"{path} expires on {day}, in {(end_s - now_s) / _DAY_S:.0f} days"
    return DoctorFinding(what, "warning" if end_s - now_s < SOON_S else "ok", left)


def _endpoint(endpoint: str, config: AgentConfig) -> DoctorFinding:
    assert config.cloud is not None  # noqa: S101  who asks has seen to it
    try:
        client = open_client(endpoint, config.cloud.security)
    except ConfigError as error:
        return DoctorFinding("cloud", "problem", str(error))
    try:
        started_s = time.monotonic()
        metadata = client.server_metadata(TIMEOUT_S)
        took_ms = 1e3 * (time.monotonic() - started_s)
    except UpwellError as error:
        what = "says" if isinstance(error, RemoteError) and error.kind not in _SILENT else "does not answer"
        return DoctorFinding("cloud", "problem", f"{endpoint} {what}: {error}")
    finally:
        client.close()
    return DoctorFinding(
        "cloud", "ok", f"{endpoint} is {metadata.name} {metadata.version}, answers in {took_ms:.0f} ms"
    )


def doctor(
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", help="An agent.yaml or cloud.yaml to check; may be repeated."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not try the accelerators, which takes seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine: packages, accelerators, clock and, for each file, ports, disk, certificates and the cloud.

    Changes nothing. Exit code 1 if there is a problem. The report holds no secrets, but names and paths.
    """
    findings = [*machine(), *packages(), *([] if quick else _accelerators())]
    for path in config or ():
        findings += configuration(path, time.time())
    problems = sum(one.level == "problem" for one in findings)
    if as_json:
        typer.echo(json.dumps({"problems": problems, "findings": [asdict(one) for one in findings]}))
    else:
        _show(findings, problems)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _accelerators() -> list[DoctorFinding]:
    found = []
    with stderr_console().status("") as status:
        for package in installed():
            rows = list(rows_of(package, lambda name: status.update(f"trying {name}")))
            for alike in folded(rows):
                first = alike[0]
                level: Level = "warning" if first.status == "not usable" else "ok"
                found.append(
                    DoctorFinding(f"{first.runtime} {first.accelerator}", level, f"{first.status}: {evidence(first)}")
                )
    return found


def _show(findings: Sequence[DoctorFinding], problems: int) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for one in findings:
        grid.add_row(plain(_MARKS[one.level] + one.subject), plain(one.text))
    console = stdout_console()
    console.print(grid)
    console.print()
    warnings = sum(one.level == "warning" for one in findings)
    console.print(Text(f"{count_of(problems, 'problem')} (!), {count_of(warnings, 'warning')} (?)"))
