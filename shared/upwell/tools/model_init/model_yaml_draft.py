"""Writes a first `model.yaml` from what a model's files say, with commented guesses for the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from upwell.shared.signature.signature import own_signature
from upwell.shared.signature.step_values import FLOATS
from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.exporter_facts import NOTHING_KNOWN, ExporterFacts, PictureFacts, TextFacts

LABELS_NAME, TOKENIZER_NAME = "labels.txt", "tokenizer.json"
"""The files beside `model.yaml` named by a description with labels or texts."""
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""Hugging Face's names of a tokenizer's tensors; the first is always present."""

NAMED_AS_PROBABILITIES = re.compile("prob|softmax", re.IGNORECASE)

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_RESERVED = frozenset(("null", "true", "false"))
_SOUND = re.compile(r"(^|[^a-z])(mels?|mfccs?|fbanks?|spectrograms?|audio)([^a-z]|$)|spectrogram", re.IGNORECASE)
_MIN_BOXES = 64
"""Minimum number of boxes for a tensor to be taken for a detector's proposals."""
_BOXES_PER_NUMBER = 5
"""Likewise by how many numbers each has: in maps of depth and features of transformers the two are nearly as many."""
_TOP = 255
_LEAST = {"UINT8": 0, "INT8": -128}
_UNQUANTIZED: Mapping[str, tuple[float, int]] = MappingProxyType({})
_CHECK_SCALE = "# 0..255 becomes 0..1; as in training, perhaps mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]"

_TENSORS = frozenset({"from", "boxes", "scores", "classes", "prototypes"})
"""Keys of a boxes step that name tensors."""


@dataclass
class _Part:
    """Lines of the file for one phase, and the signature entries that go with them."""

    signature: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Known:
    """The facts, and scale and zero point of each quantized tensor."""

    facts: ExporterFacts
    quantization: Mapping[str, tuple[float, int]]
    has_boxes: bool


def starting_description(
    model_inputs: Sequence[TensorSpec],
    model_outputs: Sequence[TensorSpec],
    facts: ExporterFacts = NOTHING_KNOWN,
    quantization: Mapping[str, tuple[float, int]] = _UNQUANTIZED,
) -> str:
    """The text of a `model.yaml` that loads for these tensors, with comments on what to check.

    `quantization` has scale and zero point of the quantized tensors, if the model states them. If the `facts` have
    labels, the text names `LABELS_NAME`, which must be written beside it.
    """
    # LightGBM's converter declares one row for the class output, whatever the rows: the probabilities have the same.
    scored = any(spec.datatype in FLOATS and len(spec.shape) == 2 and spec.shape[0] < 0 for spec in model_outputs)
    model_outputs = [one for one in model_outputs if not (scored and one.shape == (1,) and one.datatype == "INT64")]
    picture = next((spec for spec in model_inputs if _is_picture(spec, facts.picture)), None)
    chunks = {spec.shape[0] if spec.shape else 0 for spec in model_inputs}
    leads = {spec.shape[0] if spec.shape else 0 for spec in model_outputs}
    rows = len(chunks) == 1 and 0 not in chunks and leads <= {-1, max(*chunks, 1)}
    tokens = [spec for spec in model_inputs if facts.text is not None and _is_tokens(spec)]
    if tokens and len(tokens) == len(model_inputs):
        rows = len({spec.shape[0] for spec in tokens}) == 1
    elif picture is None:
        rows = rows and own_signature(model_inputs, model_outputs).has_rows
    rows = rows and not has_loose_boxes(model_outputs)
    boxes = _boxes(model_outputs, facts) if rows and picture is not None else None
    known = _Known(facts, quantization, boxes is not None)
    pre, post = _inputs(model_inputs, picture, known), _outputs(model_outputs, boxes, known)
    return "\n".join(_lines(pre, post, rows, facts.source)) + "\n"


