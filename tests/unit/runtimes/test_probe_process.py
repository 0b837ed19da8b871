"""Trying libraries out in a child process, with a software delegate that crashes, hangs, fails or works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.agent.versions import write_endless
from tests.unit.tflite_for_tests import linear
from upwell.edge.runtimes import probe_process
from upwell.edge.runtimes.device_lock import DeviceBusy, hold, try_out
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.probe_process import (
    RESULTS_NAME,
    ProbeKilled,
    ProbeSubject,
    driver_versions,
    enter,
    survived,
    try_on_cpu,
)
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.tflite_package import find_package

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _first_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if no library had been opened yet, and no other agent were on this machine."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(probe_process, "_opened", set())
    yield
    tempfile.tempdir = None


def subject(folder: Path, library: Path, **options: str | int) -> ProbeSubject:
    accelerator = AcceleratorOptions(provider="software", library=library, options={"claim": "all"} | options)
    options_of_model = RuntimeOptions(package="ai_edge_litert", threads=1)
    return ProbeSubject(linear(folder), options_of_model, accelerator, find_package("ai_edge_litert").version)


def results(folder: Path) -> list[str]:
    return list(json.loads((folder / RESULTS_NAME).read_text())["results"].values())


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no process can be started."""
    monkeypatch.setattr(sys, "executable", str(Path(sys.executable).with_name("no-such-python")))


def test_a_library_that_crashes_is_a_reason_and_is_remembered(
    tmp_path: Path, software_delegate: Path, request: pytest.FixtureRequest
) -> None:
    crashing = subject(tmp_path, software_delegate, crash="load")
    said = r"^libsoftware_delegate\.so crashed the probing process with SIGABRT"
    with pytest.raises(AcceleratorNotUsable, match=said):
        enter(crashing, tmp_path)
    request.getfixturevalue("no_child")
    with pytest.raises(AcceleratorNotUsable, match=rf"{said}.*at an earlier start; delete .*{RESULTS_NAME}"):
        enter(crashing, tmp_path)
    with pytest.raises(AcceleratorNotUsable, match="no process can be started"):
        enter(subject(tmp_path, software_delegate), tmp_path)  # other options: nothing is known
    try_out(crashing.library, crashing.accelerator.option_texts(), 0.0).release()


@pytest.mark.parametrize("where", ["prepare", "invoke"])
def test_so_is_one_that_crashes_later(tmp_path: Path, software_delegate: Path, where: str) -> None:
    with pytest.raises(AcceleratorNotUsable, match="with SIGABRT"):
        enter(subject(tmp_path, software_delegate, crash=where), None)


def test_so_is_one_that_ends_the_process_as_if_all_were_done(tmp_path: Path, software_delegate: Path) -> None:
    with pytest.raises(AcceleratorNotUsable, match=r"^libsoftware_delegate\.so ended the probing process"):
        enter(subject(tmp_path, software_delegate, crash="exit"), tmp_path)
    assert results(tmp_path) == ["libsoftware_delegate.so ended the probing process"]


def test_one_that_works_is_remembered_until_it_changes(
    tmp_path: Path, software_delegate: Path, request: pytest.FixtureRequest
) -> None:
    library = Path(shutil.copy(software_delegate, tmp_path))
    enter(subject(tmp_path, library), tmp_path).release()
    assert results(tmp_path) == [""]
    request.getfixturevalue("no_child")
    enter(subject(tmp_path, library), tmp_path).release()
    with library.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(AcceleratorNotUsable, match="no process can be started"):
        enter(subject(tmp_path, library), tmp_path)


def test_a_refusal_is_not_remembered_since_a_device_may_come_back(tmp_path: Path, software_delegate: Path) -> None:
    device = tmp_path / "device"
    unplugged = subject(tmp_path, software_delegate, device=str(device))
    with pytest.raises(AcceleratorNotUsable, match="device"):
        enter(unplugged, tmp_path)
    device.touch()
    enter(unplugged, tmp_path).release()
    assert results(tmp_path) == [""]


def test_one_that_hangs_is_ended_and_not_remembered(tmp_path: Path, software_delegate: Path) -> None:
    hanging = subject(tmp_path, software_delegate, delay_us=600_000_000)
    with pytest.raises(AcceleratorNotUsable, match="hung for 1 s in the probing process"):
        enter(hanging, tmp_path, timeout_s=1.0)
    assert not (tmp_path / RESULTS_NAME).exists()
    try_out(hanging.library, hanging.accelerator.option_texts(), 0.0).release()


@pytest.mark.slow
def test_a_model_that_never_ends_is_ended_on_the_cpu_and_a_good_one_passes(tmp_path: Path) -> None:
    options = RuntimeOptions(threads=1)
    write_endless(tmp_path / "model.onnx")
    with pytest.raises(ProbeKilled, match=r"^model\.onnx hung for 5 s in the probing process, which was killed"):
        try_on_cpu(tmp_path / "model.onnx", options, 5.0)
    try_on_cpu(linear(tmp_path), options, DEADLINE_S)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    try_on_cpu(tmp_path / "broken.onnx", options, DEADLINE_S)  # said where it is opened


