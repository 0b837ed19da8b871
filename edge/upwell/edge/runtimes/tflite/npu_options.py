"""Translating the options of a `litert_npu` accelerator into LiteRT's, for any of its versions and vendors."""

from __future__ import annotations

import ctypes
import enum
import importlib
import typing
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.tflite_package import TflitePackage, find_package
from upwell.shared.errors import ConfigError

_LITERT = "ai_edge_litert"
_PATHS = ("compiler_plugin_path", "dispatch_library_path")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_SUFFIX = "_options"
_NO_NPU = ("cpu", "gpu")


def npu_options(accelerator: AcceleratorOptions) -> tuple[Any, Any]:
    """LiteRT's `Options` for the NPU alone, and the `Environment` to compile in.

    In `accelerator.options`, `vendor` (such as `intel_openvino` or `qualcomm`) chooses the vendor's compiler plugin and
    dispatch library from the package; `compiler_plugin_path` and `dispatch_library_path` are folders to use instead.
    Every other option sets the field of that name in the vendor's option group: enum members by name, `field.KEY` for a
    map, comma-separated numbers for a list. Without `vendor` LiteRT uses the first whose dispatch library it finds.

    Only the NPU is requested, since with the CPU allowed LiteRT silently runs there and still reports full
    acceleration. Raises `AcceleratorNotUsable` for an option that this LiteRT does not have.
    """
    compiled, options = litert_module("compiled_model"), litert_module("options")
    given = accelerator.option_texts()
    vendor = given.pop("vendor", "")
    paths = {name: given.pop(name) for name in _PATHS if name in given}
    chosen = options.Options(hardware_accelerators=options.HardwareAccelerator.NPU)
    if vendor:
        paths = _vendor_paths(Path(compiled.__file__).parent / "vendors", vendor) | paths
    if given:
        group = getattr(chosen, f"{vendor}{_SUFFIX}", None) if vendor not in _NO_NPU else None
        if group is None:
            raise AcceleratorNotUsable(_no_group(options.Options, vendor, given))
        for name, text in given.items():
            _set(group, name, text)
    return chosen, compiled.Environment.create(options=compiled.EnvironmentOptions(**paths))


def litert(options: RuntimeOptions) -> TflitePackage:
    """Import ai-edge-litert, the only package that supports NPUs; raises `AcceleratorNotUsable` without it."""
    if options.package not in (None, _LITERT):
        raise AcceleratorNotUsable(f"only {_LITERT} supports NPUs, but `package: {options.package}` is set")
    try:
        return find_package(_LITERT)
    except ConfigError as error:
        raise AcceleratorNotUsable(str(error)) from None


def litert_module(name: str) -> Any:
    """Import a module of ai-edge-litert; raises `AcceleratorNotUsable` if its version has none of that name."""
    try:
        return importlib.import_module(f"{_LITERT}.{name}")
    except ImportError as error:
        raise AcceleratorNotUsable(f"a newer ai-edge-litert is needed; this one has no {name}: {error}") from None


def unloadable(environment: Any) -> str:
    """Why an environment's vendor libraries cannot be loaded, which LiteRT only logs; empty if they can."""
    for what, name in zip(("compiler plugin", "dispatch library"), _PATHS, strict=True):
        folder = getattr(environment.options, name)
        libraries = sorted(Path(folder).glob("*LiteRt*.so")) if folder else []
        if not libraries:
            return f"there is no {what} in {folder or 'the package'}"
        try:
            ctypes.CDLL(str(libraries[0]))
        except OSError as error:
            return f"the {what} cannot be loaded: {error}"
    return ""


def _vendor_paths(folder: Path, vendor: str) -> dict[str, str]:
    """Both folders of the vendor, even if missing, since LiteRT would otherwise use another vendor's."""
    known = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if vendor not in known:
        raise AcceleratorNotUsable(
            f"expected vendor to be one of {', '.join(known) or 'none in this package'}, got {vendor!r}"
        )
    return dict(zip(_PATHS, (str(folder / vendor / "compiler"), str(folder / vendor / "dispatch")), strict=True))


def _no_group(options: Any, vendor: str, given: typing.Iterable[str]) -> str:
    known = [name.removesuffix(_SUFFIX) for name in dir(options) if name.endswith(_SUFFIX) and not name.startswith("_")]
    vendors = ", ".join(name for name in known if name not in _NO_NPU)
    what = f"vendor {vendor!r} has no options here" if vendor else "`vendor` must be set for these options"
    return f"{what}: {', '.join(given)}; this LiteRT has options for {vendors}"


def _set(group: Any, name: str, text: str) -> None:
    field, _, key = name.partition(".")
    hints = typing.get_type_hints(type(group))
    if field not in hints:
        raise AcceleratorNotUsable(f"unknown option {name!r}; the vendor's options are {', '.join(hints)}")
    kind = _without_none(hints[field])
    if (typing.get_origin(kind) is dict) != bool(key):
        raise AcceleratorNotUsable(f"option {name!r}: `{field}.KEY` is only for an option that is a map")
    try:
        if key:
            getattr(group, field)[key] = text
        else:
            setattr(group, field, _value(text, kind))
    except (KeyError, ValueError):
        raise AcceleratorNotUsable(f"option {name!r} must be {_wanted(kind)}, got {text!r}") from None


def _without_none(hint: Any) -> Any:
    """`X` for `Optional[X]`."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0] if typing.get_origin(hint) is typing.Union else hint


def _value(text: str, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind[text.upper()]
    if kind is bool:
        return _TRUTHS[text.lower()]
    if kind in (int, str):
        return kind(text)
    return [int(number) for number in text.split(",")]


def _wanted(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(member.name for member in kind)
    return {bool: "true or false", int: "a number", str: "text"}.get(kind, "numbers separated by commas")
