"""Files that are never opened, since reading such a format runs what its maker put in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

_WEIGHTS = "save its weights alone as model.safetensors (safetensors.torch.save_file) and name the class"
_EXPORT = f"export it as model.onnx (torch.onnx.export), or {_WEIGHTS}"

_PICKLES = (".ckpt", ".joblib", ".pickle", ".pkl")
_TORCH = (".pt", ".pth")
_PACKAGES = (".pt2",)
_PICKLED_WEIGHTS = "pytorch_model.bin"


def why_never(file_names: Sequence[str]) -> str:
    """Why the first of these files that is of such a format is never loaded, and what would be right; else empty."""
    for name in file_names:
        suffix = PurePath(name).suffix.lower()
        if suffix in _PICKLES or name == _PICKLED_WEIGHTS:
            return f"{name} is a pickle, and opening one runs code of its maker: it is never loaded; {_WEIGHTS}"
        if suffix in _TORCH:
            return f"{name} holds a pickle or TorchScript, which run code of their maker: it is never loaded; {_EXPORT}"
        if suffix in _PACKAGES:
            return f"{name} is a package of torch, which can run code of its maker: it is never loaded; {_EXPORT}"
    return ""
