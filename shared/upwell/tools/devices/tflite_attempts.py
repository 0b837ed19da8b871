"""What an installed TFLite package offers here: its kernels, XNNPACK, and LiteRT's path to an NPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.delegate_nodes import walk
from upwell.edge.runtimes.tflite.tflite_package import TflitePackage, find_package
from upwell.shared.tensors import Array
from upwell.tools.devices.native_log import logged
from upwell.tools.devices.runtime_probe import DeviceAttempt, DeviceCheck, Row, judged, with_options
from upwell.tools.devices.sample_models import SampleModel, samples, try_samples

NPU = "litert_npu"
DEVICES: Mapping[str, Sequence[Mapping[str, str]]] = {
    "intel_openvino": tuple({"graph_backend": device} for device in ("NPU", "GPU", "CPU"))
}
"""The options that select a device of vendors with several; others have one."""


def attempts(name: str) -> Sequence[DeviceAttempt]:
    """One attempt for each way to run a model. Raises `ConfigError` if the package is unusable."""
    package = find_package(name)
    found = [
        DeviceAttempt("CPU", lambda: _on(package, None)),
        DeviceAttempt("XNNPACK", lambda: _xnnpack(package)),
    ]
    vendors = Path(package.interpreter.__file__).parent / "vendors"
    for vendor in sorted(vendors.iterdir()) if vendors.is_dir() else ():
        found += _npu_attempts(package, vendor)
    return found


def _npu_attempts(package: TflitePackage, vendor: Path) -> Iterator[DeviceAttempt]:
    """LiteRT's NPU path for one vendor: all of its devices if the package has their runtime."""
    if not (vendor / "dispatch").is_dir():
        reason = "the package has its compiler but not the library that runs the result"
        options = {"vendor": vendor.name}
        row_of = partial(Row, package.version, NPU, "offered, not executed", options=options, reason=reason)
        yield DeviceAttempt(f"{NPU} {vendor.name}", row_of)
        return
    for chosen in DEVICES.get(vendor.name, ({},)):
        options = {"vendor": vendor.name, **chosen}
        accelerator = AcceleratorOptions(provider=NPU, options=dict(options))
        yield DeviceAttempt(" ".join([NPU, *options.values()]), partial(_on, package, accelerator))


def _on(package: TflitePackage, accelerator: AcceleratorOptions | None) -> Row:
    options = RuntimeOptions(threads=1, package=package.name)
    checks = try_samples(".tflite", options, accelerator)
    if accelerator is None:
        return judged(package.version, "CPU", checks)
    return with_options(judged(package.version, accelerator.provider, checks), accelerator.option_texts())


def delegate(name: str, library: Path) -> Row:
    """An external delegate of the user's, with its default options."""
    return _on(find_package(name), AcceleratorOptions(provider=library.name, library=library))


def _xnnpack(package: TflitePackage) -> Row:
    return judged(package.version, "XNNPACK", [_check_xnnpack(package, one) for one in samples(".tflite")])


def _check_xnnpack(package: TflitePackage, sample: SampleModel) -> DeviceCheck:
    """XNNPACK is applied by default: without a delegate of ours, every DELEGATE node after allocation is its own."""
    with logged():
        interpreter = package.interpreter.Interpreter(model_path=str(sample.path), num_threads=1)
        interpreter.allocate_tensors()
        nodes = walk(interpreter)
        agrees = sample.agrees(np.concatenate([_run(interpreter, row) for row in sample.inputs]))
    taken = sum(node.partition is not None for node in nodes)
    reason = "" if taken else f"it takes no node of the {sample.name} model"
    return DeviceCheck(sample.name, len(nodes), taken, agrees, reason if agrees else "its answers are wrong")


def _run(interpreter: Any, row: Array) -> Array:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], row[None])
    interpreter.invoke()
    answer: Array = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return answer
