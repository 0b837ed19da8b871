"""Pictures whose decoding alone takes longer than the deadline: refused at once, not answered late."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.faults.scene import write_agent
from tests.unit.models_for_tests import slow_picture
from upwell.edge.request.request_driver import _Preparation
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import DeadlineExceeded, Refused
from upwell.shared.routing.estimators.preparation_times import EncodedPictures
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.signature.processor import Prepared
from upwell.shared.tensors import Array

DEADLINE_S, LATE_S = 0.5, 0.2


def png(width: int, height: int) -> bytes:
    """Noise, the slowest to decode."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(file, "PNG", compress_level=1)
    return file.getvalue()


LARGE, SMALL = png(1024, 1024), png(32, 32)
PICTURES = EncodedPictures("png", 1024 * 1024)


@contextmanager
def agent_of(folder: Path) -> Iterator[AgentCore]:
    slow_picture(folder, layers=1, side=32, width=32)
    config = write_agent(folder, {"defaults": {"deadline": "60s"}}, models={"m": {"edge": {"file": "model.onnx"}}})
    with embedded_agent(config) as agent:
        yield agent


def test_what_cannot_be_decoded_in_time_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    with agent_of(tmp_path) as agent:
        assert agent.infer("m", {"image": LARGE}).route == "edge"
        state = agent.router.state
        prepare_s = state.preparation["m"].expect_s(PICTURES, time.monotonic())
        assert prepare_s > 0.0
        edge = agent.model("m").edge
        assert edge is not None
        prepared: list[object] = []
        edge.processor.pre = prepared.append  # type: ignore[assignment, method-assign]  # it must not be called
        with pytest.raises(Refused, match="no allowed route is predicted to answer in time"):
            agent.infer("m", {"image": LARGE}, deadline_s=prepare_s / 2)
        assert not prepared


def test_a_picture_decoded_too_late_is_not_run_and_the_next_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent_of(tmp_path) as agent:
        edge = agent.model("m").edge
        assert edge is not None
        pre, run, runs = edge.processor.pre, edge.runtime.run, list[object]()

        def slow_pre(inputs: Mapping[str, Array]) -> Prepared:
            time.sleep(DEADLINE_S + LATE_S)
            return pre(inputs)

        def noted_run(inputs: Any) -> Any:
            runs.append(inputs)
            return run(inputs)

        monkeypatch.setattr(edge.processor, "pre", slow_pre)
        monkeypatch.setattr(edge.runtime, "run", noted_run)
        with pytest.raises(DeadlineExceeded, match=r"the pictures took .* ms to prepare"):
            agent.infer("m", {"image": LARGE}, deadline_s=DEADLINE_S)
        assert not runs
        for _ in range(3):
            with pytest.raises(Refused, match="no allowed route is predicted to answer in time"):
                agent.infer("m", {"image": LARGE}, deadline_s=DEADLINE_S)
        monkeypatch.undo()
        assert agent.infer("m", {"image": LARGE}).reason == agent.infer("m", {"image": SMALL}).reason


def test_a_run_that_no_longer_fits_is_refused_so_that_the_cloud_can_be_asked(tmp_path: Path) -> None:
    with agent_of(tmp_path) as agent:
        router = agent.router
        in_time, too_late = (
            _Preparation(router, "m", None, time.monotonic() + left_s, RunRequest(run_s=10.0)) for left_s in (5.0, -5.0)
        )
        with pytest.raises(Refused, match=r"took 1000\.0 ms to prepare"):
            in_time(1.0)
        with pytest.raises(DeadlineExceeded, match=r"took 1000\.0 ms to prepare"):
            too_late(1.0)


def test_the_times_of_runs_do_not_contain_the_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with agent_of(tmp_path) as agent:
        edge = agent.model("m").edge
        assert edge is not None
        pre = edge.processor.pre

        def slow_pre(inputs: Mapping[str, Array]) -> Prepared:
            time.sleep(LATE_S)
            return pre(inputs)

        monkeypatch.setattr(edge.processor, "pre", slow_pre)
        run, run_requests = edge.run, list[RunRequest]()

        def noted_run(inputs: Any, deadline_s: float, run_request: RunRequest, *others: Any) -> Any:
            run_requests.append(run_request)
            return run(inputs, deadline_s, run_request, *others)

        monkeypatch.setattr(edge, "run", noted_run)
        before = agent.router.state.edge["m"].windows[1]
        answer = agent.infer("m", {"image": LARGE})
        learnt_s = agent.router.state.edge["m"].windows[1].samples_s
        assert len(learnt_s) == len(before.samples_s) + 1
        assert answer.timings.edge_s is not None
        assert learnt_s[-1] + LATE_S <= answer.timings.edge_s
        agent.infer("m", {"image": LARGE})
        assert run_requests[1].run_s >= LATE_S  # the device is busy with both
