"""Class labels over the protocol: Triton's classification extension, and labels as parameters of request and answer.

Source:
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/extension_classification.html
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.tensor_contents import MAX_BYTES_ELEMENTS
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest, InferResponse, Parameter
from upwell.shared.tensors import Array, is_float

LABELS = "upwell.labels"
"""The request parameter that asks for labels; the answer has them in `upwell.labels.<output>`, a JSON array."""


def label_parameters(wanted: Mapping[str, Parameter], labels: Mapping[str, Sequence[str]]) -> dict[str, Parameter]:
    """The answer's parameters for `labels`, by output, if the request's parameters (`wanted`) ask for them."""
    if wanted.get(LABELS) is not True:
        return {}
    return {f"{LABELS}.{name}": json.dumps(each, ensure_ascii=False) for name, each in labels.items()}


def take_labels(parameters: dict[str, Parameter], output: str) -> tuple[str, ...]:
    """Remove the labels of an output from an answer's parameters; empty if it has none that can be read."""
    text = parameters.pop(f"{LABELS}.{output}", "")
    try:
        found = json.loads(text) if isinstance(text, str) and text else ()
    except (ValueError, RecursionError):  # from another server
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else ()


CLASSIFICATION = "classification"
"""The parameter of a requested output that holds the number of classes."""


def read_classification(output: str, parameters: Mapping[str, object]) -> int:
    """The number of classes asked of `output`; 0 for the output itself. Raises `InvalidRequest`."""
    if CLASSIFICATION not in parameters:
        return 0
    count = parameters[CLASSIFICATION]
    if type(count) is not int or not 0 <= count < 2**63:
        raise InvalidRequest(f"output {output!r}: expected 'classification' to be a whole number of classes")
    return count


def infer_classified(dataplane: Dataplane, request: InferRequest, call: Call) -> InferResponse:
    """Ask `dataplane`, and replace the outputs named in `request.classes` by classes. Raises as `dataplane` does, and
    `InvalidRequest` if such an output has no numbers, or too many.
    """
    if not request.classes:
        return dataplane.infer(request, call)
    keeps_labels = request.parameters.get(LABELS) is True
    asked = replace(request, classes={}, parameters={**request.parameters, LABELS: True})
    response = dataplane.infer(asked, call)
    outputs, rest = dict(response.outputs), dict(response.parameters)
    for name, count in request.classes.items():
        outputs[name] = top_classes(name, outputs[name], take_labels(rest, name), count)
    if not keeps_labels:
        rest = {key: value for key, value in rest.items() if not f"{key}.".startswith(f"{LABELS}.")}
    return replace(response, outputs=outputs, parameters=response.parameters if keeps_labels else rest)


def top_classes(name: str, scores: Array, labels: Sequence[str], count: int) -> Array:
    """The `count` highest scores of each row as BYTES `score:index[:label]`, shape [rows, count].

    A row spans all dimensions but the first; a scalar gives [count]. Equal scores are ordered by index; NaN comes last.
    """
    if scores.dtype.kind not in "iu" and not is_float(scores.dtype):
        raise InvalidRequest(f"output {name!r} has no numbers, so 'classification' does not apply")
    is_row = scores.ndim < 2
    shape = (1, scores.size) if is_row else (len(scores), math.prod(scores.shape[1:]))
    elements = shape[0] * min(count, shape[1])
    if elements > MAX_BYTES_ELEMENTS:
        raise InvalidRequest(
            f"output {name!r} has {elements} classes to send; at most {MAX_BYTES_ELEMENTS} are allowed"
        )
    rows = scores.reshape(shape).astype(np.float64)
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    found = np.empty(order.shape, np.object_)
    for place, index in np.ndenumerate(order):
        label = f":{labels[index]}" if index < len(labels) else ""
        found[place] = f"{rows[place[0], index]:f}:{index}{label}".encode()
    return found[0] if is_row else found
