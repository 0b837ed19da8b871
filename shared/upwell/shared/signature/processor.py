"""Converts between a signature and a model's tensors, for one model on one runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import PIL

from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.signature.bound_steps import Steps, bind, chunk_of, sizes_fit
from upwell.shared.signature.model_yaml import Decode, ModelDescription, Resize
from upwell.shared.signature.picture_codec import BUDGET, encoded_pixels, in_rgb
from upwell.shared.signature.signature import Signature, own_signature
from upwell.shared.signature.step_values import Candidates, Detections, Geometry, array_of
from upwell.shared.signature.uplink_pictures import Resizes
from upwell.shared.tensors import Array, TensorSpec

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

CandidatesByOutput: TypeAlias = Mapping[str, Sequence[Candidates]]
"""The candidates of each row, for each detection output."""


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
        with BUDGET.holding(encoded_pixels(inputs.values())):
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
    return (f"upwell.pre:numpy={np.__version__}", f"upwell.pre:pillow={PIL.__version__}")


def _check_rows(name: str, output: Array, rows: int) -> None:
    if output.shape[:1] != (rows,):
        raise ModelFailed(f"the model gave {list(output.shape)} as {name!r} for {rows} rows")


def _joined(name: str, parts: Sequence[Array]) -> Array:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ModelFailed(f"the model gave {name!r} in different shapes for different rows: {sorted(shapes)}")
    return np.concatenate(parts)


def _first_resize(pre: Steps) -> tuple[str, Decode, Resize] | None:
    """The value that is decoded and resized before all else, and the steps; None if the full picture is used
    elsewhere."""
    op = pre.steps[0].op if pre.steps else None
    op = (Decode(), op) if isinstance(op, Resize) else op
    if not isinstance(op, tuple):
        return None
    picture, made = pre.steps[0].reads, pre.steps[0].writes
    others = {name for step in pre.steps[1:] for name in step.reads}.union(pre.bound.values())
    if any(name in others and name not in made for name in picture):  # the full picture is used elsewhere, too
        return None
    decode, resize = op
    return picture[0], decode, resize
