"""Probing an unknown library or a new model in a separate process before the agent opens it.

A delegate or provider library that crashes or hangs takes its process with it, and so does a model. So the first
process to open a model with such a library is a child (`main`), under the device's exclusive lock and never while the
device is open elsewhere. The outcome is remembered under everything it may depend on: the digests of library and model,
the versions of runtime package and driver, the options. A new model on the CPU is probed once, without a lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from upwell.edge.runtimes import device_lock
from upwell.edge.runtimes.device_lock import DeviceBusy, DeviceLock
from upwell.edge.runtimes.input_check import run_on_zeros
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions, located
from upwell.shared.errors import UpwellError
from upwell.shared.files import parse_json, read_json, write_whole
from upwell.shared.formats.model_digest import model_digest, sha256_of
from upwell.shared.platform.process import end_with_parent
from upwell.shared.value_classes import value_class

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

TIMEOUT_S = 120.0
"""Time limit for opening a model and running it once, after which it counts as hung."""
RESULTS_NAME = "probes.json"

_MAX_RESULTS = 64
_MAX_RESULTS_BYTES = 1 << 20
_STDERR_TAIL_BYTES = 400
_KILL_S = 5.0
_DRIVERS = ("nvidia", "apex", "galcore", "rknpu", "intel_vpu", "amdxdna", "hailo_pci", "qaic", "mali", "ethosu")
"""Kernel modules of accelerators; those with a version in /sys/module count as drivers."""

_NICE = 5
"""Lowers the priority, so that the agent's requests come first on the CPU."""

_CRASHES = frozenset(
    getattr(signal, name, None) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")
)
"""Signals that mean a crash of the process itself; other signals may come from outside."""

_KILLED = getattr(signal, "SIGKILL", 9)
"""What Linux sends the process that takes the last of the memory."""

_SUSPECT = "suspect"
"""Stored while an unprobed model is opened; it remains if that ends the process."""

_opened: set[tuple[str, str]] = set()
"""Libraries, with their options, that this process has opened successfully."""
_lock = threading.Lock()


class ProbeCrashed(AcceleratorNotUsable):
    """The subject crashed the probing process, and would crash this one."""


class ProbeKilled(AcceleratorNotUsable):
    """The probing process was killed: the subject was not ready in time, or took the machine's memory."""


