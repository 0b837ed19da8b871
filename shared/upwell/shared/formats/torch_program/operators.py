"""The ATen operators that a program may contain: those that compute new tensors from their inputs.

None of them reads a file, draws a random number, changes a tensor in place, or accesses memory other than its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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

OPERATORS: Mapping[str, str] = MappingProxyType(
    {**_table(_ELEMENTWISE, ".default"), **_table(_NAMED), **_table(_VIEWS), **_table(_OTHERS)}
)
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
        return f"operator {operator!r} is in training; export the module after .eval()"
    return ""
