"""ONNX Runtime: the default engine, its sessions, and the choice of execution providers and their order."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from upwell.cloud.engines.base import StoppableRun
from upwell.cloud.engines.batch_checks_and_buckets import check_batch, zero_batch
from upwell.cloud.engines.device_loss import run_error
from upwell.cloud.engines.error_text import onnxruntime_reason
from upwell.cloud.engines.model_settings import AUTOMATIC, ModelSettings
from upwell.cloud.engines.onnxruntime_import import InvalidArgument, onnxruntime, openvino_devices
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.formats.onnx.file import BadOnnxFile, foreign_operators
from upwell.shared.formats.onnx.tensor_types import UnsupportedTensor, bytes_of, spec_of, text_of
from upwell.shared.formats.onnx.weights_in_memory import weights_in_memory
from upwell.shared.tensors import Array, TensorSpec

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
_SUFFIX = "ExecutionProvider"

INSTALL: Mapping[str, str] = {
    "TensorrtExecutionProvider": "pip install onnxruntime-gpu (instead of onnxruntime), and NVIDIA's TensorRT",
    "MIGraphXExecutionProvider": "install AMD's onnxruntime-migraphx (instead of onnxruntime), and ROCm",
    CUDA: "pip install 'onnxruntime-gpu[cuda,cudnn]' (instead of onnxruntime), and the driver",
    "CANNExecutionProvider": "pip install onnxruntime-cann (instead of onnxruntime), and Huawei's CANN",
    OPENVINO: "pip install onnxruntime-openvino (instead of onnxruntime)",
    "CoreMLExecutionProvider": "it needs onnxruntime on a Mac",
    CPU: "pip install onnxruntime",
}
"""Providers in the order in which `auto` tries them, with what each needs."""

_OF_DEVICE: Mapping[str, tuple[str, ...]] = {
    "cuda": ("TensorrtExecutionProvider", "MIGraphXExecutionProvider", CUDA),
    "npu": ("CANNExecutionProvider",),
    "xpu": (OPENVINO,),
    "mps": ("CoreMLExecutionProvider",),
    "cpu": (CPU,),
}
_BESIDE: Mapping[str, str] = {"TensorrtExecutionProvider": CUDA}
"""Secondary providers for nodes that a provider leaves, before the CPU."""

_LOG_FATAL = 4
"""Log level of sessions, whose errors come as exceptions: they would also be written to standard error, bypassing our
log, with unescaped text from the model. Problems in starting a provider are written there all the same."""

_RECORD_KEY = "session.record_ep_graph_assignment_info"
_NO_FALLBACK = {"enable_fallback": 0}
"""Without this a failing session prints to standard output and silently recreates itself on the CPU."""

_WARM_UP_LIMIT_S = 3600.0
"""Without a limit one model with an endless loop would keep all others from being loaded. Providers may compile for
many minutes."""

_NAMED = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WantedProvider:
    """Providers by their full names: all of them, or with `first` the first that works."""

    names: tuple[str, ...]
    first: bool


@dataclass(frozen=True)
class Choice:
    """Lists of providers to try in order until one works, and why others were skipped."""

    chains: tuple[tuple[str, ...], ...]
    skipped: Mapping[str, str]


def wanted_providers(device: str, providers: Sequence[str]) -> WantedProvider:
    """The providers requested by the settings `device` and `providers`; `providers` takes precedence.

    Raises `ModelFailed` for a device without a provider, and if the two contradict each other.
    """
    if tuple(providers) == (AUTOMATIC,) or (not providers and device == AUTOMATIC):
        return WantedProvider(tuple(INSTALL), first=True)
    kind, _, number = device.partition(":")
    if providers:
        if AUTOMATIC in providers:
            raise ModelFailed("`providers: [auto]` must stand alone: it means the first that works")
        names = tuple(map(full_name, providers))
        if set(names) == {CPU} and kind not in ("cpu", AUTOMATIC):
            raise ModelFailed(f"`providers` names only the CPU, but `device` is {device!r}; leave one of them out")
        return WantedProvider(names, first=False)
    if kind == "cpu" and number not in ("", "0"):
        raise ModelFailed(f"there is no device {device!r}: ONNX Runtime has one CPU; write `cpu`")
    if kind not in _OF_DEVICE:
        known = ", ".join((AUTOMATIC, *_OF_DEVICE))
        raise ModelFailed(f"engine onnx has no device {device!r}; expected one of {known}, or name its `providers`")
    return WantedProvider(_OF_DEVICE[kind], first=True)


def choose_providers(available: Sequence[str], wanted: WantedProvider) -> Choice:
    """The lists to try for `wanted` with an ONNX Runtime that has the providers `available`.

    Raises `ModelFailed` with what to install if a required provider is missing, or all of a choice.
    """
    spelled = {name.lower(): name for name in available}
    names = [spelled.get(name.lower(), name) for name in wanted.names]
    skipped = {name: f"not in this onnxruntime: {_how(name)}" for name in names if name not in available}
    if wanted.first:
        chains = [_chain(name, available) for name in names if name in available]
        if not chains:
            raise ModelFailed(why_skipped(skipped))
        return Choice(tuple(chains), skipped)
    if skipped:
        raise ModelFailed(f"{why_skipped(skipped)}; it has {', '.join(map(short_name, available))}")
    accelerators = dict.fromkeys(name for name in names if name != CPU)
    return Choice(((*accelerators, CPU),), {})  # listed before others, the CPU would take every node


def why_skipped(skipped: Mapping[str, str]) -> str:
    """Why providers are not used, as one sentence."""
    return "; ".join(f"{short_name(name)} is {reason}" for name, reason in skipped.items())


def full_name(provider: str) -> str:
    """The full name of `cuda` or `CUDAExecutionProvider`; an unknown name only gets the suffix."""
    key = provider.lower().removesuffix(_SUFFIX.lower())
    return next((name for name in INSTALL if short_name(name) == key), f"{provider.removesuffix(_SUFFIX)}{_SUFFIX}")


def short_name(provider: str) -> str:
    """`cuda` for `CUDAExecutionProvider`."""
    return provider.removesuffix(_SUFFIX).lower()


def _chain(name: str, available: Sequence[str]) -> tuple[str, ...]:
    beside = _BESIDE.get(name, "")
    return tuple(dict.fromkeys([name, *([beside] if beside in available else []), CPU]))


def _how(name: str) -> str:
    return INSTALL.get(name, "expected the name of a provider that it is built with")


@contextmanager
def _copied_weights(options: Any, path: Path) -> Iterator[None]:
    """`weights_in_memory`. Raises `ModelFailed` if a file cannot be read or lies outside the model's folder."""
    with ExitStack() as held:
        try:
            held.enter_context(weights_in_memory(options, path))
        except BadOnnxFile as error:
            raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {error}") from None
        except OSError as error:
            raise ModelFailed(f"weights of {path.name} cannot be read: {error.strerror}") from error
        yield


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
    with _copied_weights(options, path) if is_on_cpu else nullcontext():  # other providers handle them on their own
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
    found = openvino_devices() if kind != "cpu" else ()
    gpus = [one for one in found if one.startswith("GPU")]
    if kind == "cpu" or (kind == "auto" and not gpus):
        return "CPU"
    wanted = f"GPU.{number}" if number and f"GPU.{number}" in gpus else "GPU"
    if not gpus or (number not in ("", "0") and wanted == "GPU"):
        raise _NotInEffect(f"not able to find that GPU; it finds {', '.join(found) or 'nothing'}")
    return wanted


