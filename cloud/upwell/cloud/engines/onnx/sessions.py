"""ONNX Runtime sessions, with external weights copied into memory when the model is opened.

ONNX Runtime on the CPU maps such files and serves from the mapping: copying new weights over old ones would change the
answers of the running model, or end the service with a bus error while the file is shorter.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.error_text import onnxruntime_reason
from upwell.cloud.engines.model_files import MAX_COPIED_BYTES
from upwell.cloud.engines.onnx.providers import (
    CPU,
    CUDA,
    INSTALL,
    OPENVINO,
    choose_providers,
    full_name,
    short_name,
    wanted_providers,
    why_skipped,
)
from upwell.cloud.engines.onnxruntime_import import onnxruntime, openvino_devices
from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.file import BadOnnxFile, external_places

_METHOD = "add_external_initializers_from_files_in_memory"
_MAX_FILE_BYTES = (1 << 31) - 1
"""Maximum size of a tensor in memory (bytes); a larger file is left to ONNX Runtime, which maps it."""


@contextmanager
def copied_weights(options: Any, path: Path) -> Iterator[None]:
    """Make a session with these `options` copy the weights of the model at `path` within the block.

    The offsets are checked against the file sizes. ONNX Runtime before 1.24 cannot copy, and maps. Raises `ModelFailed`
    if a file cannot be read or lies outside the model's folder.
    """
    with ExitStack() as held:
        try:
            places = external_places(path)
            files = dict(_contents(places, held)) if hasattr(options, _METHOD) else {}
        except BadOnnxFile as error:
            raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {error}") from None
        except OSError as error:
            raise ModelFailed(f"weights of {path.name} cannot be read: {error.strerror}") from error
        if files:
            getattr(options, _METHOD)(list(files), list(files.values()), [len(data) for data in files.values()])
        yield


def _contents(places: Mapping[str, Path], held: ExitStack) -> Iterator[tuple[str, bytes | mmap.mmap]]:
    """Each location named in the model, with the file's content."""
    for location, weights in places.items():
        with open_plain(weights) as file:
            size = os.fstat(file.fileno()).st_size
            if 0 < size <= MAX_COPIED_BYTES:
                yield location, file.read(MAX_COPIED_BYTES)
            elif 0 < size <= _MAX_FILE_BYTES:
                yield location, held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


_log = logging.getLogger(__name__)

_LOG_FATAL = 4
"""Log level of sessions, whose errors come as exceptions: they would also be written to standard error, bypassing our
log, with unescaped text from the model. Problems in starting a provider are written there all the same."""
_RECORD_KEY = "session.record_ep_graph_assignment_info"
_NO_FALLBACK = {"enable_fallback": 0}
"""Without this a failing session prints to standard output and silently recreates itself on the CPU."""
_WITH_DEVICE_ID = tuple(
    full_name(name) for name in ("tensorrt", "cuda", "migraphx", "cann")
)  # the others have their own names for devices


class _NotInEffect(Exception):
    """A provider does not start, or takes no node of the model; the text continues the provider's name and `is`."""


def open_session(name: str, path: Path, settings: ModelSettings) -> Any:
    """Open a session of the model `name` at `path`, on the providers that `settings` request.

    For a choice, the log says which was taken and why others were skipped. Raises `ModelFailed` with what is missing if
    none works.
    """
    wanted = wanted_providers(settings.device, settings.providers)
    if wanted.names == (CPU,):
        return _create(path, settings, (CPU,))
    choice = choose_providers(onnxruntime.get_available_providers(), wanted)
    skipped = dict(choice.skipped)
    for chain in choice.chains:
        try:
            session, taken = _open(path, settings, chain, required=chain[:1] if wanted.first else chain)
        except _NotInEffect as error:
            skipped[chain[0]] = str(error)
            continue
        passed = {one: why for one, why in skipped.items() if one != chain[0]}
        _log.info("model %s runs on %s%s", name, taken, f" ({why_skipped(passed)})" if passed and wanted.first else "")
        return session
    raise ModelFailed(f"none of its providers can be used: {why_skipped(skipped)}")


def _open(path: Path, settings: ModelSettings, chain: Sequence[str], required: Sequence[str]) -> tuple[Any, str]:
    """Open a session; returns it with its placement. Raises `_NotInEffect`, or `ModelFailed` if only the CPU is
    requested.

    All of `required` must have started.
    """
    if chain[0] == CPU:
        return _create(path, settings, chain), short_name(CPU)
    try:
        session = _create(path, settings, chain)
    except ModelFailed as error:
        raise _NotInEffect(f"not able to run it: {error}") from None
    missing = [one for one in required if one not in session.get_providers()]
    if missing:
        how = INSTALL.get(missing[0], "its libraries or its device are missing")
        raise _NotInEffect(f"not able to start here (see ONNX Runtime's messages on standard error; {how})")
    counts = assigned(session)
    if counts is None:
        return session, f"{short_name(chain[0])} (onnxruntime {onnxruntime.__version__} cannot report which nodes)"
    if not sum(count for one, count in counts.items() if one != CPU):
        raise _NotInEffect("not taking any node of the model")
    return session, ", ".join(f"{short_name(one)}: {count} nodes" for one, count in counts.items())


def assigned(session: Any) -> Mapping[str, int] | None:
    """The number of nodes by provider in the session's graph; None if ONNX Runtime is too old to report it."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    counts: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] += len(part.get_nodes())
    return counts


def _create(path: Path, settings: ModelSettings, chain: Sequence[str]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_FATAL
    is_on_cpu = tuple(chain) == (CPU,)
    if not is_on_cpu:
        options.add_session_config_entry(_RECORD_KEY, "1")
    if CUDA in chain and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # otherwise it does not find CUDA libraries installed by pip
    providers = [(one, _options_of(one, settings.device)) for one in chain]
    with copied_weights(options, path) if is_on_cpu else nullcontext():  # other providers handle them on their own
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=providers, **_NO_FALLBACK)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {onnxruntime_reason(error, path)}") from error


def _options_of(provider: str, device: str) -> dict[str, str]:
    kind, _, number = device.partition(":")
    if provider in _WITH_DEVICE_ID and number:
        return {"device_id": number}
    if provider == OPENVINO:
        return {"device_type": _openvino_device(kind, number)}
    return {}


def _openvino_device(kind: str, number: str) -> str:
    """OpenVINO's name of the device. Raises `_NotInEffect` if it is missing, which OpenVINO would not report."""
    found = openvino_devices()
    gpus = [one for one in found if one.startswith("GPU")]
    if kind == "cpu" or (kind == "auto" and not gpus):
        return "CPU"
    wanted = f"GPU.{number}" if number and f"GPU.{number}" in gpus else "GPU"
    if not gpus or (number not in ("", "0") and wanted == "GPU"):
        raise _NotInEffect(f"not able to find that GPU; it finds {', '.join(found) or 'nothing'}")
    return wanted
