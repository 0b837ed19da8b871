"""Weights of an ONNX model that lie in files of their own, copied into memory as the model is opened.

ONNX Runtime on the CPU maps such files and serves from the mapping: whoever copied new weights over old ones changed
the answers of the model in force, or ended the whole service with a bus error while the file was shorter.
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
from upwell.cloud.engines.onnx.errors import told_by
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
from upwell.cloud.engines.ort import onnxruntime, openvino_devices
from upwell.cloud.engines.steady import MAX_COPIED_BYTES
from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.files import external_places

_METHOD = "add_external_initializers_from_files_in_memory"
_MAX_FILE_BYTES = (1 << 31) - 1
"""A tensor in memory may have no more; a file that may hold a larger one is left to ONNX Runtime, which maps it."""


@contextmanager
def copied_weights(options: Any, path: Path) -> Iterator[None]:
    """In this block a session with these `options` copies the weights of the model at `path`.

    It checks their places against the sizes of their files. ONNX Runtime before 1.24 cannot copy, and maps. Raises
    `ModelFailed` where a file cannot be read or lies outside the model's folder.
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
    """Each location that the model names, as written there, with what lies there."""
    for location, weights in places.items():
        with open_plain(weights) as file:
            size = os.fstat(file.fileno()).st_size
            if 0 < size <= MAX_COPIED_BYTES:
                yield location, file.read(MAX_COPIED_BYTES)
            elif 0 < size <= _MAX_FILE_BYTES:
                yield location, held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


_log = logging.getLogger(__name__)

_LOG_FATAL = 4
"""What a session has to say comes as an exception. It would write errors to standard error as well, past our log,
with the texts of the model's maker as they are; what keeps a provider from starting is written there all the same."""
_RECORD_KEY = "session.record_ep_graph_assignment_info"
_NO_FALLBACK = {"enable_fallback": 0}
"""Else a session prints to standard output, makes itself anew on the CPU and says nothing to the program."""
_WITH_DEVICE_ID = tuple(
    full_name(name) for name in ("tensorrt", "cuda", "migraphx", "cann")
)  # the others name their devices in ways of their own


class _NotInEffect(Exception):
    """A provider does not start, or takes no node of the model; the text says so after its name and `is`."""


def open_session(name: str, path: Path, settings: ModelSettings) -> Any:
    """A session of the model `name` at `path`, on the providers that `settings` ask for.

    Where they are a choice, the log says which was taken and why not those before. Raises `ModelFailed` where none
    is in effect, with what is missing.
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
    """A session and where its nodes are. Raises `_NotInEffect`, and `ModelFailed` where the CPU alone is asked for.

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
        raise _NotInEffect(f"not able to start here (ONNX Runtime wrote why to standard error; {how})")
    counts = assigned(session)
    if counts is None:
        return session, f"{short_name(chain[0])} (onnxruntime {onnxruntime.__version__} cannot tell which nodes)"
    if not sum(count for one, count in counts.items() if one != CPU):
        raise _NotInEffect("not taking any node of the model")
    return session, ", ".join(f"{short_name(one)}: {count} nodes" for one, count in counts.items())


def assigned(session: Any) -> Mapping[str, int] | None:
    """Provider -> how many nodes of the graph the session gave it; None where ONNX Runtime is too old to tell."""
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
        onnxruntime.preload_dlls()  # or it does not find the CUDA libraries that pip has installed
    providers = [(one, _options_of(one, settings.device)) for one in chain]
    with copied_weights(options, path) if is_on_cpu else nullcontext():  # with others they stay where they are
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=providers, **_NO_FALLBACK)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {told_by(error, path)}") from error


def _options_of(provider: str, device: str) -> dict[str, str]:
    kind, _, number = device.partition(":")
    if provider in _WITH_DEVICE_ID and number:
        return {"device_id": number}
    if provider == OPENVINO:
        return {"device_type": _openvino_device(kind, number)}
    return {}


def _openvino_device(kind: str, number: str) -> str:
    """OpenVINO's own name of the device. Raises `_NotInEffect` where it finds none, for which it would say nothing."""
    found = openvino_devices()
    gpus = [one for one in found if one.startswith("GPU")]
    if kind == "cpu" or (kind == "auto" and not gpus):
        return "CPU"
    wanted = f"GPU.{number}" if number and f"GPU.{number}" in gpus else "GPU"
    if not gpus or (number not in ("", "0") and wanted == "GPU"):
        raise _NotInEffect(f"not able to find that GPU; it finds {', '.join(found) or 'nothing'}")
    return wanted
