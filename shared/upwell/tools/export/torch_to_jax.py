"""Converts a torch module for the JAX engine, by torchax. Run it in a separate process: torchax changes torch.

The network is traced with a symbolic number of rows, so one program serves every batch size. Its parameters and
buffers are stored apart, in safetensors; those that the answers do not depend on are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
import torch
from jax import export
from torch._ops import OpOverloadPacket

from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.torch.networks import declared_specs
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype
from upwell.tools.export.torch_network import random_rows, relative_error, to_numpy, to_torch

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms of jax.export; one program may support several."""

_ROWS = "rows"
_SEED = 0
_WIDE = ("INT64", "UINT64", "FP64")

Tree: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[[Tree, Tree], Tree]


@dataclass(frozen=True)
class Program:
    """A serialized program, and the weights that it needs."""

    data: bytes
    weights: Mapping[str, Array]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def exported(module: torch.nn.Module, platforms: Sequence[str], *, is_exact: bool = True) -> Program:
    """Export a module in evaluation mode whose class declares `inputs` and `outputs`, as for engine torch.

    With `is_exact`, float32 is multiplied exactly on every device; without, in the device's fastest way. Raises
    `ModelFailed` if the class declares sizes other than the rows that vary, or if JAX or torchax cannot convert it.
    """
    inputs, outputs = (declared_specs(module, attribute) for attribute in ("inputs", "outputs"))
    if not all(_is_by_rows(spec) for spec in (*inputs, *outputs)):
        raise ModelFailed(
            "only the rows, the first size of every input and output, may vary; its class declares "
            + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (*inputs, *outputs))
        )
    state = dict([*module.named_parameters(), *module.named_buffers()])
    weights = {name: to_numpy(tensor) for name, tensor in state.items()}
    is_wide = any(spec.datatype in _WIDE for spec in (*inputs, *outputs))
    try:
        with _settings(is_wide=is_wide, is_exact=is_exact):
            function = _function(module, inputs, outputs, weights)
            used = _used(function, weights, inputs)
            program = _export(function, used, inputs, export.symbolic_shape(_ROWS)[0], platforms)
    except Exception as error:  # torchax, JAX and the class itself may raise anything
        raise ModelFailed(f"{type(module).__qualname__} cannot be exported: {reason_of(error)}") from error
    _check_outputs(program, outputs)
    return Program(bytes(program.serialize()), used, inputs, outputs)


def largest_error(program: Program, module: torch.nn.Module, rows: Sequence[int]) -> float:
    """The largest max |program - module| / max |module| of any output, for random inputs of so many `rows` each.

    The program is read from its bytes and runs on the CPU. Raises `ModelFailed` if it does not run.
    """
    random, errors = np.random.default_rng(_SEED), [0.0]
    try:
        run = _on_the_cpu(program)
        for count in rows:
            batch = {spec.name: random_rows(spec, count, random) for spec in program.inputs}
            results = run(batch)
            with torch.inference_mode():
                answer = module(*(to_torch(batch[spec.name]) for spec in program.inputs))
            expected = answer if isinstance(answer, (tuple, list)) else (answer,)
            for spec, one in zip(program.outputs, expected, strict=True):
                errors.append(relative_error(np.asarray(results[spec.name]), to_numpy(one)))
    except Exception as error:  # JAX and the class itself may raise anything
        raise ModelFailed(f"the exported program does not run: {reason_of(error)}") from error
    return float(np.max(errors))  # NaN if any is


def check_rows(program: Program, at_most: float) -> None:
    """Raise `ModelFailed` if a row's answer depends on the rows beside it, by more than `at_most` as above.

    A service fills batches with zeros and runs rows of several callers together: answers would be wrong, and reveal
    what others have asked.
    """
    random = np.random.default_rng(_SEED)
    batch = {spec.name: random_rows(spec, 2, random) for spec in program.inputs}
    run = _on_the_cpu(program)
    together, alone = run(batch), run({name: array[:1] for name, array in batch.items()})
    for spec in program.outputs:
        off = relative_error(np.asarray(together[spec.name])[:1], np.asarray(alone[spec.name]))
        if not off <= at_most:
            raise ModelFailed(
                f"output {spec.name!r} of a row depends on the rows beside it (relative difference {off:.2g}): batches "
                "are padded and contain rows of several callers, so each row must be computed independently"
            )


