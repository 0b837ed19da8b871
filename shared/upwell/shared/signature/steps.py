"""The steps of a `model.yaml`: checked against a model's tensors when it loads, and run for each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from upwell.shared.errors import Problem
from upwell.shared.signature.description import ModelDescription
from upwell.shared.signature.keys import PostOp, PreOp
from upwell.shared.signature.postprocess import post_step
from upwell.shared.signature.preprocess import pre_step, together
from upwell.shared.signature.values import Geometry, Pictures, Step, Value, ValueType
from upwell.shared.tensors import TensorSpec

Keys = tuple[str | int, ...]


@dataclass(frozen=True)
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
