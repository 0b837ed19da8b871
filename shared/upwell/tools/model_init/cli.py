"""`upwell model init`: writes a first description of a model and tries it on a picture or text.

A model in a format that cannot run here is answered with the command that converts it to ONNX or TFLite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import read_file, write_named
from upwell.shared.signature.model_yaml import MAX_TOKENIZER_BYTES, ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.exporter_facts import ExporterFacts, ScoresKind
from upwell.tools.model_init.exporter_metadata import facts_of, own_metadata, tflite_facts
from upwell.tools.model_init.model_evidence import scores_of, seen_outputs, shown_boxes, takes_pixels
from upwell.tools.model_init.model_yaml_draft import (
    LABELS_NAME,
    TOKENIZER_NAME,
    has_loose_boxes,
    likely_boxes,
    starting_description,
)
from upwell.tools.model_init.sample_trial import TrialResult, try_sample
from upwell.tools.terminal import AsJson, plain, stdout_console

_TORCH = (
    "PyTorch weights without a program: export the model to ONNX, with `yolo export model={name} format=onnx` "
    "(Ultralytics), `optimum-cli export onnx --model FOLDER OUT` (Hugging Face) or `torch.onnx.export(model, (x,), "
    '"model.onnx", dynamo=True)`'
)
_PROGRAM = (
    'a program of torch.export: `torch.onnx.export(torch.export.load("{name}"), (), "model.onnx", dynamo=True)` '
    "converts it to ONNX; `upwell partition split` takes it as it is"
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

FORMATS: Mapping[str, str] = {
    ".pt": _TORCH, ".pth": _TORCH, ".safetensors": _TORCH, ".ckpt": _TORCH, ".pt2": _PROGRAM,
    ".h5": _KERAS, ".keras": _KERAS,
    ".pkl": _PICKLE, ".pickle": _PICKLE, ".joblib": _PICKLE,
    ".ubj": _TREES, ".xgb": _TREES, ".lgb": _TREES,
    ".xml": _OPENVINO, ".blob": _OPENVINO,
    ".engine": _ENGINE, ".plan": _ENGINE, ".trt": _ENGINE,
    ".mlmodel": _COREML, ".mlpackage": _COREML,
    ".etlt": _TAO, ".tlt": _TAO, ".hdf5": _TAO,
    ".eim": _EDGE_IMPULSE, ".lite": _LITE,
    ".pb": "a TensorFlow graph: `python -m tf2onnx.convert --saved-model FOLDER --output model.onnx`",
}  # fmt: skip
"""Suffix -> what it is and what to do; `{name}` is the file's name."""

_IN_A_FOLDER = ("model.onnx", "onnx/model.onnx", "model.tflite", "weights/best.onnx")


def model_file(path: Path) -> Path:
    """The ONNX or TFLite file at `path`, or in that folder under one of the usual names.

    Raises `ConfigError` for other formats, with the command that converts them.
    """
    if (suffix := path.suffix.lower()) in FORMATS:
        raise ConfigError.at(path, f"this is {FORMATS[suffix].format(name=path.name)}")
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
    others = sorted(one for one in path.iterdir() if one.suffix.lower() in FORMATS) if not found else []
    if others:
        model_file(others[0])
    several = f"; there are {', '.join(file.name for file in found)}" if found else ""
    raise ConfigError.at(path, f"expected an ONNX or TFLite file, or a folder with one{several}")


MAX_LABELS_BYTES = 1 << 20
_NOTHING_SAID = "the meaning of its outputs is not known; they are passed on unchanged, and no request is hard"
_NO_BOXES = (
    "the meaning of its outputs is not known: some look like boxes, but without the layout or scores of the step "
    "`boxes`; they are passed on unchanged, and no request is hard"
)


