"""The file of lines: whole lines, each once, whatever happened to the file."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from upwell.edge.spool.result_sinks import CallbackSink, JsonlSink, TakeLater
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.shared.oip.codec.converters import serialize_infer_response
from upwell.shared.oip.dataplane import InferResponse
from upwell.shared.tensors import Array

SCORES: Array = np.array([[0.25, np.nan], [np.inf, -np.inf]], np.float32)
OUTPUTS: dict[str, Array] = {
    "scores": SCORES,
    "labels": np.array([b"cat", b"\xff\n"], dtype=object),
    "flags": np.array([True, False]),
    "half": np.array([1.5], ml_dtypes.bfloat16),
    "none": np.zeros((0, 3), np.int64),
}


def result(sequence: int, outputs: dict[str, Array] = OUTPUTS, **more: Any) -> SpoolResult:
    facts = {"upwell.cloud_compute_ms": float("nan"), "upwell.degraded": False}
    answer = serialize_infer_response(InferResponse("echo", outputs, parameters=facts))
    fields = {
        "sequence": sequence, "spool_id": f"id-{sequence}", "request_id": "r", "kind": "spool", "model": "digits",
        "cloud_model": "echo", "tags": {"k": "\u00e4\u2028\n"}, "reason": "cloud_unavailable", "created_wall_s": 1.5,
        "answered_wall_s": 2.5, "edge_answer_digest": "sha256:0", "answer": answer, "edge_answer": b"", **more,
    }  # fmt: skip
    return SpoolResult(**fields)


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().split("\n")[:-1]]


def numbers(path: Path) -> list[int]:
    return [line["sequence"] for line in lines(path)]


def test_a_line_says_everything_in_plain_json(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "new" / "results.jsonl")
    sink.take([result(1)])
    (line,) = lines(sink.path)
    assert line["outputs"]["scores"] == {
        "datatype": "FP32",
        "shape": [2, 2],
        "data": [0.25, "NaN", "Infinity", "-Infinity"],
    }
    assert line["outputs"]["labels"]["data"] == ["Y2F0", "/wo="]
    assert line["outputs"]["flags"]["data"] == [True, False]
    assert line["outputs"]["half"] == {"datatype": "BF16", "shape": [1], "data": [1.5]}
    assert line["outputs"]["none"] == {"datatype": "INT64", "shape": [0, 3], "data": []}
    assert line["parameters"] == {"upwell.cloud_compute_ms": "NaN", "upwell.degraded": False}
    assert (line["spool_id"], line["tags"], line["created_unix_s"]) == ("id-1", {"k": "\u00e4\u2028\n"}, 1.5)
    assert "edge_outputs" not in line
    assert stat.S_IMODE(sink.path.stat().st_mode) == 0o600


def test_an_audit_has_the_device_s_outputs_beside_the_cloud_s(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    edge = serialize_infer_response(InferResponse("digits", {"scores": np.array([2.0])}))
    sink.take([result(1, kind="audit", edge_answer=edge)])
    assert lines(sink.path)[0]["edge_outputs"]["scores"]["data"] == [2.0]


def test_an_answer_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    sink.take([result(1, answer=b"\xff\xff"), result(2)])
    assert numbers(sink.path) == [1, 2]
    assert "damaged" in lines(sink.path)[0]["error"]


def test_a_torn_line_is_removed_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = JsonlSink(tmp_path / "whole.jsonl")
    whole.take([result(1), result(2)])
    data = whole.path.read_bytes()
    for size in [*range(0, len(data), 11), len(data) - 1, len(data)]:
        sink = JsonlSink(tmp_path / "torn.jsonl")
        sink.path.write_bytes(data[:size])
        known = sink.start()
        assert known == data[:size].count(b"\n")
        sink.take([result(number) for number in range(known + 1, 4)])
        assert numbers(sink.path) == [1, 2, 3]


def test_a_file_keeps_the_mode_that_lets_others_read_it_and_a_line_that_is_removed_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    sink.take([result(1)])
    sink.path.chmod(0o640)
    with sink.path.open("ab") as file:
        file.write(b'{"sequence": 2')
    assert sink.start() == 1
    assert [one.getMessage() for one in caplog.records] == [
        f"{sink.path} ended in the middle of a line, which was removed"
    ]
    sink.take([result(2)])
    assert numbers(sink.path) == [1, 2]
    assert stat.S_IMODE(sink.path.stat().st_mode) == 0o640


def test_a_last_line_longer_than_a_block(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    wide: dict[str, Array] = {"scores": np.full(200_000, 0.123456789)}
    sink.take([result(7), result(8, wide)])
    with sink.path.open("ab") as file:
        file.write(b'{"sequence": 9, ' + b"x" * 400_000)
    assert sink.start() == 8
    assert numbers(sink.path) == [7, 8]


@pytest.mark.parametrize("content", [b"", b"\n", b"no json\n", b"[1]\n", b'{"sequence": null}\n', b"\xff\n"])
def test_a_file_of_somebody_else_s_says_nothing(tmp_path: Path, content: bytes) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    sink.path.write_bytes(content)
    assert sink.start() == 0
    assert sink.path.read_bytes() == content


def test_a_file_that_is_not_there_is_begun(tmp_path: Path) -> None:
    assert JsonlSink(tmp_path / "results.jsonl").start() == 0


def test_what_cannot_be_written_raises_and_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        JsonlSink(path).take([result(1)])
    os.rmdir(path)
    JsonlSink(path).take([result(1)])
    assert numbers(path) == [1]


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    os.mkfifo(sink.path)
    with pytest.raises(OSError, match="expected a plain file"):
        sink.start()
    with pytest.raises(OSError, match="expected a plain file"):
        sink.take([result(1)])
    reader = os.open(sink.path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="expected a plain file"):
            sink.take([result(1)])
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "results.jsonl")
    sink.take([result(1)])
    size_bytes = sink.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            sink.take([result(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sink.path.stat().st_size == size_bytes
    sink.take([result(2)])
    assert numbers(sink.path) == [1, 2]


def test_a_function_that_raises_is_logged_and_the_next_result_follows(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def on_result(result: SpoolResult) -> None:
        seen.append(result.sequence)
        if result.sequence == 1:
            raise RuntimeError("the user's own")

    with caplog.at_level(logging.ERROR):
        CallbackSink(on_result).take([result(1), result(2)])
    assert seen == [1, 2]
    assert "id-1" in caplog.text


def test_a_function_that_puts_a_result_off_gets_it_again() -> None:
    def on_result(result: SpoolResult) -> None:
        raise TakeLater("not now")

    with pytest.raises(TakeLater):
        CallbackSink(on_result).take([result(1)])