def _lines(pre: _Part, post: _Part, rows: bool, source: str) -> list[str]:
    made_of = f"what {source} says" if source else "what could be guessed from the model's tensors"
    return [
        f"# A starting point: {made_of}. Check each line that has a comment.",
        "version: 1",
        "signature:",
        *(
            []
            if rows
            else ["  # the tensors do not share a leading dimension: a request is one whole", "  rows: false"]
        ),
        "  inputs:",
        *(f"    {line}" for line in pre.signature),
        "  outputs:",
        *(f"    {line}" for line in post.signature),
        *_phase("pre", pre.steps),
        *_phase("post", post.steps),
    ]


def _phase(name: str, steps: Sequence[str]) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in steps)] if steps else [f"{name}: []"]


def _inputs(specs: Sequence[TensorSpec], picture: TensorSpec | None, known: _Known) -> _Part:
    part = _Part()
    text = known.facts.text
    if text is not None and all(map(_is_tokens, specs)):
        return _Part(["text: {kind: text}    # one UTF-8 text per row"], _text_steps(specs[0], text))
    for spec in specs:
        if spec is picture:
            name = "image" if len(specs) == 1 else spec.name
            part.signature.append(f"{_text(name)}: {{kind: image}}    # one JPEG, PNG or WebP per row, or pixels")
            part.steps += _picture_steps(spec, _text(name), known)
        else:
            shape = [size if size > 0 else -1 for size in spec.shape]
            part.signature.append(f"{_text(spec.name)}: {{kind: tensor, dtype: {spec.datatype}, shape: {shape}}}")
    return part


def _is_tokens(spec: TensorSpec) -> bool:
    return spec.name in TOKENS and spec.datatype in ("INT32", "INT64") and len(spec.shape) == 2


def _text_steps(spec: TensorSpec, facts: TextFacts) -> list[str]:
    fixed = spec.shape[1] > 0
    most = spec.shape[1] if fixed else facts.max_tokens
    keys = {"from": "text", "tokenizer": TOKENIZER_NAME, "max_tokens": most or None, "pad": "max" if fixed else None}
    keys |= {"pad_id": facts.pad_id, "dtype": spec.datatype if spec.datatype != "INT64" else None}
    check = [] if most else ["# max_tokens: as many as the model takes at most; by default 512"]
    written = ", ".join(f"{key}: {value}" for key, value in keys.items() if value is not None)
    return [*check, f"- tokenize: {{{written}}}"]


def _picture_steps(spec: TensorSpec, source: str, known: _Known) -> list[str]:
    first = _channels(spec) != 3
    height, width = spec.shape[2:] if first else spec.shape[1:3]
    color = "gray" if spec.shape[1 if first else 3] == 1 else "rgb"
    steps = [f"- decode: {{from: {source}, color: {color}}}"]
    facts = known.facts.picture
    steps += _resize_steps(source, (height, width) if height > 0 and width > 0 else None, known)
    quantization = known.quantization.get(spec.name)
    if spec.datatype in ("FP32", "FP16"):
        steps += [] if facts.scale is not None else [_CHECK_SCALE]
        steps.append(_normalize(source, facts, spec.datatype))
    elif quantization is not None:
        steps += _quantized_steps(source, spec.datatype, quantization, facts)
    elif spec.datatype == "INT8":
        steps += [
            _CHECK_SCALE,
            f"- normalize: {{from: {source}}}",
            "# scale and zero_point of the model's input",
            f"- quantize: {{from: {source}, scale: 0.00392157, zero_point: -128, dtype: INT8}}",
        ]
    return [*steps, f"- layout: {{from: {source}, order: NCHW}}"] if first else steps