def _on_the_cpu(program: Program) -> Callable[[Mapping[str, Array]], Tree]:
    """The program, read from its bytes, from inputs to outputs by their names."""
    run = jax.jit(export.deserialize(bytearray(program.data)).call)

    def call(batch: Mapping[str, Array]) -> Tree:
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            results: Tree = run(dict(program.weights), batch)
            return results

    return call


def _is_by_rows(spec: TensorSpec) -> bool:
    return spec.shape[:1] == (-1,) and -1 not in spec.shape[1:]


@contextlib.contextmanager
def _settings(*, is_wide: bool, is_exact: bool) -> Iterator[None]:
    """How JAX traces: without the names of source files, which would differ between machines."""
    with (
        jax.enable_x64(is_wide),
        jax.default_matmul_precision("highest" if is_exact else "default"),
        _set("jax_traceback_in_locations_limit", 0),
    ):
        yield


@contextlib.contextmanager
def _set(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _function(
    module: torch.nn.Module, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], weights: Mapping[str, Array]
) -> Function:
    """The module as a function of JAX arrays; missing weights are zeros."""
    environment = _environment()

    def forward(given: Tree, batch: Tree) -> Tree:
        every = {name: given[name] if name in given else jax.numpy.zeros_like(array) for name, array in weights.items()}
        tensors = environment.j2t_iso(every)
        arguments = environment.j2t_iso(tuple(batch[spec.name] for spec in inputs))
        with environment, torch.no_grad():
            answer = torch.func.functional_call(module, tensors, arguments)
        results = answer if isinstance(answer, (tuple, list)) else (answer,)
        names = [spec.name for spec in outputs]
        if len(results) != len(names):
            raise ValueError(f"it returned {len(results)} outputs, but its class declares {len(names)}")
        return dict(zip(names, environment.t2j_iso(tuple(results)), strict=True))

    return forward


def _environment() -> Any:
    with _removed_overloads():
        import torchax

        return torchax.default_env()


@contextlib.contextmanager
def _removed_overloads() -> Iterator[None]:
    """Let torchax 0.0.13 name operators of named tensors, which torch 2.13 no longer has; it only lists them."""
    lookup = OpOverloadPacket.__getattr__

    def forgiving(self: Any, key: str) -> Any:
        try:
            return lookup(self, key)
        except AttributeError:
            if "dimname" in key.lower() or "names" in key:
                return object()
            raise

    OpOverloadPacket.__getattr__ = forgiving  # type: ignore[method-assign]  # for the import alone
    try:
        yield
    finally:
        OpOverloadPacket.__getattr__ = lookup  # type: ignore[method-assign]  # as it was


def _used(function: Function, weights: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The weights that the outputs depend on: with a fixed shape JAX leaves the others out of a program."""
    names = sorted(weights)  # the order of a dictionary's leaves
    kept = set(_export(function, weights, inputs, 1, ("cpu",)).module_kept_var_idx)
    return {name: weights[name] for place, name in enumerate(names) if place in kept}


def _export(
    function: Function, weights: Mapping[str, Array], inputs: Sequence[TensorSpec], rows: Any, platforms: Sequence[str]
) -> export.Exported:
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}
    batch = {spec.name: jax.ShapeDtypeStruct((rows, *spec.shape[1:]), numpy_dtype(spec.datatype)) for spec in inputs}
    return export.export(jax.jit(function), platforms=platforms)(shapes, batch)


def _check_outputs(program: export.Exported, outputs: Sequence[TensorSpec]) -> None:
    found = program.out_tree.unflatten(program.out_avals)
    for spec in outputs:
        aval, declared = found[spec.name], f"[{', '.join([_ROWS, *map(str, spec.shape[1:])])}]"
        if np.dtype(aval.dtype) != numpy_dtype(spec.datatype) or _text(aval.shape) != declared:
            raise ModelFailed(
                f"output {spec.name!r} is {aval.dtype} {_text(aval.shape)}, but the class declares {spec.datatype} "
                f"{declared}"
            )


def _text(shape: Sequence[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"
