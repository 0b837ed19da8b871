"""Class labels over the protocol, whose metadata has no place for them: a request asks, and the answer has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from upwell.shared.oip.dataplane import Parameter

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
