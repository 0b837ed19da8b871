"""The child process that tries accelerators: `python -m upwell.tools.devices.look`.

Providers and delegates are native code of vendors, and one may take its process down or hang. So each line is written
as soon as it is known, one JSON object each: `{"trying": name}` before, the row after. Its arguments are the file to
write to, the package, how many attempts to leave out, and a library to try instead, or nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from upwell.shared.errors import ConfigError
from upwell.tools.devices.rows import DeviceAttempt, Row

_PLUGIN_ENTRY, _DELEGATE_ENTRY = "CreateEpFactories", "tflite_plugin_create_delegate"


def attempts_of(package: str) -> Sequence[DeviceAttempt]:
    """What there is to try with a package."""
    if package == "onnxruntime":
        return list(_onnx().attempts())
    return list(_tflite().attempts(package))


def attempt_at(library: Path, package: str) -> Row:
    """A library of the user's: a plugin of ONNX Runtime or a delegate of TFLite, as its symbols say."""
    try:
        opened = ctypes.CDLL(str(library))
    except OSError as error:
        return Row(package, library.name, "not usable", reason=f"it cannot be loaded: {error}")
    if hasattr(opened, _PLUGIN_ENTRY):
        row: Row = _onnx().plugin(library)
    elif hasattr(opened, _DELEGATE_ENTRY):
        row = _tflite().delegate(package, library)
    else:
        reason = f"it is no provider plugin ({_PLUGIN_ENTRY}) and no external delegate ({_DELEGATE_ENTRY})"
        row = Row(package, library.name, "not usable", reason=reason)
    return row


def _onnx() -> Any:
    return importlib.import_module("upwell.tools.devices.onnx_look")


def _tflite() -> Any:
    return importlib.import_module("upwell.tools.devices.tflite_look")


def _run(attempt: DeviceAttempt, package: str) -> Row:
    try:
        return attempt.run()
    except Exception as error:  # noqa: BLE001  vendors' code raises anything; one failure must not hide the others
        return Row(package, attempt.name, "not usable", reason=f"{type(error).__name__}: {error}")


def main() -> None:
    """Try what the arguments say."""
    target, package, left_out, library = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with target.open("w", encoding="utf-8") as file:

        def say(line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        try:
            attempts = (
                [DeviceAttempt(Path(library).name, partial(attempt_at, Path(library), package))]
                if library
                else attempts_of(package)
            )
        except (ImportError, ConfigError) as error:
            say({"trying": package})
            say(asdict(Row(package, "", "not usable", reason=str(error))))
            return
        for attempt in attempts[left_out:]:
            say({"trying": attempt.name})
            say(asdict(_run(attempt, package)))


if __name__ == "__main__":
    main()
    # Some libraries crash when they are unloaded at the end of a process; all that is to be known is written.
    os._exit(0)
