"""Names of classes over the protocol, whose metadata has no place for them: a request asks, and the answer has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from upwell.shared.oip.dataplane import Parameter

LABELS = "upwell.labels"
"""The parameter of a request that asks for labels; in the answer `upwell.labels.<output>` is a JSON array of them."""


def label_parameters(wanted: Mapping[str, Parameter], labels: Mapping[str, Sequence[str]]) -> dict[str, Parameter]:
    """What an answer says of the `labels`, by output, where the request's parameters (`wanted`) ask for them."""
    if wanted.get(LABELS) is not True:
        return {}
    return {f"{LABELS}.{name}": json.dumps(each, ensure_ascii=False) for name, each in labels.items()}


def take_labels(parameters: dict[str, Parameter], output: str) -> tuple[str, ...]:
    """The labels of an output, taken out of an answer's parameters; none where it has none that can be read."""
    text = parameters.pop(f"{LABELS}.{output}", "")
    try:
        found = json.loads(text) if isinstance(text, str) and text else ()
    except (ValueError, RecursionError):  # another server's words
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else ()
