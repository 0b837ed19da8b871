"""Programs of torch.export: the operators that they may contain, a program as a value, and as one safetensors file.

`OPERATORS` are those that compute new tensors from their inputs. None of them reads a file, draws a random number,
changes a tensor in place, or accesses memory other than its inputs. A file holds numbers and names of operators, no
code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from upwell.shared.files import parse_json

_ELEMENTWISE = """
abs Abs, acos Acos, asin Asin, atan Atan, ceil Ceil, cos Cos, cosh Cosh, elu Elu, erf Erf, exp Exp, floor Floor,
gelu Gelu, hardsigmoid HardSigmoid, hardswish HardSwish, hardtanh Clip, isinf IsInf, isnan IsNaN, leaky_relu LeakyRelu,
log Log, logical_not Not, mish Mish, neg Neg, reciprocal Reciprocal, relu Relu, relu6 Clip, round Round, rsqrt Sqrt,
selu Selu, sigmoid Sigmoid, sign Sign, silu Swish, sin Sin, sinh Sinh, softplus Softplus, sqrt Sqrt, square Mul,
tan Tan, tanh Tanh, clamp Clip, clamp_min Max, clamp_max Min, log1p Log, expm1 Exp, log_sigmoid Sigmoid,
bitwise_not BitwiseNot, prelu PRelu, maximum Max, minimum Min, logical_and And, logical_or Or, logical_xor Xor,
batch_norm BatchNormalization, dropout Dropout, feature_dropout Dropout, clone Identity, contiguous Identity,
detach Identity, alias Identity, zeros_like Identity, ones_like Identity, _to_copy Cast, type_as Cast
"""
_NAMED = """
add.Tensor Add, add.Scalar Add, sub.Tensor Sub, sub.Scalar Sub, rsub.Scalar Sub, rsub.Tensor Sub, mul.Tensor Mul,
mul.Scalar Mul, div.Tensor Div, div.Scalar Div, div.Tensor_mode Div, floor_divide.default Div, remainder.Scalar Mod,
remainder.Tensor Mod, pow.Tensor_Scalar Pow, pow.Tensor_Tensor Pow, pow.Scalar Pow, eq.Scalar Equal, eq.Tensor Equal,
ne.Scalar Equal, ne.Tensor Equal, gt.Scalar Greater, gt.Tensor Greater, ge.Scalar GreaterOrEqual,
ge.Tensor GreaterOrEqual, lt.Scalar Less, lt.Tensor Less, le.Scalar LessOrEqual, le.Tensor LessOrEqual,
where.self Where, where.ScalarOther Where, where.ScalarSelf Where, masked_fill.Scalar Where,
masked_fill.Tensor Where, bitwise_and.Tensor BitwiseAnd,
bitwise_or.Tensor BitwiseOr, clamp.Tensor Clip, to.dtype Cast, full_like.default Identity, lerp.Scalar Add,
lerp.Tensor Add
"""
_VIEWS = """
view.default Reshape, reshape.default Reshape, flatten.using_ints Flatten, unflatten.int Reshape,
squeeze.default Squeeze, squeeze.dim Squeeze, squeeze.dims Squeeze, unsqueeze.default Unsqueeze,
_unsafe_view.default Reshape, view_as.default Reshape, permute.default Transpose, transpose.int Transpose,
t.default Transpose, numpy_T.default Transpose, movedim.int Transpose, movedim.intlist Transpose,
expand.default Expand, expand_as.default Expand, select.int Gather, slice.Tensor Slice, narrow.default Slice,
split.Tensor Split, split.sizes Split, split_with_sizes.default Split, chunk.default Split, unbind.int Split,
tensor_split.sections Split, pixel_shuffle.default DepthToSpace, pixel_unshuffle.default SpaceToDepth,
channel_shuffle.default Transpose
"""
_OTHERS = """
conv1d.default Conv, conv2d.default Conv, conv3d.default Conv, conv1d.padding Conv, conv2d.padding Conv,
conv3d.padding Conv, convolution.default Conv, conv_transpose1d.default ConvTranspose,
conv_transpose2d.input ConvTranspose, conv_transpose3d.input ConvTranspose, linear.default Linear, addmm.default AddMM,
mm.default MatMul, bmm.default MatMul, matmul.default MatMul, baddbmm.default AddMM, einsum.default Einsum,
scaled_dot_product_attention.default Attention, embedding.default Gather, layer_norm.default LayerNormalization,
native_layer_norm.default LayerNormalization, group_norm.default GroupNormalization,
instance_norm.default InstanceNormalization, rms_norm.default LayerNormalization, softmax.int Softmax,
_softmax.default Softmax, log_softmax.int LogSoftmax, _log_softmax.default LogSoftmax, max_pool1d.default MaxPool,
max_pool2d.default MaxPool, max_pool3d.default MaxPool, max_pool2d_with_indices.default MaxPool,
avg_pool1d.default AveragePool, avg_pool2d.default AveragePool, avg_pool3d.default AveragePool,
adaptive_avg_pool1d.default GlobalAveragePool, adaptive_avg_pool2d.default GlobalAveragePool,
_adaptive_avg_pool2d.default GlobalAveragePool, adaptive_max_pool2d.default GlobalMaxPool,
_native_batch_norm_legit_no_training.default BatchNormalization, mean.default ReduceMean, mean.dim ReduceMean,
sum.default ReduceSum, sum.dim_IntList ReduceSum, amax.default ReduceMax, amin.default ReduceMin, max.dim ReduceMax,
min.dim ReduceMin, max.default ReduceMax, min.default ReduceMin, prod.dim_int ReduceProd, var.dim ReduceSumSquare,
var.correction ReduceSumSquare, std.correction ReduceSumSquare, linalg_vector_norm.default ReduceL2, any.dim ReduceMax,
all.dim ReduceMin, argmax.default ArgMax, argmin.default ArgMin, topk.default TopK, sort.default TopK,
cumsum.default CumSum, cat.default Concat, stack.default Concat, repeat.default Tile, repeat_interleave.self_int Tile,
tile.default Tile, flip.default Slice, roll.default Slice, pad.default Pad, constant_pad_nd.default Pad,
reflection_pad2d.default Pad, replication_pad2d.default Pad, gather.default GatherElements,
index_select.default Gather, index.Tensor Gather, upsample_nearest2d.default Resize, upsample_nearest2d.vec Resize,
upsample_bilinear2d.default Resize, upsample_bilinear2d.vec Resize, upsample_bicubic2d.vec Resize, glu.default Mul,
grid_sampler.default GridSample, grid_sampler_2d.default GridSample, one_hot.default OneHot, tril.default Trilu,
triu.default Trilu, arange.default Range, arange.start Range, arange.start_step Range, full.default ConstantOfShape,
zeros.default ConstantOfShape, ones.default ConstantOfShape, scalar_tensor.default ConstantOfShape,
linspace.default Range, lstm.input LSTM, gru.input GRU
"""


def _table(text: str, overload: str = "") -> dict[str, str]:
    pairs = (entry.split() for entry in text.split(","))
    return {f"aten.{name}{overload}": word for name, word in pairs}


VIEWS = frozenset(_table(_VIEWS)) | {
    f"aten.{name}.default" for name in ("contiguous", "detach", "alias", "type_as", "dropout", "feature_dropout")
} | {"aten.to.dtype"}  # fmt: skip
"""Operators whose results may share memory with their inputs."""

OPERATORS: Mapping[str, str] = {
    **_table(_ELEMENTWISE, ".default"),
    **_table(_NAMED),
    **_table(_VIEWS),
    **_table(_OTHERS),
}
"""ONNX's name for each operator, by name and overload such as `aten.conv2d.default`; the planner groups by it."""