def device_of(provider: str, device: str) -> str:
    """Where a session runs whose first provider is `provider`, for the setting `device`; what a provider of no known
    device uses, only the setting tells."""
    kind, _, number = device.partition(":")
    if provider == CPU or (provider == OPENVINO and _openvino_device(kind, number) == "CPU"):
        return "cpu"
    own = next((one for one, names in _OF_DEVICE.items() if provider in names), kind)
    return f"{own}:{number}" if number else own


class OnnxEngine:
    """One ONNX Runtime session shared by all instances of a model.

    `InferenceSession.run` is thread-safe, and a second session would need memory for the weights again.
    With `threads: 1` a run stays in its caller's thread; with more, the instances share one pool.
    No custom-operator library is ever loaded.
    """

    file_name: ClassVar[str] = "model.onnx"
    platform: ClassVar[str] = "onnxruntime_onnx"
    buckets: tuple[int, ...] = ()

    def __init__(self, session: Any, device: str) -> None:
        self.version = f"onnxruntime {onnxruntime.__version__}"
        self.device = device
        self.inputs = tuple(_spec(node, "input") for node in session.get_inputs())
        self.outputs = tuple(_spec(node, "output") for node in session.get_outputs())
        self._output_names = [spec.name for spec in self.outputs]
        self._texts_in = [spec.name for spec in self.inputs if spec.datatype == "BYTES"]
        self._texts_out = [spec.name for spec in self.outputs if spec.datatype == "BYTES"]
        self._session = session

    @classmethod
    def load(cls, name: str, path: Path, settings: ModelSettings) -> OnnxEngine:
        """Load `path`. Raises `ModelFailed` for a file or device that ONNX Runtime cannot serve here."""
        _check_operators(path)
        session = open_session(name, path, settings)
        try:
            engine = cls(session, device_of(session.get_providers()[0], settings.device))
        except UnicodeDecodeError:
            raise ModelFailed(f"{path.name} has an input or output whose name is not UTF-8") from None
        if not engine.outputs:
            raise ModelFailed(f"{path.name} has no outputs")
        return engine

    def stoppable_run(self) -> StoppableRun:
        """ONNX Runtime checks the flag before each node, in loops too. See `StoppableRun`."""
        options = onnxruntime.RunOptions()

        def stop() -> None:
            options.terminate = True

        return partial(self.run, options=options), stop

    def run(self, batch: Mapping[str, Array], options: Any = None) -> dict[str, Array]:
        """Run the session. See `Engine.run`."""
        check_batch(batch, self.inputs)
        session = self._session
        if session is None:
            raise ModelFailed("the model is closed")
        feed = {**batch, **{name: text_of(name, batch[name]) for name in self._texts_in}} if self._texts_in else batch
        try:
            results = session.run(self._output_names, feed, options)
        except InvalidArgument as error:  # shared dimensions of two inputs, which their specs cannot express
            raise InvalidRequest(f"the model rejected the inputs: {onnxruntime_reason(error)}") from error
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise run_error(f"ONNX Runtime failed: {onnxruntime_reason(error)}", error, self.device) from error
        answer = dict(zip(self._output_names, results, strict=True))
        for name in self._texts_out:
            answer[name] = bytes_of(answer[name])
        return answer

    def warm_up(self, rows: int) -> None:
        """Run zeros once, so that memory and kernels are ready. See `Engine.warm_up`."""
        batch = zero_batch(self.inputs, rows)
        if batch is None:
            return
        run, stop = self.stoppable_run()
        limit = threading.Timer(_WARM_UP_LIMIT_S, stop)
        limit.daemon = True
        limit.start()
        try:
            run(batch)
        except ModelFailed:
            if limit.finished.is_set():
                raise ModelFailed(f"a run with zeros takes more than {_WARM_UP_LIMIT_S:.0f} s") from None
            raise
        finally:
            limit.cancel()

    def close(self) -> None:
        """Free the session."""
        self._session = None


def _check_operators(path: Path) -> None:
    """Raise `ModelFailed` for foreign operators, and for a file that is not ONNX."""
    try:
        foreign = foreign_operators(path)
    except BadOnnxFile as error:
        raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {error}") from None
    except OSError as error:
        raise ModelFailed(f"{path.name} cannot be read: {error.strerror}") from error
    if foreign:
        more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
        raise ModelFailed(
            f"{path.name} uses {', '.join(foreign[:_NAMED])}{more}, which neither ONNX nor ONNX Runtime defines; "
            "operator libraries and compiled programs are never loaded; export it with standard operators"
        )


def _spec(node: Any, side: str) -> TensorSpec:
    """The specification of a session's input or output; symbolic dimensions are dynamic."""
    if node.type == "tensor(bfloat16)":
        raise ModelFailed(
            f"{side} {node.name!r} is BF16, which ONNX Runtime's Python API cannot exchange; export it as FP16 or FP32"
        )
    try:
        return spec_of(node)
    except UnsupportedTensor as error:
        raise ModelFailed(f"{side} {error}") from None