@value_class
class ProbeSubject:
    """The subject of a probe: a model, its options, the accelerator (with a library), and the runtime's version."""

    path: Path
    options: RuntimeOptions
    accelerator: AcceleratorOptions
    version: str
    cache_dir: Path | None = None

    @property
    def library(self) -> str:
        """The library's name in messages and locks: its real path if it can be found."""
        found = located(self.accelerator.library)
        return str(self.accelerator.library) if found is None else str(found)

    @property
    def means(self) -> tuple[str, str]:
        """The library with its options, which other models may share."""
        return self.library, repr(sorted(self.accelerator.option_texts().items()))

    def key(self) -> str:
        """A digest of everything that a probe's outcome may depend on; empty if the library cannot be found."""
        library = located(self.accelerator.library)
        if library is None:
            return ""
        facts = {
            "library": sha256_of(library).hex(),
            "runtime": self.version,
            "driver": driver_versions(),
            "provider": self.accelerator.provider,
            "options": self.accelerator.option_texts(),
            "model": model_digest(self.path),
            "batch": self.options.batch,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def enter(subject: ProbeSubject, state_dir: Path | None, timeout_s: float = TIMEOUT_S) -> DeviceLock:
    """Make sure that opening the model is safe, and lock the device; the caller releases it after closing the model.

    While this process itself has the device open with the same options, another model is opened without a probe;
    `survived` records success, and after a crash the next start knows. Raises `AcceleratorNotUsable` with what happened
    to the child or to an earlier one, or because the device is in use and nothing is known.
    """
    library, options = subject.library, subject.accelerator.option_texts()
    _try_out(subject, None if state_dir is None else state_dir / RESULTS_NAME, timeout_s)
    try:
        return device_lock.hold(library, options, timeout_s)
    except DeviceBusy as error:
        raise AcceleratorNotUsable(f"{library}: {error}") from None


def survived(subject: ProbeSubject, state_dir: Path | None) -> None:
    """Record that this process opened the model, ran it unless it was refused, and survived."""
    with _lock:
        _opened.add(subject.means)
    if state_dir is not None:
        results, key = state_dir / RESULTS_NAME, subject.key()
        if _read(results).get(key) == _SUSPECT:
            _remember(results, key, "")


def _try_out(subject: ProbeSubject, results: Path | None, timeout_s: float) -> None:
    key = "" if results is None else subject.key()
    known = None if results is None else _read(results).get(key)
    if known == "":
        return
    if known not in (None, _SUSPECT):
        raise AcceleratorNotUsable(f"{known} (at an earlier start; delete {results} to try again)")
    try:
        lock = device_lock.try_out(subject.library, subject.accelerator.option_texts(), timeout_s)
    except DeviceBusy as error:
        if known == _SUSPECT:
            why = f"{subject.library} may have crashed the agent before, and cannot be probed now: {error}"
            raise AcceleratorNotUsable(why) from None
        with _lock:
            is_ours = subject.means in _opened
            shares = subject.library in [library for library, _ in _opened]
        if not is_ours:
            why = f"{subject.library} was never probed with these options, and cannot be probed now: {error}"
            advice = "; models of one agent share a device only with equal options" if shares else ""
            raise AcceleratorNotUsable(f"{why}{advice}") from None
        _remember(results, key, _SUSPECT)
        return
    try:
        run_child(subject, timeout_s, lock)
    except ProbeCrashed as error:
        _remember(results, key, str(error))
        raise
    finally:
        lock.release()
    _remember(results, key, "")


def run_child(subject: ProbeSubject, timeout_s: float, lock: DeviceLock) -> None:
    """Open the model in a child process, which shares `lock`, and run it once.

    Raises `ProbeCrashed`, `ProbeKilled` or a plain `AcceleratorNotUsable` with the failure or refusal.
    """
    about = {
        "accelerator": subject.accelerator.model_dump(mode="json"),
        "cache_dir": None if subject.cache_dir is None else str(subject.cache_dir.absolute()),
    }
    _probe(subject.path, subject.options, Path(subject.library).name, about, timeout_s, lock.descriptors)


def try_on_cpu(path: Path, options: RuntimeOptions, timeout_s: float) -> None:
    """Open a model on the CPU in a child process and run it once.

    Raises `ProbeCrashed` and `ProbeKilled`; other problems are reported when it is really opened.
    """
    if not sys.executable:  # embedded in a program without a known Python executable
        return
    try:
        _probe(path, options, path.name, {"accelerator": None, "cache_dir": None}, timeout_s, ())
    except (ProbeCrashed, ProbeKilled):
        raise
    except AcceleratorNotUsable:
        return


def _probe(
    path: Path,
    options: RuntimeOptions,
    name: str,
    about: Mapping[str, object],
    timeout_s: float,
    descriptors: Sequence[int],
) -> None:
    request = {
        "path": str(path.absolute()),
        "options": options.model_dump(mode="json", include={"runtime", "threads", "batch", "package"}),
        "timeout_s": timeout_s,
        "parent": os.getpid(),
        **about,
    }
    with tempfile.TemporaryFile() as noise:
        code, answer = _talk(json.dumps(request).encode(), noise, timeout_s, descriptors)
        said = _said(noise)
    if code == 0:
        if not answer:
            raise ProbeCrashed(f"{name} ended the probing process{said}")
        refused = parse_json(answer)["refused"]
        if refused:
            raise AcceleratorNotUsable(str(refused))
    elif code in (None, -signal.SIGALRM):
        raise ProbeKilled(f"{name} hung for {timeout_s:g} s in the probing process, which was killed")
    elif code == -_KILLED:
        raise ProbeKilled(f"the process that probed {name} was killed, perhaps for lack of memory{said}")
    elif -code in _CRASHES:
        raise ProbeCrashed(f"{name} crashed the probing process with {signal.Signals(-code).name}{said}")
    else:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise AcceleratorNotUsable(f"the process that probed {name} ended with {how}{said}")


def _talk(request: bytes, noise: IO[bytes], timeout_s: float, descriptors: Sequence[int]) -> tuple[int | None, bytes]:
    """The child's exit code, None if it was killed for hanging, and its answer."""
    command = [sys.executable, "-m", "upwell.edge.runtimes.probe_process"]
    try:
        child = subprocess.Popen(  # noqa: S603  no shell, and no text of a user's in it
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise,
            cwd=Path(sys.executable).anchor,  # Python searches for modules in the working directory
            pass_fds=descriptors,  # so that the device stays locked if a driver keeps the child alive
        )  # fmt: skip
    except OSError as error:
        raise AcceleratorNotUsable(f"no process can be started to probe it: {error.strerror}") from None
    try:
        answer, _ = child.communicate(request, timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver can keep a killed process alive
            child.communicate(timeout=_KILL_S)
        return None, b""
    return child.returncode, answer


def _said(noise: IO[bytes]) -> str:
    """The last line that the child wrote to standard error."""
    size = noise.seek(0, os.SEEK_END)
    noise.seek(max(0, size - _STDERR_TAIL_BYTES))
    lines = noise.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last}" if last else ""


def driver_versions() -> Mapping[str, str]:
    """The versions of drivers as far as known without the vendor: the kernel's release and its modules' versions."""
    versions = {"kernel": platform.release()}
    places = {name: Path("/sys/module") / name / "version" for name in _DRIVERS}
    places["nvidia"] = Path("/proc/driver/nvidia/version")
    for name, path in places.items():
        with suppress(OSError):
            versions[name] = path.read_text(errors="replace").strip()
    return versions


def _read(results: Path) -> dict[str, str]:
    """The stored outcomes: reason by key, empty for success. An unreadable file counts as empty."""
    try:
        found = read_json(results, _MAX_RESULTS_BYTES)
    except (OSError, ValueError):
        return {}
    known = found.get("results") if isinstance(found, dict) and found.get("version") == 1 else None
    if not isinstance(known, dict):
        return {}
    return {str(key): why for key, why in known.items() if isinstance(why, str)}


def _remember(results: Path | None, key: str, why: str) -> None:
    """Store the outcome with the most recent ones. If writing fails, the next start probes again."""
    if results is None or not key:
        return
    with _lock, suppress(OSError):
        others = [one for one in _read(results).items() if one[0] != key]
        kept = dict([*others, (key, why)][-_MAX_RESULTS:])
        results.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(results, json.dumps({"version": 1, "results": kept}, indent=1).encode())


def main() -> None:
    """The child: probe the subject given on standard input.

    It takes one JSON object there (`path`, `options`, `accelerator`, `cache_dir`, `timeout_s`, `parent`) and prints one
    on standard output: `{"refused": reason}`, the reason empty on success. It ends with its parent process (on Linux),
    and after `timeout_s` at the latest, even if a library hangs.
    """
    request = json.load(sys.stdin)
    end_with_parent(request["parent"])
    if hasattr(signal, "alarm"):
        signal.alarm(int(request["timeout_s"]) + 1)  # ends this process even while a library holds the GIL
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # out of memory, Linux kills this process rather than the agent
        Path("/proc/self/oom_score_adj").write_text("1000")
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    reason = _open_and_run(request)
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump({"refused": reason}, out)
    # Some libraries crash when unloaded at the end of the process; the agent never unloads one.
    sys.stderr.flush()
    os._exit(0)


def _open_and_run(request: dict[str, Any]) -> str:
    """Open the model and run it once on zeros; returns why that was refused, or ""."""
    cache_dir, accelerator = request["cache_dir"], request["accelerator"]
    if accelerator is None and hasattr(os, "nice"):
        os.nice(_NICE)
    try:
        runtime = load_runtime(
            Path(request["path"]),
            RuntimeOptions.model_validate(request["options"]),
            None if accelerator is None else AcceleratorOptions.model_validate(accelerator),
            cache_dir=None if cache_dir is None else Path(cache_dir),
        )
        run_on_zeros(runtime)
    except (AcceleratorNotUsable, UpwellError) as error:
        return str(error)
    return "" if accelerator is None else runtime.placement.reason


if __name__ == "__main__":
    main()