def _resize_steps(source: str, fixed: tuple[int, int] | None, known: _Known) -> list[str]:
    """Resize to the size fixed by the model or known from the facts; if unknown, a comment."""
    facts = known.facts.picture
    size = facts.size or fixed
    if size is None:
        return ["# any size fits; as in training, perhaps a step resize: {to: [640, 640], fit: contain}"]
    if fixed is not None and fixed not in (facts.crop, size):
        size = fixed  # the tensor's size wins over files beside it
    fit = facts.fit or ("contain" if known.has_boxes else "cover")
    keys = {"from": source, "to": f"[{size[0]}, {size[1]}]", "fit": fit, "filter": facts.filter, "fill": facts.fill}
    written = ", ".join(f"{key}: {value}" for key, value in keys.items() if value not in ("", None))
    check = [] if facts.fit else ["# fit as in training: cover cuts the edges, contain pads, stretch does neither"]
    crop = facts.crop if facts.crop is not None and facts.crop != size and fixed in (None, facts.crop) else None
    return [
        *check,
        f"- resize: {{{written}}}",
        *([f"- crop: {{from: {source}, to: [{crop[0]}, {crop[1]}]}}"] if crop is not None else []),
    ]


def _normalize(source: str, facts: PictureFacts, datatype: str = "FP32") -> str:
    keys = [f"from: {source}"]
    if facts.scale is not None and abs(facts.scale * _TOP - 1) > 1e-4:
        keys.append(f"scale: {_number(facts.scale)}")
    parts = (("mean", facts.mean, 0.0), ("std", facts.std, 1.0))
    keys += [f"{name}: {_numbers(values)}" for name, values, default in parts if set(values) != {default}]
    keys += ["dtype: FP16"] if datatype == "FP16" else []
    return f"- normalize: {{{', '.join(keys)}}}"


def _quantized_steps(source: str, datatype: str, quantization: tuple[float, int], facts: PictureFacts) -> list[str]:
    """The steps from pixels to the values of a quantized input; empty if those are the pixels."""
    scale, zero_point = quantization
    low = scale * (_LEAST.get(datatype, 0) - zero_point)
    high = low + scale * _TOP
    told = facts if facts.scale is not None else _likely(low, high)
    check = (
        [] if facts.scale is not None else [f"# the input stands for {low:.3g} to {high:.3g}: pixels as in training?"]
    )
    if datatype == "UINT8" and _is_pixels(told, low, high):
        return []
    quantize = f"- quantize: {{from: {source}, scale: {_number(scale)}, zero_point: {zero_point}, dtype: {datatype}}}"
    return [*check, _normalize(source, told), quantize]


def _likely(low: float, high: float) -> PictureFacts:
    """The likely normalization, if a quantized input represents `low` to `high`."""
    if high > 2:
        return PictureFacts(scale=1.0)
    return PictureFacts(scale=1 / _TOP, mean=(0.5,), std=(0.5,)) if low < -0.5 else PictureFacts(scale=1 / _TOP)


def _is_pixels(facts: PictureFacts, low: float, high: float) -> bool:
    """Whether each level of the input equals the pixel of that value, within one level."""
    scale, level = facts.scale or 0.0, (high - low) / _TOP
    pairs = [(facts.mean[at % len(facts.mean)], std) for at, std in enumerate(facts.std)]
    edges = [(edge * scale - mean) / std for mean, std in pairs for edge in (0, _TOP)]
    return level > 0 and all(
        abs(found - (high if place % 2 else low)) <= 1.01 * level for place, found in enumerate(edges)
    )