def init(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX or TFLite file, or its folder.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write it; default model.yaml beside MODEL.")
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--try", metavar="SAMPLE", help="Run it on this picture, file of text, or text.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a starting model.yaml for MODEL from the metadata in its files; guesses have a comment to check.

    Reads the metadata of Ultralytics' exports and of TFLite files, the config files of Hugging Face and timm, what
    torchvision, Roboflow, Edge Impulse, NVIDIA TAO and OpenVINO put beside a model, and files of labels. Known labels
    are written to labels.txt beside the description, and so is a tokenizer.
    """
    file = model_file(model)
    target = out if out is not None else file.parent / "model.yaml"
    runtime = load_runtime(file, RuntimeOptions(threads=1))
    try:
        if not runtime.inputs:
            raise ConfigError.at(file, "the model takes no inputs, so it has nothing to answer; export it with some")
        quantization: Mapping[str, tuple[float, int]] = getattr(runtime, "quantization", {})  # TFLite models only
        text, facts = _described(_facts(file, runtime, quantization), runtime, quantization)
        _write(target, text, _beside(text, facts), force)
        tried = None if sample is None else _tried(runtime, target, sample, force)
    finally:
        runtime.close()
    if as_json:
        report = _report(file, target, runtime, quantization)
        report |= {"source": facts.source, "not_known": list(facts.notes), "check": _checks(text)}
        if tried is not None:
            drawn = None if tried.drawn is None else str(tried.drawn)
            report |= {"tried": {"found": list(tried.lines), "drawn": drawn}}
        typer.echo(json.dumps(report))
    else:
        _show(target, text, facts, _table(runtime, quantization), tried)


def _facts(file: Path, runtime: Runtime, quantization: Mapping[str, tuple[float, int]]) -> ExporterFacts:
    """The facts about the model. Raises `ConfigError`."""
    facts = facts_of(file, own_metadata(file), runtime.inputs, runtime.outputs, otherwise=tflite_facts(file))
    is_picture = len(runtime.inputs) == 1 and runtime.inputs[0].datatype == "FP32" and len(runtime.inputs[0].shape) == 4
    if is_picture and facts.picture.scale is None and takes_pixels(file, runtime.inputs[0].name):
        facts = replace(facts, picture=replace(facts.picture, scale=1.0))
    if facts.boxes is not None:
        return facts
    facts = facts if facts.scores else _with_likely_boxes(facts, runtime)
    if facts.boxes is not None:
        return facts
    return _with_scores(facts, scores_of(runtime, quantization, file))


def _with_scores(facts: ExporterFacts, found: ScoresKind) -> ExporterFacts:
    """The facts with the kind of scores that was found, if no file states one or a file states one without the
    softmax.
    """
    if facts.scores and (facts.scores, found) != ("logits", "probabilities"):
        return facts
    if found == "each":
        note = "each class has an independent probability, which no output kind says; its scores are a plain tensor"
        return replace(facts, scores=found, labels=(), notes=(*facts.notes, note))
    if found == "tensor":
        return replace(facts, scores=found, labels=())
    is_known = found in ("probabilities", "raw", "second")
    return replace(facts, scores="logits" if facts.classifies and not is_known else found)


def _with_likely_boxes(facts: ExporterFacts, runtime: Runtime) -> ExporterFacts:
    """With boxes, where the tensors look like a detector's and runs of it bear that out."""
    outputs = seen_outputs(runtime)
    is_picture = len(runtime.inputs) == 1 and len(runtime.inputs[0].shape) == 4
    keys, doubts = likely_boxes(outputs) if is_picture else ({}, "")
    shown = shown_boxes(runtime, keys, doubts) if keys else None
    if shown is not None:
        return replace(facts, boxes=shown[0], doubts=shown[1])
    if keys or has_loose_boxes(outputs) or any(len(spec.shape) == 3 and spec.shape[2] == 4 for spec in outputs):
        return replace(facts, boxes={}, scores="tensor", notes=(*facts.notes, _NO_BOXES))
    return facts


def _described(
    facts: ExporterFacts, runtime: Runtime, quantization: Mapping[str, tuple[float, int]]
) -> tuple[str, ExporterFacts]:
    """The description and the facts behind it, without those that do not fit the model's tensors."""
    text = starting_description(runtime.inputs, runtime.outputs, facts, quantization)
    if facts.labels and LABELS_NAME not in text:
        note = f"{facts.source} names {len(facts.labels)} classes, but no output has that many"
        return _described(replace(facts, labels=(), notes=(*facts.notes, note)), runtime, quantization)
    labels = json.dumps(list(facts.labels), ensure_ascii=False)
    try:
        beside = None if facts.text is None else facts.text.tokenizer.with_name("model.yaml")
        description = parse_yaml(text.replace(f"labels: {LABELS_NAME}", f"labels: {labels}"), ModelDescription, beside)
        signature = Processor(description, runtime.inputs, runtime.outputs, runtime.name).signature
    except ConfigError as error:
        note = f"what {facts.source} says does not fit the model's tensors: {error.problems[0].message}"
        without = ExporterFacts(notes=(note,))
        return starting_description(runtime.inputs, runtime.outputs, without, quantization), without
    kinds = {*(one.kind for one in signature.inputs), *(one.kind for one in signature.outputs)}
    if not facts.notes and "image" in kinds and kinds <= {"image", "tensor"}:
        facts = replace(facts, notes=(_NOTHING_SAID,))
    return text, facts


def _beside(text: str, facts: ExporterFacts) -> Mapping[str, bytes]:
    """The files that the description names. Raises `ConfigError`."""
    files = {}
    if facts.labels:
        files[LABELS_NAME] = ("\n".join(facts.labels) + "\n").encode()
    if facts.text is not None and TOKENIZER_NAME in text:
        files[TOKENIZER_NAME] = read_file(facts.text.tokenizer, "a tokenizer", MAX_TOKENIZER_BYTES)
    return files


def _write(target: Path, text: str, beside: Mapping[str, bytes], force: bool) -> None:
    """Write the description and the files beside it, or nothing if one is refused. Raises `ConfigError`."""
    files = {target.parent / name: content for name, content in beside.items()}
    others = [path for path, content in files.items() if path.exists() and not _holds(path, content)]
    for path, is_in_the_way in ((target, target.exists()), *((path, path in others) for path in files)):
        if path.is_dir():
            raise ConfigError.at(path, "this is a folder; --out must name a file")
        if is_in_the_way and not force:
            raise ConfigError.at(path, "already exists; replace it with --force, or name another file with --out")
    for path, content in files.items():
        if path in others or not path.exists():
            write_named(path, content)
    write_named(target, text.encode())


def _tried(runtime: Runtime, target: Path, sample: str, force: bool) -> TrialResult:
    """The result of a trial. Raises `ConfigError`, which says that the description is there all the same."""
    try:
        return try_sample(runtime, target, sample, force=force)
    except ConfigError as error:
        is_written = Problem(target, None, None, "", "is written all the same; --force replaces it in another try")
        raise ConfigError([*error.problems, is_written]) from None


def _holds(path: Path, content: bytes) -> bool:
    """Whether the file already has this content; line ends of labels may differ."""
    if not path.is_file() or path.stat().st_size > max(len(content), MAX_LABELS_BYTES):
        return False
    found = path.read_bytes()
    return found == content or (path.name == LABELS_NAME and _lines(found) == _lines(content))


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return [line.strip() for line in text.rstrip("\n").split("\n")]


def _checks(text: str) -> list[dict[str, Any]]:
    """The comments of a starting description that ask for a check, each with the line that it is about."""
    lines = [line.strip() for line in text.splitlines()]
    return [
        {"line": number + 1, "comment": line.lstrip("# ")}
        for number, line in enumerate(lines, 1)
        if number > 1 and line[:1] == "#"
    ]


def _report(
    model: Path, target: Path, runtime: Runtime, quantization: Mapping[str, tuple[float, int]]
) -> dict[str, Any]:
    def described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [{**asdict(spec), "quantization": quantization.get(spec.name)} for spec in specs]

    return {
        "model": str(model),
        "runtime": runtime.version,
        "inputs": described(runtime.inputs),
        "outputs": described(runtime.outputs),
        "written": str(target),
    }


def _show(target: Path, text: str, facts: ExporterFacts, table: Table, tried: TrialResult | None) -> None:
    console = stdout_console()
    console.print(table)
    said = f" from {facts.source}" if facts.source else ""
    console.print(plain(f"wrote {target}{said}{'; check in it:' if _checks(text) else ''}"))
    for check in _checks(text):
        console.print(plain(f"  line {check['line']}: {check['comment']}"))
    for note in facts.notes:
        console.print(plain(f"not known: {note}"))
    if tried is not None:
        for line in tried.lines:
            console.print(plain(line))
        if tried.drawn is not None:
            console.print(plain(f"drawing written to {tried.drawn}"))


def _table(runtime: Runtime, quantization: Mapping[str, tuple[float, int]]) -> Table:
    table = Table("", "name", "datatype", "shape (-1 varies)")
    if quantization:
        table.add_column("scale, zero point")
    for kind, specs in (("input", runtime.inputs), ("output", runtime.outputs)):
        for spec in specs:
            scale = ", ".join(f"{number:g}" for number in quantization.get(spec.name, ()))
            cells = [spec.name, spec.datatype, str(list(spec.shape)), *([scale] if quantization else [])]
            table.add_row(kind, *map(Text, cells))
    return table
