"""`workers: auto`: what follows from a trial, and a trial that cannot be made."""

import logging
from pathlib import Path

import pytest

from tests.unit.models_for_tests import linear
from upwell.cloud.config import CloudConfig
from upwell.cloud.workers import worker_count
from upwell.cloud.workers.worker_count import ModelTrial, choose, resolved

SMALL = ModelTrial("small", "1", 1_000, 0.1e-3)
LONG = ModelTrial("long", "1", 602_000, 40e-3, 22e-3)


@pytest.mark.parametrize(
    ("trials", "cores", "workers"),
    [
        ([SMALL], 2, 2),  # its front end bounds one process
        ([LONG], 2, 1),  # the cores bound it, however many processes there are
        ([LONG, SMALL], 2, 2),
        ([LONG], 64, 2),
        ([ModelTrial("picture", "1", 602_000, 7e-3)], 2, 1),
        ([ModelTrial("picture", "1", 602_000, 7e-3)], 16, 3),
        ([ModelTrial("between", "1", 66_000, 0.6e-3)], 2, 2),  # two runs wait for each other at the front end
        ([SMALL], 8, 6),
        ([], 8, 1),
    ],
)
def test_several_processes_serve_where_one_front_end_would_bound_the_rate(
    trials: list[ModelTrial], cores: int, workers: int
) -> None:
    assert choose(trials, cores, may_share=True).workers == workers
    assert choose(trials, cores, may_share=False).workers == 1


def test_a_run_has_all_cores_only_where_that_beats_one_run_on_each() -> None:
    assert choose([LONG], 2, may_share=True).threads == {}
    fast = ModelTrial("fast", "1", 602_000, 40e-3, 15e-3)
    assert choose([fast], 2, may_share=True).threads == {"fast": 2}
    assert choose([fast, SMALL], 2, may_share=True).threads == {}  # the processes have the cores already


def config(root: Path, listen: str = "127.0.0.1:0") -> CloudConfig:
    return CloudConfig.model_validate(
        {"version": 1, "serve": {"listen": [listen], "models": str(root), "workers": "auto"}}, context={}
    )


def test_a_socket_has_one_process_and_no_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert resolved(config(tmp_path, f"unix:{tmp_path}/s")).serve.workers == 1
    assert "workers: auto chose 1 (processes cannot share a unix socket)" in caplog.text


@pytest.mark.slow
def test_the_models_are_tried_and_a_broken_one_keeps_none_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "LIMIT_S", 60.0)
    monkeypatch.setattr(worker_count, "usable_cores", lambda: 4)
    for name in ("broken", "linear"):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        if name == "linear":
            linear(folder).rename(folder / "model.onnx")
        else:
            (folder / "model.onnx").write_bytes(b"no model")
    (tmp_path / "numpy.py").write_text("raise SystemExit('modules come from the current folder')")
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    assert resolved(config(tmp_path)).serve.workers == 4
    assert "trial: model linear version 1, 32 bytes a request" in caplog.text


def test_a_trial_that_takes_too_long_leaves_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_count, "LIMIT_S", 0.01)
    monkeypatch.setattr(worker_count, "usable_cores", lambda: 4)
    caplog.set_level(logging.INFO)
    assert resolved(config(tmp_path)).serve.workers == 1
    assert "was cut off after 0 s, before all models were tried" in caplog.text
