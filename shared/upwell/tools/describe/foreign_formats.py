"""Models in formats that cannot run here: what each is, and the command that converts it to ONNX or TFLite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from upwell.shared.errors import ConfigError

_TORCH = (
    "PyTorch weights without a program: export the model to ONNX, with `yolo export model={name} format=onnx` "
    "(Ultralytics), `optimum-cli export onnx --model FOLDER OUT` (Hugging Face) or `torch.onnx.export(model, (x,), "
    '"model.onnx", dynamo=True)`'
)
_KERAS = "a Keras model: `python -m tf2onnx.convert --keras {name} --output model.onnx`"
_PICKLE = (
    "a pickle, which is never opened: in the program that made it, `skl2onnx.to_onnx(model, X[:1], "
    "options={{'zipmap': False}})` writes ONNX (onnxmltools for XGBoost and LightGBM)"
)
_TREES = "a tree model: `onnxmltools.convert_xgboost` or `convert_lightgbm` converts it to ONNX in Python"
_OPENVINO = (
    "OpenVINO's format, which cannot be converted back: export the original model to ONNX and keep {name} "
    "beside it, whose labels and normalization are read"
)
_LITE = "TFLite under another name: `mv {name} model.tflite`"
_ENGINE = (
    "a TensorRT engine, which fits one GPU and one version: use the ONNX file that it was built from, and "
    "`providers: [tensorrt, cuda]` in the service"
)
_COREML = "Core ML's format: export the original model to ONNX; the accelerator `coreml` runs it"
_TAO = "NVIDIA TAO's own format: `tao model ARCHITECTURE export` writes ONNX"
_EDGE_IMPULSE = "an Edge Impulse program: download the project's deployment `TensorFlow Lite` or `ONNX` instead"

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        ".pt": _TORCH, ".pth": _TORCH, ".safetensors": _TORCH, ".ckpt": _TORCH, ".pt2": _TORCH,
        ".h5": _KERAS, ".keras": _KERAS,
        ".pkl": _PICKLE, ".pickle": _PICKLE, ".joblib": _PICKLE,
        ".ubj": _TREES, ".xgb": _TREES, ".lgb": _TREES,
        ".xml": _OPENVINO, ".blob": _OPENVINO,
        ".engine": _ENGINE, ".plan": _ENGINE, ".trt": _ENGINE,
        ".mlmodel": _COREML, ".mlpackage": _COREML,
        ".etlt": _TAO, ".tlt": _TAO, ".hdf5": _TAO,
        ".eim": _EDGE_IMPULSE, ".lite": _LITE,
        ".pb": "a TensorFlow graph: `python -m tf2onnx.convert --saved-model FOLDER --output model.onnx`",
    }
)  # fmt: skip
"""Suffix -> what it is and what to do; `{name}` is the file's name."""

_IN_A_FOLDER = ("model.onnx", "onnx/model.onnx", "model.tflite", "weights/best.onnx")


def model_file(path: Path) -> Path:
    """The ONNX or TFLite file at `path`, or in that folder under one of the usual names.

    Raises `ConfigError` for other formats, with the command that converts them.
    """
    if path.suffix in FORMATS:
        raise ConfigError.at(path, f"this is {FORMATS[path.suffix].format(name=path.name)}")
    if not path.is_dir():
        return path
    if (path / "saved_model.pb").is_file():
        command = f"python -m tf2onnx.convert --saved-model {path} --output model.onnx"
        raise ConfigError.at(path, f"this is a TensorFlow SavedModel: `{command}` converts it to ONNX")
    found = [path / name for name in _IN_A_FOLDER if (path / name).is_file()] or sorted(
        one for suffix in ("*.onnx", "*.tflite") for one in path.glob(suffix)
    )
    if len(found) == 1 or (found and found[0].name.startswith("model.")):
        return found[0]
    others = sorted({one.suffix for one in path.iterdir()} & FORMATS.keys()) if not found else []
    if others:
        one = next(file for file in sorted(path.iterdir()) if file.suffix == others[0])
        raise ConfigError.at(one, f"this is {FORMATS[others[0]].format(name=one.name)}")
    several = f"; there are {', '.join(file.name for file in found)}" if found else ""
    raise ConfigError.at(path, f"expected an ONNX or TFLite file, or a folder with one{several}")
