"""Conditions on objects as CEL expressions (`where`), checked when the file is loaded, evaluated in microseconds.

They have the same language and the same bounds on length and nesting as the rules of a policy. Unknown names,
functions, zones and models, and operands of the wrong type, are refused when the file is loaded. The fields of a
model's answer are not known by then, so `object.helmet.labl` fails at run time. So does an answer that is missing:
`has(object.helmet.label)` tests for it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from cel_expr_python import cel

from upwell.pipelines.events.condition_names import ANSWERS, FRAME_FIELDS, OBJECT_FIELDS, FieldKind, names_in
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.shared.config.cel_expressions import FUNCTIONS, ExpressionText, compile_expression, no_verdict

_BOOL, _TEXT, _NUMBER = cel.Type.BOOL, cel.Type.STRING, cel.Type.DYN  # as in a policy: `object.score > 1` needs no 1.0
_ANSWER = cel.Type.Map(_TEXT, cel.Type.DYN)
_ANSWERS = cel.Type.Map(_TEXT, _ANSWER)

_TYPES: Mapping[FieldKind, cel.Type] = {
    "text": _TEXT,
    "number": _NUMBER,
    "truth": _BOOL,
    "numbers": cel.Type.List(_NUMBER),
    "texts": cel.Type.List(_TEXT),
    "seconds by zone": cel.Type.Map(_TEXT, _NUMBER),
}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HAS_NO_FIELD = re.compile(r"\bhas\s*\(\s*(object|frame)\s*\.\s*(\w+)\s*\)", re.ASCII)
_NO_OVERLOAD = re.compile(r"No matching overloads found : [_@]?(.*?)_?(\(.*\))")
_SAYABLE = re.compile(r"No matching overloads|Key not found|divide by zero|modulus by zero|index out of bounds")
_UNREADABLE = "it cannot be evaluated with the current labels and answers"
"""Replaces CEL's error unless that is `_SAYABLE`: its text may contain a model's answer, and this is logged."""

_NO_DWELL: Mapping[str, float] = MappingProxyType({})
_NOTHING = np.zeros((0, 0, 3), np.uint8)
_NO_OBJECT = FoundObject("", 0.0, (0.0, 0.0, 0.0, 0.0))
_NO_SCENE = Scene(Frame(0, 0.0, 0.0, _NOTHING, _NOTHING[:, :, 0]), _NOTHING)


class ObjectCondition:
    """One compiled `where`. It reads `object`, `frame` and `pipeline`.

    `object` has label, score, box, track (0 without one), zones, age_s, dwell_s (`object.dwell_s.door`) and, by the
    name of each model, its answer: `object.helmet.label`, or `object.answers["my-model"].label` if CEL would not take
    the name. `frame` has number, captured_unix_s, missing (points of a window that lie in a gap), objects (their
    number), route, reason, degraded, and likewise the models' answers about the whole frame. `pipeline` is its name.

    Raises `ValueError`, which says what is wrong with the expression and where.
    """

    def __init__(
        self, source: str, models: Collection[str] = (), zones: Collection[str] = (), pipeline: str = ""
    ) -> None:
        self._zones, self._pipeline = tuple(zones), pipeline
        self._models = tuple(name for name in models if _IDENTIFIER.fullmatch(name))
        if whole := _HAS_NO_FIELD.search(ExpressionText(source).code):  # else: unknown name object
            name = f"{whole[1]}.{whole[2]}"
            known = name if whole[2] in models else f"{whole[1]}.MODEL"
            raise ValueError(f"has({name}) names no field of a model's answer; expected one, as in has({known}.label)")
        variables = _variables(self._models)
        self._environment = cel.NewEnv(variables=variables)
        self._program = compile_expression(
            self._environment, source, variables, FUNCTIONS | {"has"}, "pipeline and the fields of object and frame"
        )
        names = names_in(source)
        self.reads_object = names.reads_object
        _check_names({model for _, model in names.answers}, models, "model")
        _check_names(names.zones, zones, "zone")
        result = self._evaluate(_NO_OBJECT, _NO_SCENE, 0.0, {})
        # It may need an answer that is missing here, but the types are always these.
        if result.type() != _BOOL and (result.type() != cel.Type.ERROR or _NO_OVERLOAD.search(str(result.value()))):
            raise ValueError(_no_verdict(result))

    def holds(
        self, found: FoundObject | None, scene: Scene, age_s: float = 0.0, dwell_s: Mapping[str, float] = _NO_DWELL
    ) -> bool:
        """Whether it is true of an object of a scene; None if it does not read one.

        `age_s` is how long its track has been seen, `dwell_s` how long it has been in each of its zones. Raises
        `ValueError` if it cannot be evaluated, for example without an answer that it needs.
        """
        result = self._evaluate(found or _NO_OBJECT, scene, age_s, dwell_s)
        if result.type() != _BOOL:
            raise ValueError(_no_verdict(result))
        return bool(result.value())

    def _evaluate(self, found: FoundObject, scene: Scene, age_s: float, dwell_s: Mapping[str, float]) -> cel.Value:
        values: dict[str, object] = {
            "pipeline": self._pipeline,
            "frame.number": scene.frame.number,
            "frame.captured_unix_s": scene.frame.captured_unix_s,
            "frame.missing": scene.frame.missing,
            "frame.objects": len(scene.objects),
            "frame.route": scene.route,
            "frame.reason": scene.reason,
            "frame.degraded": scene.degraded,
            **self._answers("frame", scene.answers),
        }
        if self.reads_object:
            values |= {
                "object.label": found.label,
                "object.score": float(found.score),
                "object.box": [float(edge) for edge in found.box],
                "object.track": found.track or 0,
                "object.zones": sorted(found.zones),
                "object.age_s": age_s,
                "object.dwell_s": {zone: dwell_s.get(zone, 0.0) for zone in self._zones},
                **self._answers("object", found.answers),
            }
        try:
            return self._program.eval(self._environment.Activation(values))
        except (RuntimeError, ValueError) as error:
            raise ValueError(_UNREADABLE) from error

    def _answers(self, root: str, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
        """The variables with the models' answers; nothing for a model without an answer."""
        plain = {model: dict(answer) for model, answer in answers.items()}
        return {f"{root}.answers": plain} | {f"{root}.{model}": plain.get(model, {}) for model in self._models}


