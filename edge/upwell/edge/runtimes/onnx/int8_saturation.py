"""Detecting int8 models whose sums overflow on this CPU, before they run.

On x86-64 without VNNI, ONNX Runtime multiplies uint8 activations by int8 weights with an instruction that adds two
products in 16 bits (VPMADDUBSW): a·w + b·v is clamped to [-32768, 32767], where a and b are up to 255. Two weights of
at most 64 in magnitude fit (2 * 255 * 64 = 32640), which is what `reduce_range` of the quantizer is for; larger ones
do not, and the answers are wrong without an error. int8 activations of a QDQ model become uint8 there and overflow as
well. uint8 weights use another kernel; x86-64 without AVX2 and ARM use other instructions.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection, Iterator
from pathlib import Path

from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.shared.formats.onnx.graph import INT8, UINT8, OnnxGraph, OnnxNode, read_graph

_SAFE_MAGNITUDE = 64
_NAMED_NODES = 5
_EXACT_CPU_FLAGS = frozenset({"avx512_vnni", "avx_vnni"})
_X86 = ("x86_64", "AMD64", "i386", "i686")

_DEQUANTIZE = "DequantizeLinear"
_ZERO_POINT = 2
_MAX_STEPS = 4

_QUANTIZED = {"QLinearConv": 3, "QLinearMatMul": 3, "ConvInteger": 1, "MatMulInteger": 1, "QGemm": 3}
"""Integer operators, with the index of their weights; the activations' zero point is always the third input."""

_FLOAT = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Float operators, which run on integers if both operands are dequantized."""

_ALWAYS_UINT8 = {"DynamicQuantizeMatMul": 1, "MatMulIntegerToFloat": 1}
"""ONNX Runtime's own operators with uint8 activations, with the index of their weights."""


def saturation(path: Path, cpu_flags: Collection[str] | None = None) -> str:
    """The nodes of the ONNX model at `path` that overflow on a CPU with `cpu_flags`, as one sentence; empty if none.

    Without `cpu_flags` this machine's CPU is meant. A model that cannot be read is left to the runtime.
    """
    if saturates_here() if cpu_flags is None else _saturates(cpu_flags):
        try:
            names = list(_overflowing(read_graph(path)))
        except (BadOnnxFile, OSError, ValueError):
            return ""
        if names:
            more = f" and {len(names) - _NAMED_NODES} more" if len(names) > _NAMED_NODES else ""
            return (
                f"{len(names)} {'nodes multiply' if len(names) > 1 else 'node multiplies'} 8-bit activations by int8 "
                f"weights over {_SAFE_MAGNITUDE}, which overflows on this CPU (no VNNI): "
                f"{', '.join(names[:_NAMED_NODES])}{more}; quantize with uint8 weights or reduce_range"
            )
    return ""


@functools.cache
def saturates_here() -> bool:
    """Whether this machine's CPU adds the products in 16 bits. False if the system does not say."""
    if platform.machine() not in _X86:
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return _saturates(flags.split())


def _saturates(cpu_flags: Collection[str]) -> bool:
    return "avx2" in cpu_flags and not _EXACT_CPU_FLAGS.intersection(cpu_flags)


def _overflowing(graph: OnnxGraph) -> Iterator[str]:
    producers = {output: node for node in graph.nodes for output in node.outputs}
    for node in graph.nodes:
        found = _operands(graph, producers, node)
        if found and _is_large(graph, found):
            yield node.name or node.operator


def _operands(graph: OnnxGraph, producers: dict[str, OnnxNode], node: OnnxNode) -> str:
    """The int8 constant that `node` multiplies by 8-bit activations; empty if there is none."""
    if node.operator in _ALWAYS_UINT8:
        return _int8_constant(graph, producers, _input(node, _ALWAYS_UINT8[node.operator]))
    if node.operator in _QUANTIZED:
        weights = _input(node, _QUANTIZED[node.operator])
        return _int8_constant(graph, producers, weights) if _is_uint8(graph, producers, node) else ""
    if node.operator in _FLOAT:
        activations = producers.get(_input(node, 0))
        if activations is not None and activations.operator == _DEQUANTIZE and _is_8_bits(graph, activations):
            return _int8_constant(graph, producers, _input(node, 1))
    return ""


def _int8_constant(graph: OnnxGraph, producers: dict[str, OnnxNode], tensor: str) -> str:
    """The int8 constant that `tensor` is, perhaps dequantized or transposed; empty if it is not one."""
    source = producers.get(tensor)
    for _ in range(_MAX_STEPS):
        if source is None or source.operator not in (_DEQUANTIZE, "Transpose"):
            break
        tensor = _input(source, 0)
        source = producers.get(tensor)
    constant = graph.constants.get(tensor)
    return tensor if constant is not None and constant.dtype == INT8 else ""


def _is_uint8(graph: OnnxGraph, producers: dict[str, OnnxNode], node: OnnxNode) -> bool:
    """Whether the first input of `node` is uint8, judged by its zero point; without one the default is uint8."""
    zero_point = _input(node, _ZERO_POINT)
    if not zero_point:
        return graph.dtypes.get(_input(node, 0), UINT8) == UINT8
    source = producers.get(zero_point)
    is_dynamic = source is not None and source.operator == "DynamicQuantizeLinear"
    return is_dynamic or graph.dtypes.get(zero_point) == UINT8


def _is_8_bits(graph: OnnxGraph, dequantize: OnnxNode) -> bool:
    zero_point = _input(dequantize, _ZERO_POINT)
    return graph.dtypes.get(zero_point, UINT8) in (INT8, UINT8)


def _input(node: OnnxNode, place: int) -> str:
    return node.inputs[place] if place < len(node.inputs) else ""


def _is_large(graph: OnnxGraph, constant: str) -> bool:
    weights = graph.integers(constant)
    return weights is not None and weights.size > 0 and bool(int(abs(weights.astype("int16")).max()) > _SAFE_MAGNITUDE)
