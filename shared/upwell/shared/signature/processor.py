"""Converts between a signature and a model's tensors: the steps of `model.yaml`, checked when the model loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed, Problem
from upwell.shared.signature.detections import FIELDS, is_detections
from upwell.shared.signature.picture_headers import encoded_pixels
from upwell.shared.signature.pixel_budget import BUDGET
from upwell.shared.signature.signature import (
    Column,
    LogicalInput,
    LogicalOutput,
    Signature,
    UplinkEncoding,
    in_rgb,
    own_signature,
)
from upwell.shared.signature.step_values import (
    FLOATS,
    Candidates,
    Detections,
    Geometry,
    Pictures,
    Step,
    Value,
    ValueType,
    array_of,
)
from upwell.shared.signature.uplink_pictures import Resizes
from upwell.shared.tensors import Array, TensorSpec
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # imported for models with a description
    from upwell.shared.signature.model_yaml import (
        Decode,
        ImageInput,
        ModelDescription,
        Output,
        PostOp,
        PreOp,
        RecordInput,
        Resize,
        TensorInput,
        TextInput,
    )

Keys = tuple[str | int, ...]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

CandidatesByOutput: TypeAlias = Mapping[str, Sequence[Candidates]]
"""The candidates of each row, for each detection output."""


@value_class
class Steps:
    """Steps in order, and where each result is found afterwards: wanted name -> name of the value."""

    steps: tuple[Step, ...]
    bound: Mapping[str, str]
    types: Mapping[str, ValueType]

    @property
    def needs(self) -> frozenset[str]:
        """The names that the steps read, including all given values in use."""
        return frozenset(self.bound.values()).union(*(step.reads for step in self.steps))

    @property
    def does_nothing(self) -> bool:
        """Whether every result is the value of the same name, unchanged."""
        return not self.steps and all(wanted == name for wanted, name in self.bound.items())

    @property
    def makes_pictures(self) -> bool:
        """Whether it tracks the geometry of a picture."""
        return any(step.makes_pictures for step in self.steps)

    def run(self, given: Mapping[str, Value], geometry: Geometry | None) -> tuple[dict[str, Value], Geometry | None]:
        """The results by wanted name, and the geometry of the latest picture (`geometry` if there was none)."""
        values: dict[str, Value] = dict(given)
        seen = geometry
        for step in self.steps:
            results = step.run([values[name] for name in step.reads], geometry)
            values.update(zip(step.writes, results, strict=True))
            seen = next((result.geometry for result in results if isinstance(result, Pictures)), seen)
        return {wanted: values[name] for wanted, name in self.bound.items()}, seen


class StepsBuilder:
    """Builds the steps of one description for one runtime; collects `problems`."""

    def __init__(self, description: ModelDescription, runtime: str) -> None:
        self._description = description
        self._runtime = runtime
        self.problems: list[Problem] = []

    def pre(self, given: Mapping[str, ValueType], wanted: Sequence[TensorSpec]) -> Steps | None:
        """Steps from logical inputs to the `wanted` tensors of the model. None if there was a problem."""
        from upwell.shared.signature.preprocess import pre_step, together

        keys, ops = self._ops("pre")
        state = _State(dict(given), next(iter(given)) if len(given) == 1 else None)

        def build(op: PreOp, reads: Sequence[str]) -> Step:
            return pre_step(op, reads[0], state.types[reads[0]])

        found = self._finish(keys, ops, state, build, [spec.name for spec in wanted], "model input")
        return None if found is None else replace(found, steps=together(found.steps))

    def post(
        self, given: Mapping[str, ValueType], wanted: Sequence[str], labels: Sequence[str], picture: bool
    ) -> Steps | None:
        """Steps from the model's tensors to logical outputs. `picture`: the model sees one. None if there was a
        problem."""
        from upwell.shared.signature.postprocess import post_step

        keys, ops = self._ops("post")
        state = _State(dict(given), next(iter(given)) if len(given) == 1 else None)

        def build(op: PostOp, reads: Sequence[str]) -> Step:
            if op.boxes is not None and not (picture or op.boxes.normalized):
                raise ValueError("boxes in pixels need a picture resized by `pre`; otherwise write `normalized: true`")
            if op.boxes is not None and op.boxes.prototypes is not None and not picture:
                raise ValueError("masks need a picture resized by `pre`")
            return post_step(op, reads, state.types, labels)

        return self._finish(keys, ops, state, build, wanted, "output")

    def problem(self, keys: Keys, message: str) -> None:
        """Record a problem with the value under `keys` of the file."""
        self.problems.append(self._description.problem(keys, message))

    def _ops(self, phase: str) -> tuple[Keys, Sequence[Any]]:
        override = self._description.runtimes.get(self._runtime)  # type: ignore[call-overload]  # any runtime's name
        if override is not None and getattr(override, phase) is not None:
            return ("runtimes", self._runtime, phase), getattr(override, phase)
        return (phase,), getattr(self._description, phase)

    def _finish(
        self,
        keys: Keys,
        ops: Sequence[Any],
        state: _State,
        build: Callable[[Any, Sequence[str]], Step],
        wanted: Sequence[str],
        what: str,
    ) -> Steps | None:
        steps = []
        place = keys
        try:
            for index, op in enumerate(ops):
                place = (*keys, index, op.name)
                steps.append(state.add(op, build))
            place = keys if ops else ("signature",)
            bound = {name: state.find(name, what, alone=len(wanted) == 1) for name in wanted}
        except ValueError as error:
            self.problem(place, str(error))
            return None
        return Steps(tuple(steps), bound, state.types)


@dataclass
class _State:
    """The state while steps are checked: the values so far, and the default for the next step."""

    types: dict[str, ValueType]
    current: str | None

    def add(self, op: PreOp | PostOp, build: Callable[[Any, Sequence[str]], Step]) -> Step:
        reads = op.op.named or ((self.current,) if self.current is not None else ())
        if not reads:
            raise ValueError(f"there are several values; choose one with `from`: {', '.join(self.types)}")
        for name in reads:
            if name not in self.types:
                raise ValueError(f"no value {name!r} here; available: {', '.join(self.types)}")
        step = build(op, reads)
        if op.name == "rename":
            del self.types[reads[0]]
        self.types.update(step.writes)
        self.current = next(iter(step.writes))
        return step

    def find(self, name: str, what: str, alone: bool) -> str:
        """The value for the wanted `name`: the value of that name or, if only one is wanted, the last one written."""
        if name in self.types:
            return name
        if alone and self.current is not None:
            return self.current
        raise ValueError(f"no value for {what} {name!r}; available: {', '.join(self.types)}")


def bind(
    description: ModelDescription, model_inputs: Sequence[TensorSpec], model_outputs: Sequence[TensorSpec], runtime: str
) -> tuple[Signature, Steps, Steps]:
    """The signature, and the steps before and after the model. Raises `ConfigError` with every problem found."""
    builder = StepsBuilder(description, runtime)
    rows = description.signature.rows
    inputs = tuple(_logical_input(name, one, rows) for name, one in description.signature.inputs.items())
    has_rows = rows and all(one.spec.shape[:1] in ((-1,), (1,)) for one in inputs)
    pre = _bind_inputs(builder, inputs, model_inputs, has_rows)
    picture = pre is None or pre.makes_pictures
    post = _bind_outputs(builder, description, model_inputs, model_outputs, has_rows, picture)
    outputs = _logical_outputs(builder, description, post)
    if builder.problems or pre is None or post is None:
        raise ConfigError(builder.problems)
    return Signature(inputs, outputs, has_rows), pre, post


def chunk_of(model_inputs: Sequence[TensorSpec]) -> int:
    """The number of rows that each run of the model must have; 0 for any number."""
    return max((spec.shape[0] for spec in model_inputs if spec.shape and spec.shape[0] > 0), default=0)


def sizes_fit(have: Sequence[int], want: Sequence[int]) -> bool:
    """Whether two shapes can be equal; -1 matches any size."""
    return len(have) == len(want) and all(a == b or -1 in (a, b) for a, b in zip(have, want, strict=True))


def _logical_input(name: str, one: ImageInput | TextInput | RecordInput | TensorInput, rows: bool) -> LogicalInput:
    from upwell.shared.signature.model_yaml import RecordInput, TensorInput, TextInput

    if isinstance(one, TensorInput):
        shape = (-1, *one.shape[1:]) if rows and one.shape[:1] == (1,) else one.shape
        return LogicalInput(name, "tensor", TensorSpec(name, one.dtype, shape))
    if isinstance(one, TextInput):
        return LogicalInput(name, "text", TensorSpec(name, "BYTES", (-1,)))
    if isinstance(one, RecordInput):
        columns = tuple(Column(key, part.categories if part else ()) for key, part in one.columns.items())
        return LogicalInput(name, "record", TensorSpec(name, "BYTES", (-1,)), columns=columns)
    uplink = None
    if one.uplink is not None:
        written = one.uplink
        uplink = UplinkEncoding(written.encode, written.quality, written.max_side or 0, written.recode)
    return LogicalInput(name, "image", TensorSpec(name, "BYTES", (-1,)), uplink, one.channels == "bgr")


def _bind_inputs(
    builder: StepsBuilder, inputs: Sequence[LogicalInput], wanted: Sequence[TensorSpec], has_rows: bool
) -> Steps | None:
    types = {one.name: ValueType(one.spec.datatype, one.spec.shape, columns=one.columns) for one in inputs}
    steps = builder.pre(types, wanted)
    if steps is None:
        return None
    if has_rows and len({spec.shape[:1] for spec in wanted}) > 1:
        builder.problem(
            ("signature",), f"the model's inputs do not share their rows: {_listed(wanted)}; write `rows: false`"
        )
    for spec in wanted:
        name = steps.bound[spec.name]
        value = steps.types[name]
        have, want = (value.shape[1:], spec.shape[1:]) if has_rows else (value.shape, spec.shape)
        fits = sizes_fit(have, want) and not (value.is_by_request and have != want)
        if value.datatype != spec.datatype or len(value.shape) != len(spec.shape) or not fits:
            hint = _hint(value, spec, name)
            builder.problem(("pre",), f"the model takes {_listed([spec])}, but {name!r} is {value} after `pre`{hint}")
    return steps


def _hint(value: ValueType, spec: TensorSpec, name: str) -> str:
    """A hint at the step that is probably missing."""
    if value.is_by_request and value.datatype == spec.datatype:
        return f"; in the tokenize step, {{pad: max, max_tokens: {spec.shape[-1]}}} gives every text that length"
    if {value.datatype, spec.datatype} == {"INT32", "INT64"}:
        return f"; in the tokenize step, {{dtype: {spec.datatype}}} gives that datatype"
    if value.columns:
        return "; a columns step converts records to numbers"
    if value.datatype == "BYTES" and spec.datatype in ("INT32", "INT64"):
        return f"; a tokenize step converts texts: {{tokenize: {{from: {name}, tokenizer: tokenizer.json}}}}"
    if value.datatype == "BYTES" and spec.datatype != "BYTES":
        return f"; start with {{decode: {name}}}"
    if value.datatype == "UINT8" and spec.datatype == "FP32":
        return "; a normalize step gives FP32"
    if value.datatype in ("UINT8", "FP32") and spec.datatype == "FP16":
        return "; a normalize step with dtype: FP16 gives FP16"
    if spec.datatype in ("UINT8", "INT8", "UINT16", "INT16") and value.datatype == "FP32":
        return f"; a quantize step gives {spec.datatype}"
    if value.channels is not None and len(spec.shape) == 4:
        other = "NCHW" if value.channels == 3 else "NHWC"
        if spec.shape[1 if other == "NCHW" else 3] in (1, 3):
            return f"; {{layout: {other}}} changes the order"
    return ""


def _bind_outputs(
    builder: StepsBuilder,
    description: ModelDescription,
    model_inputs: Sequence[TensorSpec],
    model_outputs: Sequence[TensorSpec],
    has_rows: bool,
    picture: bool,
) -> Steps | None:
    types = {}
    for spec in model_outputs:
        shape = (-1, *spec.shape[1:]) if has_rows and spec.shape else spec.shape
        types[spec.name] = ValueType(spec.datatype, shape)
    written = description.signature.outputs
    labels = next((output.labels for output in written.values() if output.labels), ())
    steps = builder.post(types, list(written), labels, picture)
    if steps is not None and has_rows:
        allowed = {-1, chunk_of(model_inputs) or 1}
        for spec in model_outputs:
            if spec.name in steps.needs and (not spec.shape or spec.shape[0] not in allowed):
                builder.problem(
                    ("signature", "outputs"),
                    f"the model's output {_listed([spec])} has no rows; write `rows: false` in the signature",
                )
    return steps


def _logical_outputs(
    builder: StepsBuilder, description: ModelDescription, post: Steps | None
) -> tuple[LogicalOutput, ...]:
    outputs: list[LogicalOutput] = []
    if post is None:
        return ()
    for name, written in description.signature.outputs.items():
        value = post.types[post.bound[name]]
        wrong = _wrong_kind(written, value)
        if wrong:
            builder.problem(("signature", "outputs", name, "kind"), wrong)
        else:
            classes = (
                value.classes if written.kind in ("detections", "segments") else value.shape[-1] if value.shape else 1
            )
            _check_labels(builder, name, written, classes)
        spec = TensorSpec(name, value.datatype, value.shape)
        outputs.append(LogicalOutput(name, written.kind, spec, written.labels))
    return tuple(outputs)


def _wrong_kind(written: Output, value: ValueType) -> str:
    if written.kind == "tensor":
        return ""
    if written.kind == "detections":
        fits = value.datatype == "FP32" and len(value.shape) == 3 and is_detections(value.shape[2])
        return "" if fits else f"detections must be FP32 [rows, boxes, {FIELDS} or more], got {value}; add a boxes step"
    if written.kind in ("masks", "segments"):
        last = [] if written.kind == "masks" else [2]
        fits = value.datatype == "UINT8" and len(value.shape) == 3 + len(last) and value.shape[3:] == tuple(last)
        step = "a boxes step with `prototypes`" if written.kind == "masks" else "a segments step"
        shape = ", ".join(map(str, ("rows", "height", "width", *last)))
        return "" if fits else f"{written.kind} must be UINT8 [{shape}], got {value}; add {step}"
    if value.datatype not in FLOATS:
        return f"{written.kind} must be floating point, got {value}; add a dequantize step"
    return "" if len(value.shape) > 1 else f"{written.kind} must be [rows, classes], got {value}"


def _check_labels(builder: StepsBuilder, name: str, written: Output, classes: int) -> None:
    """A single score is the probability of the second of two classes."""
    if not written.labels or written.kind in ("embedding", "masks", "tensor") or classes < 1:
        return
    wanted = (
        2 if classes == 1 and written.kind not in ("detections", "segments") and len(written.labels) == 2 else classes
    )
    if len(written.labels) != wanted:
        builder.problem(("signature", "outputs", name, "labels"), f"{len(written.labels)} labels for {classes} classes")


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name!r} {spec.datatype} {list(spec.shape)}" for spec in specs)


@dataclass(slots=True)
class Prepared:
    """A request in the form of the model's tensors. `geometry` maps boxes back to the original picture, if there is
    one."""

    tensors: Final[Mapping[str, Array]]
    rows: Final[int]
    geometry: Final[Geometry | None]


class Processor:
    """Maps a signature to one model's own tensors; created once when the model loads. Thread-safe.

    Raises `ConfigError` with everything in the description that does not fit the model's tensors.
    """

    signature: Signature
    identity: bool
    """Whether `pre` and `post` do nothing, so that tensors pass unchanged."""

    def __init__(
        self,
        description: ModelDescription | None,
        model_inputs: Sequence[TensorSpec],
        model_outputs: Sequence[TensorSpec],
        runtime: str,
        batch: int | None = None,
    ) -> None:
        self._inputs = tuple(model_inputs)
        self.is_described = description is not None
        if description is None:
            self.signature = own_signature(model_inputs, model_outputs, batch)
            self._pre = Steps((), {spec.name: spec.name for spec in model_inputs}, {})
            self._post = Steps((), {spec.name: spec.name for spec in model_outputs}, {})
        else:
            self.signature, self._pre, self._post = bind(description, model_inputs, model_outputs, runtime)
        self.chunk = chunk_of(model_inputs) if self.signature.has_rows else 0
        """The number of rows that the model takes at once; 0 for any number."""
        self._used = tuple(spec.name for spec in model_outputs if spec.name in self._post.needs)
        self.identity = self._pre.does_nothing and self._post.does_nothing
        self._row_pixels = _made_pixels(self._pre)
        first = _first_resize(self._pre)
        self.picture_resize = first[2] if first and first[2].fit != "cover" and first[2].filter == "bilinear" else None
        """How a picture is given its size before anything else sees it, whole and by the bilinear filter; None where
        that is not so. Whoever can give it in that size wins nothing by giving it larger."""
        images = [one.name for one in self.signature.inputs if one.kind == "image"]
        self.resizes: Resizes = {first[0]: first[2]} if first and first[0] in images and not first[1].exact else {}
        """How an encoded picture is given its size, by its input, likewise in any way; it need not come larger."""

    def pre(self, inputs: Mapping[str, Array]) -> Prepared:
        """Check the request and prepare it for the model. Raises `InvalidRequest`."""
        rows = self.signature.check_inputs(inputs)
        if self.identity:
            return Prepared(inputs, rows, None)
        with BUDGET.holding(max(encoded_pixels(inputs.values()), rows * self._row_pixels)):
            values, geometry = self._pre.run(in_rgb(self.signature, inputs), None)
            tensors = {name: array_of(value) for name, value in values.items()}
        first = 1 if self.signature.has_rows else 0
        for spec in self._inputs:
            if not sizes_fit(tensors[spec.name].shape[first:], spec.shape[first:]):
                shape = list(tensors[spec.name].shape)
                raise InvalidRequest(
                    f"the model takes {spec.name!r} as {list(spec.shape)}, but this request gives {shape}"
                )
        return Prepared(tensors, rows, geometry)

    def runs_whole(self, prepared: Prepared) -> bool:
        """Whether `run_rows` would run all rows at once."""
        return self.chunk in (0, prepared.rows)

    def run_rows(self, run: Run, prepared: Prepared) -> dict[str, Array]:
        """Run all rows, in chunks if the leading dimension is fixed; returns the model's outputs.

        The last chunk is padded with copies of its last row. Raises what `run` raises, and `ModelFailed` if an output
        has the wrong number of rows.
        """
        if self.runs_whole(prepared):
            return dict(run(prepared.tensors))
        parts = [self._run_chunk(run, prepared, start) for start in range(0, prepared.rows, self.chunk)]
        return {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}

    def post(self, model_outputs: Mapping[str, Array], prepared: Prepared) -> dict[str, Array]:
        """The logical outputs. Raises `ModelFailed` if the model's outputs are not as declared."""
        return self.post_with_candidates(model_outputs, prepared)[0]

    def post_with_candidates(
        self, model_outputs: Mapping[str, Array], prepared: Prepared
    ) -> tuple[dict[str, Array], CandidatesByOutput]:
        """`post`, and the candidates of each row for each detection output of a `boxes` step."""
        if self.signature.has_rows:
            for name in self._used:
                _check_rows(name, model_outputs[name], prepared.rows)
        if self.identity:
            return dict(model_outputs), {}
        values, _ = self._post.run(model_outputs, prepared.geometry)
        outputs = {name: array_of(value) for name, value in values.items()}
        return outputs, {name: one.candidates for name, one in values.items() if isinstance(one, Detections)}

    def _run_chunk(self, run: Run, prepared: Prepared, start: int) -> dict[str, Array]:
        count = min(self.chunk, prepared.rows - start)
        tensors = {}
        for name, tensor in prepared.tensors.items():
            part = tensor[start : start + count]
            filling = [part[-1:]] * (self.chunk - count)
            tensors[name] = np.concatenate([part, *filling]) if filling else part
        outputs = {name: output for name, output in run(tensors).items() if name in self._used}
        for name, output in outputs.items():
            _check_rows(name, output, self.chunk)
        return {name: output[:count] for name, output in outputs.items()}