def _outputs(specs: Sequence[TensorSpec], boxes: list[str] | None, known: _Known) -> _Part:
    labels = f", labels: {LABELS_NAME}" if known.facts.labels else ""
    if boxes is not None:
        check = [] if labels else ["# labels: labels.txt, one per line"]
        masks = ["masks: {kind: masks}"] if known.facts.boxes and "prototypes" in known.facts.boxes else []
        return _Part([*check, f"detections: {{kind: detections{labels}}}", *masks], boxes)
    part = _Part()
    if known.facts.segments:
        step = f"- segments: {{from: {_text(known.facts.segments)}, to: segments}}"
        return _Part([f"segments: {{kind: segments{labels}}}"], [step])
    has_labels = False
    for spec in specs:
        name = _text(spec.name)
        if known.facts.scores in ("", "shares", "unlike") and _is_embedding(spec):
            part.signature.append(f"{name}: {{kind: embedding}}")
            continue
        of_second = known.facts.scores == "second"
        fits = len(spec.shape) == 2 and spec.datatype in (*FLOATS, "UINT8", "INT8")
        fits = fits and (spec.shape[1] == 1 if of_second else not 0 <= spec.shape[1] < 2)
        fits = fits and (not labels or of_second or spec.shape[1] in (-1, len(known.facts.labels)))
        if not fits or has_labels or (known.facts.boxes is not None and known.facts.source):
            part.signature.append(f"{name}: {{kind: tensor}}")
            continue
        has_labels = bool(labels)
        part.signature += _scores(spec, labels, known)
        if spec.datatype not in FLOATS:
            part.steps += _dequantize(spec, known.quantization.get(spec.name))
    return part


def _is_embedding(spec: TensorSpec) -> bool:
    is_vector = len(spec.shape) == 2 and spec.datatype in FLOATS
    return is_vector and re.search("embed|pooled|pooler", spec.name, re.IGNORECASE) is not None


def _dequantize(spec: TensorSpec, quantization: tuple[float, int] | None) -> list[str]:
    name = _text(spec.name)
    if quantization is not None:
        scale, zero_point = quantization
        return [f"- dequantize: {{from: {name}, scale: {_number(scale)}, zero_point: {zero_point}}}"]
    zero_point = _LEAST[spec.datatype]
    return [
        "# scale and zero_point of the model's output",
        f"- dequantize: {{from: {name}, scale: 0.00390625, zero_point: {zero_point}}}",
    ]


def _scores(spec: TensorSpec, labels: str, known: _Known) -> list[str]:
    name, scores = _text(spec.name), known.facts.scores
    if scores in ("probabilities", "logits"):
        return [f"{name}: {{kind: {scores}{labels}}}"]
    if scores == "second":
        check = "# the probability of the second of two classes; tensor, if it is none"
        return [check, f"{name}: {{kind: probabilities{labels}}}"]
    if scores == "raw":
        return ["# raw scores: softmax tells their order, not how sure they are", f"{name}: {{kind: logits{labels}}}"]
    if scores in ("each", "tensor"):
        return [f"{name}: {{kind: tensor}}"]
    named = bool(NAMED_AS_PROBABILITIES.search(spec.name)) or (not scores and spec.datatype not in FLOATS)
    if (named or scores == "shares") and not labels:
        kinds = "logits" if scores else "probabilities, where a row sums to 1; logits"
        return [f"# {kinds}, where these are scores of classes", f"{name}: {{kind: tensor}}"]
    if named and not scores:
        return ["# logits, where a row does not sum to 1", f"{name}: {{kind: probabilities{labels}}}"]
    check = "" if scores else "probabilities, where a row sums to 1; "
    return [
        f"# {check}embedding or tensor, if these are not class scores",
        f"{name}: {{kind: logits{labels}}}",
    ]


def _boxes(specs: Sequence[TensorSpec], facts: ExporterFacts) -> list[str] | None:
    """A boxes step, where the facts say that there are boxes or the tensors look like a detector's."""
    keys, doubts = (facts.boxes, facts.doubts) if facts.boxes is not None else likely_boxes(specs)
    before = [f"- {facts.activation}"] if facts.activation else []
    check = [f"# {doubts}"] if doubts else []
    written = ", ".join(f"{key}: {_text(value) if key in _TENSORS else value}" for key, value in keys.items())
    return [*before, *check, f"- boxes: {{{written}}}"] if keys else None


