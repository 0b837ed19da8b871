"""Serving from the CPU while an accelerator gets ready, with a software delegate that takes its time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.unit.edge.loads import bundle, requests, side, software
from upwell.edge.models import model_loader as loading_module
from upwell.edge.models.model_loader import Loader
from upwell.edge.runtimes.device_lock import hold, try_out
from upwell.shared.errors import ConfigError

WAIT_S = 60.0


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bundle(tmp_path / "b", tflite=0)


def test_the_cpu_serves_until_the_accelerator_is_ready(folder: Path, state_dir: Path, software_delegate: Path) -> None:
    slow = side(folder, software(software_delegate, delay_us=300_000), package="ai_edge_litert")
    loading = Loader("m", slow, state_dir=state_dir).start(0.0)
    first = loading.model
    assert (first.state, first.accelerator, first.report.checked_by) == ("compiling", "", "golden vectors")
    assert first.report.attempts == ()
    assert loading.final is not None
    final = loading.final.result(WAIT_S)
    assert final is not first
    assert (final.state, final.accelerator, final.report.checked_by) == ("ready", "software", "golden vectors")
    assert final.report.load_s > 0.6
    expected, answer = (edge.run_now(requests(2)).outputs["scores"] for edge in (first, final))
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)
    loading.close()
    try_out(str(software_delegate), {}, 0.0).release()


def test_an_accelerator_that_comes_to_nothing_leaves_the_cpu_with_the_reason(
    folder: Path, state_dir: Path, software_delegate: Path
) -> None:
    crashing = side(folder, software(software_delegate, crash="load"), package="ai_edge_litert")
    loading = Loader("m", crashing, state_dir=state_dir).start(0.0)
    assert loading.final is not None
    final = loading.final.result(WAIT_S)
    assert final is loading.model
    assert final.state == "fallback"
    assert [one.what for one in final.report.attempts] == ["tflite (ai_edge_litert) on software"]
    assert "crashed the probing process" in final.report.attempts[0].reason
    assert final.report.checked_by == "golden vectors"


def test_who_is_ready_in_time_serves_at_once(folder: Path, state_dir: Path, software_delegate: Path) -> None:
    quick = side(folder, software(software_delegate), package="ai_edge_litert")
    loading = Loader("m", quick, state_dir=state_dir).start(WAIT_S)
    assert (loading.model.accelerator, loading.final) == ("software", None)
    loading.close()


@pytest.mark.parametrize("options", [{"delay_us": 300_000}, {"fail_prepare": 1}])
def test_a_must_is_waited_for(folder: Path, state_dir: Path, software_delegate: Path, options: dict[str, int]) -> None:
    strict = side(folder, software(software_delegate, "must", **options), package="ai_edge_litert")
    if "delay_us" in options:
        loading = Loader("m", strict, state_dir=state_dir).start(0.0)
        assert (loading.model.accelerator, loading.final) == ("software", None)
        loading.close()
    else:
        with pytest.raises(ConfigError, match="on software: software refused the model"):
            Loader("m", strict, state_dir=state_dir).start(0.0)


def test_without_an_accelerator_there_is_nothing_to_wait_for(folder: Path) -> None:
    before = set(threading.enumerate())
    loading = Loader("m", side(folder)).start(0.0)
    assert (loading.final, loading.model.state) == (None, "ready")
    assert set(threading.enumerate()) <= before


def test_a_new_version_waits_for_its_accelerator_so_long_and_no_longer(
    folder: Path, state_dir: Path, software_delegate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading_module, "LONGEST_COMPILE_S", 0.1)
    slow = side(folder, software(software_delegate, delay_us=1_000_000), package="ai_edge_litert")
    edge = Loader("m", slow, state_dir=state_dir).load()
    assert (edge.state, edge.accelerator) == ("fallback", "")
    assert edge.report.attempts[0].reason == "is not ready after 0.1 s"
    for thread in threading.enumerate():
        if thread.name == "load-m":
            thread.join(WAIT_S)
    try_out(str(software_delegate), {}, 0.0).release()  # what came too late was closed
    edge.close()


def test_a_model_that_runs_nowhere_tells_every_attempt(tmp_path: Path, software_delegate: Path) -> None:
    failing = software(software_delegate, fail_prepare=1)
    nowhere = side(bundle(tmp_path / "b", tflite=1), failing, package="ai_edge_litert")
    with pytest.raises(ConfigError) as error:
        Loader("m", nowhere).start(0.0)
    told = [str(problem) for problem in error.value.problems]
    assert ["on software" in one for one in told] == [True, False]


def test_closing_it_frees_what_comes_later(folder: Path, state_dir: Path, software_delegate: Path) -> None:
    before = set(threading.enumerate())
    slow = side(folder, software(software_delegate, delay_us=300_000), package="ai_edge_litert")
    loading = Loader("m", slow, state_dir=state_dir).start(0.0)
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "load-m"]
    loading.close()
    assert loading.final is not None
    assert loading.final.cancelled()
    thread.join(WAIT_S)
    try_out(str(software_delegate), {}, 0.0).release()
    loading.close()


END = """
import sys
from pathlib import Path
from tests.unit.edge.loads import side, software
from upwell.edge.models.model_loader import Loader
folder, library = map(Path, sys.argv[1:])
slow = side(folder, software(library, delay_us=600_000_000), package="ai_edge_litert")
loading = Loader("m", slow).start(0.0)
print(loading.model.state, flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_although_an_accelerator_is_not_ready(folder: Path, software_delegate: Path) -> None:
    command = [sys.executable, "-c", END, str(folder), str(software_delegate)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout) == (0, "compiling\n")


def test_a_device_that_is_in_use_elsewhere_is_left_alone(folder: Path, software_delegate: Path, tmp_path: Path) -> None:
    library = Path(tmp_path / "libanother.so")
    library.write_bytes(software_delegate.read_bytes())
    one = side(folder, software(library), package="ai_edge_litert")
    elsewhere = hold(str(library), {}, 0.0)
    loading = Loader("m", one, state_dir=tmp_path).start(WAIT_S)
    assert loading.model.state == "fallback"
    assert "was never probed with these options, and cannot be probed now" in loading.model.report.attempts[0].reason
    elsewhere.release()
    loading = Loader("m", one, state_dir=tmp_path).start(WAIT_S)
    assert loading.model.accelerator == "software"
    loading.close()
