"""What ONNX Runtime says, without what only its makers can use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from upwell.cloud.engines.error_text import onnxruntime_reason

SOURCE = "/onnxruntime_src/onnxruntime/core"
HEAD = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"{HEAD}Load model from /srv/a b/model.onnx failed:{SOURCE}/graph/model.cc:256 onnxruntime::Model::Model("
            "onnx::ModelProto&&, const onnxruntime::PathString&, const std::list<std::shared_ptr<A>, B>*) "
            "Unsupported model IR version: 99, max supported IR version: 13\n",
            "Unsupported model IR version: 99, max supported IR version: 13",
        ),
        (
            f"{HEAD}Non-zero status code returned while running Reshape node. Name:'r' Status Message: "
            f"{SOURCE}/reshape_helper.h:91 onnxruntime::ReshapeHelper::ReshapeHelper(const A&, B&, bool) "
            "input_shape_size == requested_shape_size was false. Input shape:{2,2}\n",
            "Non-zero status code returned while running Reshape node. Name:'r' Status Message: "
            "input_shape_size == requested_shape_size was false. Input shape:{2,2}",
        ),
        (f"{HEAD}matmul_helper.h:59 Compute MatMul dimension mismatch", "Compute MatMul dimension mismatch"),
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x\n index: 1 Got: 3",
            "Got invalid dimensions for input: x index: 1 Got: 3",
        ),
        (f"{HEAD}no such thing at /srv/a b/model.onnx", "no such thing at model.onnx"),
        ("", "RuntimeError"),
    ],
)
def test_code_and_place_are_left_out(text: str, says: str) -> None:
    assert onnxruntime_reason(RuntimeError(text), Path("/srv/a b/model.onnx")) == says


def test_of_a_long_one_beginning_and_end_are_left() -> None:
    told = onnxruntime_reason(RuntimeError(HEAD + "why " * 100 + "what would be right"))
    assert len(told) < 400
    assert told.startswith("why why")
    assert told.endswith("what would be right")


@pytest.mark.parametrize(
    "text", ["x.cc:1 " + "a::" * 50_000 + "(", "/a.cc:12 f::g(" + "(" * 100_000, "::" * 100_000, "a.h:1 " * 50_000]
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    started_s = time.monotonic()
    onnxruntime_reason(RuntimeError(text))
    assert time.monotonic() - started_s < 5.0