def likely_boxes(specs: Sequence[TensorSpec]) -> tuple[Mapping[str, str], str]:
    """The keys of a boxes step for tensors that look like a detector's, and what to check in it; else nothing."""
    if len(specs) == 1 and len(specs[0].shape) == 3 and specs[0].datatype in FLOATS:
        return _raw_boxes(specs[0])
    fours = [spec for spec in specs if len(spec.shape) == 3 and spec.shape[2] == 4 and spec.datatype in FLOATS]
    if len(fours) != 1:
        return {}, ""
    boxes = fours[0]
    others = [spec for spec in specs if spec is not boxes and spec.shape[1:2] == boxes.shape[1:2]]
    ranks = [len(spec.shape) for spec in others]
    if ranks == [3] and boxes.shape[1] >= _MIN_BOXES and others[0].datatype in FLOATS:
        keys = {"boxes": boxes.name, "scores": others[0].name, "format": "xyxy", "normalized": "true"}
        return keys, "format and normalized as the model has them; background: 0, where class 0 is none"
    if ranks == [2, 2]:
        classes, scores = sorted(others, key=_is_of_scores)
        if scores.datatype not in FLOATS:
            return {}, ""
        keys = {"boxes": boxes.name, "classes": classes.name, "scores": scores.name}
        keys |= {"format": "yxyx" if classes.datatype in FLOATS else "xyxy", "normalized": "true", "iou": "1.0"}
        doubts = "classes and scores may be the other way round; iou: 1.0, since the model drops overlaps itself"
        return keys, doubts
    return {}, ""


def has_loose_boxes(outputs: Sequence[TensorSpec]) -> bool:
    """Whether it gives as many boxes, classes and scores as it finds, as torchvision's detectors do for one picture."""
    shapes = [tuple(spec.shape) for spec in outputs]
    return any(len(shape) == 2 and shape[1] == 4 for shape in shapes) and [len(one) for one in shapes].count(1) >= 2


def _is_of_scores(spec: TensorSpec) -> int:
    """1 for scores, -1 for class numbers, 0 where neither datatype nor name says so."""
    if spec.datatype not in FLOATS or re.search("class|label|categor", spec.name, re.IGNORECASE):
        return -1
    return 1 if re.search("score|conf", spec.name, re.IGNORECASE) else 0


def _raw_boxes(spec: TensorSpec) -> tuple[Mapping[str, str], str]:
    _, middle, last = spec.shape
    axes, width, count = ("NCA", middle, last) if 5 <= middle <= last or last < 0 else ("NAC", last, middle)
    if width < 5 or 0 <= count < max(_MIN_BOXES, _BOXES_PER_NUMBER * width):
        return {}, ""
    keys = {"from": spec.name, "axes": axes, "format": "cxcywh"}
    keys |= {"objectness": "true"} if width == 85 else {}
    doubts = "format; objectness: true, where the fifth number is one; normalized: true, where boxes are fractions"
    return keys, doubts


def _is_picture(spec: TensorSpec, facts: PictureFacts) -> bool:
    """Whether the input takes pictures; a shape without fixed sizes needs facts, and has channels first."""
    known = facts.size is not None and len(spec.shape) == 4 and set(spec.shape[1:]) == {-1}
    return spec.datatype in ("FP32", "FP16", "UINT8", "INT8") and (known or _channels(spec) is not None)


def _channels(spec: TensorSpec) -> int | None:
    """The axis of a picture's channels, None where this is no picture."""
    if len(spec.shape) != 4 or _SOUND.search(spec.name):
        return None
    if spec.shape[1] in (1, 3) and all(size < 0 or size > 3 for size in spec.shape[2:]):
        return 1
    return 3 if spec.shape[3] in (1, 3) and all(size < 0 or size > 3 for size in spec.shape[1:3]) else None


def _text(name: str) -> str:
    """A name in YAML, quoted if necessary."""
    if _PLAIN.fullmatch(name) and name.lower() not in _RESERVED:
        return name
    return '"' + "".join(_escaped(char) for char in name) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"


def _number(value: float) -> str:
    return f"{value:.9g}"


def _numbers(values: Sequence[float]) -> str:
    return _number(values[0]) if len(set(values)) == 1 else f"[{', '.join(map(_number, values))}]"