CHECKS = frozenset(
    {"aten._assert_scalar.default", "aten._assert_tensor_metadata.default", "aten.sym_constrain_range_for_size.default"}
)
"""Operators that compute nothing and are left out."""

_TRAINING = ("training", "train")


def refusal(operator: str, arguments: Mapping[str, object]) -> str:
    """Why a program with such an operator is refused; "" if it is not."""
    if operator not in OPERATORS:
        return f"operator {operator!r} is not supported in a program"
    if any(arguments.get(name) is True for name in _TRAINING) or arguments.get("dropout_p", 0) != 0:
        return f"operator {operator!r} is in training mode; export the module after .eval()"
    return ""


GRAPH_KEY = "upwell.program"
"""The metadata key of the graph in a safetensors file."""

FILE_NAME = "model.safetensors"

_MOST_NODES = 100_000

SAFETENSORS: Mapping[str, str] = {
    "FP64": "F64", "FP32": "F32", "FP16": "F16", "BF16": "BF16", "INT64": "I64", "INT32": "I32", "INT16": "I16",
    "INT8": "I8", "UINT8": "U8", "BOOL": "BOOL",
}  # fmt: skip
"""The datatypes that a program may use, in safetensors' spelling."""


class BadProgram(ValueError):
    """What is wrong with a program, in one sentence."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class TensorRef(_Part):
    """A tensor by name."""

    tensor: str


class TensorRefs(_Part):
    """A list of tensors; None for an omitted optional one."""

    tensors: tuple[str | None, ...]


class SizeRef(_Part):
    """A symbolic size, or a multiple of it, such as `4*rows`."""

    size: str


class DatatypeRef(_Part):
    """A datatype by its OIP name."""

    datatype: str


Scalar: TypeAlias = bool | int | float | str | None
Argument: TypeAlias = TensorRef | TensorRefs | SizeRef | DatatypeRef | Scalar | tuple[int | float | SizeRef, ...]


class ProgramTensor(_Part):
    """One tensor that is not a weight. A dimension is a number, or a symbolic size as in `SizeRef`."""

    name: str
    datatype: str
    shape: tuple[int | str, ...]


class ProgramNode(_Part):
    """One operator. An empty name among `outputs` is an unused result."""

    operator: str
    arguments: dict[str, Argument]
    outputs: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads, including weights, each once."""
        found: list[str | None] = []
        for argument in self.arguments.values():
            if isinstance(argument, TensorRef):
                found.append(argument.tensor)
            elif isinstance(argument, TensorRefs):
                found += argument.tensors
        return tuple(dict.fromkeys(name for name in found if name is not None))