@pytest.mark.skipif(sys.platform != "linux", reason="its children are named in /proc")
def test_a_model_whose_process_is_killed_is_not_opened_by_the_agent(tmp_path: Path) -> None:
    write_endless(tmp_path / "model.onnx")
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")

    def kill() -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not (found := children.read_text().split()) and time.monotonic() < until_s:
            os.sched_yield()
        os.kill(int(found[-1]), signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    said = r"^the process that probed model\.onnx was killed, perhaps for lack of memory"
    with pytest.raises(ProbeKilled, match=said):
        try_on_cpu(tmp_path / "model.onnx", RuntimeOptions(threads=1), DEADLINE_S)
    killing.join()


def test_what_is_open_elsewhere_is_not_tried_out(
    tmp_path: Path, software_delegate: Path, request: pytest.FixtureRequest
) -> None:
    known, unknown = subject(tmp_path, software_delegate), subject(tmp_path, software_delegate, delay_us=1)
    enter(known, tmp_path).release()
    elsewhere = hold(known.library, {}, 0.0)
    request.getfixturevalue("no_child")
    enter(known, tmp_path).release()  # what is remembered decides
    with pytest.raises(
        AcceleratorNotUsable, match="was never probed with these options, and cannot be probed now: the device is"
    ):
        enter(unknown, tmp_path)
    elsewhere.release()


def test_another_model_on_a_device_that_this_process_has_open_is_opened_and_marked_until_that_went_well(
    tmp_path: Path, software_delegate: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second").mkdir()
    first = subject(tmp_path, software_delegate)
    second = replace(subject(tmp_path, software_delegate), path=linear(tmp_path / "second", seed=1))
    lock = enter(first, tmp_path)
    survived(first, tmp_path)
    request.getfixturevalue("no_child")
    enter(second, tmp_path).release()
    assert results(tmp_path) == ["", "suspect"]
    with pytest.raises(AcceleratorNotUsable, match="may have crashed the agent before, and cannot be probed now"):
        enter(second, tmp_path)
    with pytest.raises(
        AcceleratorNotUsable,
        match=r"with these options, .*; models of one agent share a device only with equal options",
    ):
        enter(subject(tmp_path, software_delegate, crash="load"), tmp_path)  # the same library by other options
    survived(second, tmp_path)
    assert results(tmp_path) == ["", ""]
    enter(second, tmp_path).release()
    lock.release()


def test_a_suspect_is_tried_out_once_the_device_is_free(tmp_path: Path, software_delegate: Path) -> None:
    suspect = subject(tmp_path, software_delegate)
    probe_process._remember(tmp_path / RESULTS_NAME, suspect.key(), "suspect")
    enter(suspect, tmp_path).release()
    assert results(tmp_path) == [""]


ORPHAN = """
import json, sys, upwell.edge.runtimes.probe_process as probe
from pathlib import Path
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
accelerator = AcceleratorOptions.model_validate(json.loads(sys.argv[2]))
subject = probe.ProbeSubject(Path(sys.argv[1]), RuntimeOptions(package="ai_edge_litert"), accelerator, "")
probe.enter(subject, None)
"""


def test_a_child_ends_with_its_parent_and_frees_the_device(tmp_path: Path, software_delegate: Path) -> None:
    report = tmp_path / "report"
    hanging = subject(tmp_path, software_delegate, delay_us=600_000_000, report=str(report))
    command = [sys.executable, "-c", ORPHAN, str(hanging.path), hanging.accelerator.model_dump_json()]
    with subprocess.Popen(command) as parent:
        until_s = time.monotonic() + DEADLINE_S
        while not report.exists() and parent.poll() is None and time.monotonic() < until_s:
            os.sched_yield()
        with pytest.raises(DeviceBusy):
            try_out(hanging.library, {}, 0.0)
        parent.kill()
    assert report.exists()
    hold(hanging.library, {}, DEADLINE_S).release()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2, "results": {}}', '{"version": 1, "results": 5}'])
def test_a_broken_memory_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / RESULTS_NAME).write_text(content)
    assert probe_process._read(tmp_path / RESULTS_NAME) == {}
    probe_process._remember(tmp_path / RESULTS_NAME, "key", "crashed")
    assert probe_process._read(tmp_path / RESULTS_NAME) == {"key": "crashed"}


def test_the_memory_stays_small_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "made" / RESULTS_NAME
    for number in range(70):
        probe_process._remember(path, str(number), "")
    probe_process._remember(path, "6", "crashed")
    assert list(probe_process._read(path)) == [*map(str, range(7, 70)), "6"]
    probe_process._remember(Path("/proc/nowhere/probes.json"), "key", "")  # a disk that takes nothing costs nothing


def test_the_driver_is_known_as_far_as_the_kernel_tells() -> None:
    assert driver_versions()["kernel"] == os.uname().release
