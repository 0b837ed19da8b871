"""The first run of a loaded model, before it has seen a request."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.input_check import blank, run_on_zeros
from upwell.shared.errors import UpwellError
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.tensors import Array

_BLANK_PICTURE = np.zeros((1, 224, 224, 3), np.uint8)


def blank_request(signature: Signature) -> dict[str, Array]:
    """A request of one row: a black picture, invented words, zeros."""
    return {one.name: _blank_input(one) for one in signature.inputs}


def first_run(runtime: Runtime, processor: Processor) -> None:
    """Run zeros or, where the model takes only the sizes that its description makes, a blank request.

    Raises what the model raises for zeros if it takes neither.
    """
    try:
        run_on_zeros(runtime)
    except UpwellError:
        with suppress(UpwellError):
            processor.run_rows(runtime.run, processor.pre(blank_request(processor.signature)))
            return
        raise


def _blank_input(one: LogicalInput) -> Array:
    if one.kind in ("text", "record"):
        from upwell.shared.signature.tokenization import synthetic_bytes

        return synthetic_bytes(one, 1, np.random.default_rng(0))
    return _BLANK_PICTURE if one.kind == "image" else blank(one.spec.datatype, one.spec.shape)