def _variables(models: Collection[str]) -> dict[str, cel.Type]:
    """Variable -> its type. Raises `ValueError` for a model whose name has another meaning here."""
    for name in models:
        if name in (*OBJECT_FIELDS, *FRAME_FIELDS, ANSWERS):
            raise ValueError(f"a model whose answers are read here must not be called {name}")
    answers = dict.fromkeys(models, _ANSWER) | {ANSWERS: _ANSWERS}
    return {
        "pipeline": _TEXT,
        **{f"object.{name}": kind for name, kind in (_typed(OBJECT_FIELDS) | answers).items()},
        **{f"frame.{name}": kind for name, kind in (_typed(FRAME_FIELDS) | answers).items()},
    }


def _typed(fields: Mapping[str, FieldKind]) -> dict[str, cel.Type]:
    return {name: _TYPES[kind] for name, kind in fields.items()}


def _check_names(names: Collection[str], known: Collection[str], what: str) -> None:
    for name in sorted(set(names) - set(known)):
        alike = difflib.get_close_matches(name, known, n=1)
        offered = f"expected one of {', '.join(sorted(known))}" if known else "there is none"
        raise ValueError(f"unknown {what} {name}; " + (f"did you mean {alike[0]}?" if alike else offered))


def _no_verdict(result: cel.Value) -> str:
    """Why a result is not true or false."""
    value = result.value()
    if result.type() == cel.Type.ERROR:
        text = str(value).partition(": ")[2]
        return _NO_OVERLOAD.sub(r"\1 does not take \2", text) if _SAYABLE.match(text) else _UNREADABLE
    return no_verdict(value)
