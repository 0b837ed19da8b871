"""Files that are never opened, because reading their format runs code from the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from upwell.shared.files import open_plain

_WEIGHTS = "save its weights alone as model.safetensors (safetensors.torch.save_file) and name the class"
_EXPORT = f"export it as model.onnx (torch.onnx.export), or {_WEIGHTS}"

_PICKLES = (".ckpt", ".joblib", ".pickle", ".pkl")
_TORCH = (".pt", ".pth")
_PACKAGES = (".pt2",)
_PICKLED_WEIGHTS = "pytorch_model.bin"
_ZIP = b"PK\x03\x04"
_PICKLE, _PROTOCOLS = 0x80, range(2, 6)


def why_never(files: Sequence[Path]) -> str:
    """Why the first of these files that has such a format is never loaded, and what to use instead; "" if none has.

    Names are checked before contents.
    """
    named = (_by_name(path.name, path.suffix.lower()) for path in files)
    return next(filter(None, named), "") or next(filter(None, map(why_not_this, files)), "")


def why_not_this(file: Path) -> str:
    """The same for one file, by its first bytes and whatever its name; "" for all others and for unreadable files.

    Only for files that are of no use anyway: a safetensors file may begin like a pickle.
    """
    try:
        with open_plain(file) as opened:
            begins = opened.read(len(_ZIP))
    except OSError:
        return ""
    if begins == _ZIP:
        return f"{file.name} is a zip archive, as written by torch.save and TorchScript, and is never loaded; {_EXPORT}"
    if begins[:1] == bytes([_PICKLE]) and begins[1:2] and begins[1] in _PROTOCOLS:
        return f"{file.name} is a pickle, which runs code when opened, and is never loaded; {_WEIGHTS}"
    return ""


def _by_name(name: str, suffix: str) -> str:
    if suffix in _PICKLES or name == _PICKLED_WEIGHTS:
        return f"{name} is a pickle, which runs code when opened, and is never loaded; {_WEIGHTS}"
    if suffix in _TORCH:
        return f"{name} holds a pickle or TorchScript, which run code when opened, and is never loaded; {_EXPORT}"
    if suffix in _PACKAGES:
        return f"{name} is a package of torch, which can run code when opened, and is never loaded; {_EXPORT}"
    return ""