def versions() -> tuple[str, ...]:
    """The versions that decide whether both sides compute the same bits; announced in the server's metadata."""
    import PIL

    return (f"upwell.pre:numpy={np.__version__}", f"upwell.pre:pillow={PIL.__version__}")


def _check_rows(name: str, output: Array, rows: int) -> None:
    if output.shape[:1] != (rows,):
        raise ModelFailed(
            f"the model gave {list(output.shape)} as {name!r} for {rows} rows; if its outputs do not share "
            "the rows of its inputs, model.yaml needs `rows: false`"
        )


def _joined(name: str, parts: Sequence[Array]) -> Array:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ModelFailed(f"the model gave {name!r} in different shapes for different rows: {sorted(shapes)}")
    return np.concatenate(parts)


def _made_pixels(pre: Steps) -> int:
    """The most pixels that a step makes of a picture of any size, such as `resize`; 0 without such a step."""
    kinds = [kind for step in pre.steps for kind in step.writes.values() if kind.channels is not None]
    return max(
        (math.prod(kind.shape[1:]) // kind.shape[kind.channels or 0] for kind in kinds if -1 not in kind.shape[1:]),
        default=0,
    )


def _first_resize(pre: Steps) -> tuple[str, Decode, Resize] | None:
    """The value that is decoded and resized before all else, and the steps; None if the full picture is used
    elsewhere."""
    if not pre.steps:
        return None
    from upwell.shared.signature.model_yaml import Decode, Resize

    op = pre.steps[0].op
    op = (Decode(), op) if isinstance(op, Resize) else op
    if not isinstance(op, tuple):
        return None
    picture, made = pre.steps[0].reads, pre.steps[0].writes
    others = {name for step in pre.steps[1:] for name in step.reads}.union(pre.bound.values())
    if any(name in others and name not in made for name in picture):  # the full picture is used elsewhere, too
        return None
    decode, resize = op
    return picture[0], decode, resize
