"""What a TFLite interpreter takes and gives, under the names that callers see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upwell.shared.tensors import TensorSpec, oip_datatype


@dataclass(frozen=True)
class Port:
    """One input or output: its specification, its tensor index, and its quantization (scale, zero point) if any."""

    spec: TensorSpec
    index: int
    shape: tuple[int, ...]
    quantization: tuple[float, int] | None


def ports_of(interpreter: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """The inputs and outputs of an allocated interpreter.

    Where the model has exactly one signature that covers them, they carry its names; else those of the tensors,
    with `_1`, `_2`, ... added to names that occur before. Raises `InvalidRequest` for a datatype without a name.
    """
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    signatures = list(interpreter._get_full_signature_list().values())
    if len(signatures) == 1:
        given, gives = signatures[0]["inputs"], signatures[0]["outputs"]
        if _covers(given, inputs) and _covers(gives, outputs):
            return _by_signature(given, inputs), _by_signature(gives, outputs)
    return _by_tensor(inputs), _by_tensor(outputs)


def with_batch(ports: Sequence[Port], batch: int | None) -> tuple[Port, ...]:
    """The ports of an interpreter whose open batch was fixed to `batch`, so that what leads with it varies no more."""
    return tuple(
        replace(port, spec=replace(port.spec, shape=(batch, *port.spec.shape[1:])))
        if batch is not None and (port.spec.shape[:1], port.shape[:1]) == ((-1,), (batch,))
        else port
        for port in ports
    )


def _covers(names: Mapping[str, int], details: Iterable[Mapping[str, Any]]) -> bool:
    return set(names.values()) == {detail["index"] for detail in details}


def _by_signature(names: Mapping[str, int], details: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    """In the order of the graph; a tensor that the signature gives two names appears twice."""
    unique = {detail["index"]: detail for detail in details}
    return tuple(
        _port(name, detail) for index, detail in unique.items() for name, target in names.items() if target == index
    )


def _by_tensor(details: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    own_names = {detail["name"] for detail in details}
    used: set[str] = set()
    ports = []
    for detail in details:
        name = base = detail["name"] or f"tensor_{detail['index']}"
        count = 0
        while name in used or (count and name in own_names):
            count += 1
            name = f"{base}_{count}"
        used.add(name)
        ports.append(_port(name, detail))
    return tuple(ports)


def _port(name: str, detail: Mapping[str, Any]) -> Port:
    scale, zero_point = detail["quantization"]
    return Port(
        TensorSpec(
            name, oip_datatype(np.dtype(detail["dtype"])), tuple(int(size) for size in detail["shape_signature"])
        ),
        int(detail["index"]),
        tuple(int(size) for size in detail["shape"]),
        (float(scale), int(zero_point)) if scale else None,
    )