class Program(_Part):
    """A graph in execution order; `weights` are the names of its weights.

    Raises `ValueError` if it could not be run: see `_check`.
    """

    version: int = Field(1, ge=1, le=1)
    inputs: tuple[ProgramTensor, ...] = Field(min_length=1)
    outputs: tuple[ProgramTensor, ...] = Field(min_length=1)
    nodes: tuple[ProgramNode, ...] = Field(max_length=_MOST_NODES)
    weights: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Program:
        """Every tensor is produced once, before it is read, by a known operator; symbolic sizes are those of the
        inputs."""
        known = {*self.weights}
        for name in (one.name for one in self.inputs):
            known.add(_new(name, known))
        sizes = {dim for one in self.inputs for dim in one.shape if isinstance(dim, str)}
        for node in self.nodes:
            why = refusal(node.operator, node.arguments)
            if why:
                raise ValueError(why)
            missing = [name for name in node.reads if name not in known]
            if missing:
                raise ValueError(f"operator {node.operator!r} reads {missing[0]!r}, which nothing before it produces")
            for name in filter(None, node.outputs):
                known.add(_new(name, known))
            open_sizes = [part for text in _sizes(node) for part in text.split("*") if not part.isdecimal()]
            unknown = [part for part in open_sizes if part not in sizes]
            if unknown:
                raise ValueError(f"operator {node.operator!r} needs the size {unknown[0]!r}, which no input has")
        for one in self.outputs:
            if one.name not in known:
                raise ValueError(f"nothing produces the output {one.name!r}")
        for one in (*self.inputs, *self.outputs):
            if one.datatype not in SAFETENSORS:
                raise ValueError(f"{one.name!r} is {one.datatype}, which programs do not support as input or output")
        return self

    @classmethod
    def parse(cls, text: str) -> Program:
        """Parse a program from JSON. Raises `BadProgram`."""
        try:
            return cls.model_validate(parse_json(text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BadProgram(f"{where}: {first['msg']}" if where else str(first["msg"])) from None
        except ValueError as error:
            raise BadProgram(f"not JSON: {error}") from None


def _new(name: str, known: set[str]) -> str:
    if not name or name in known:
        raise ValueError(f"tensor {name!r} is produced twice")
    return name


def _sizes(node: ProgramNode) -> Iterator[str]:
    for argument in node.arguments.values():
        for one in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(one, SizeRef):
                yield one.size


def packed(program: Program, weights: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """The program as a safetensors file; `weights` has datatype, shape and numbers (little-endian, C order) by name."""
    graph = program.model_dump_json(exclude_defaults=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", GRAPH_KEY: graph}}
    offset = 0
    for name, (datatype, shape, data) in weights.items():
        end = offset + len(data)
        header[name] = {"dtype": SAFETENSORS[datatype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in weights.values())])
