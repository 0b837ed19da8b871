"""The lock of a device: shared by those who use it, alone for who tries it out, between processes and users."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from upwell.edge.runtimes.device_lock import DeviceBusy, DeviceLock, hold, try_out

pytest.importorskip("fcntl")

WAIT_S = 30.0

HOLDER = """
import sys
from upwell.edge.runtimes.device_lock import {how}
lock = {how}("lib.so", {options!r}, 0.0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def another_process(how: str, options: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    script = HOLDER.format(how=how, options=options)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def user(library: str = "lib.so", **options: str) -> DeviceLock:
    return hold(library, options, 0.0)


def test_any_number_may_use_a_device_and_nobody_tries_it_out_meanwhile() -> None:
    with another_process("hold", {}):
        users = [user(), user()]
        with pytest.raises(DeviceBusy, match="the device is already open"):
            try_out("lib.so", {}, 0.0)
        for one in users:
            one.release()
            one.release()
        with pytest.raises(DeviceBusy):
            try_out("lib.so", {}, 0.0)
    try_out("lib.so", {}, 0.0).release()


def test_while_somebody_tries_a_device_out_nobody_else_opens_it() -> None:
    with another_process("try_out", {}) as process:
        with pytest.raises(DeviceBusy):
            user()
        with pytest.raises(DeviceBusy):
            try_out("lib.so", {}, 0.0)
        user("other.so").release()
        assert process.stdin is not None
        process.stdin.close()
        try_out("lib.so", {}, WAIT_S).release()


def test_who_wants_to_open_it_waits_for_who_tries_it_out() -> None:
    with another_process("try_out", {}) as process:
        assert process.stdin is not None
        process.stdin.close()
        hold("lib.so", {}, WAIT_S).release()


@pytest.mark.parametrize(
    ("used", "tried", "free"),
    [
        ({}, {}, False),
        ({}, {"device": "usb:0"}, False),  # who names no device may have any
        ({"device": "usb:0"}, {}, False),
        ({"device": "usb:0"}, {"device": "usb:0"}, False),
        ({"device": "usb:0"}, {"device": "usb:1"}, True),
        ({"device_id": "0", "speed": "1"}, {"device_id": "1", "speed": "1"}, True),
        ({"speed": "1"}, {"speed": "2"}, False),
    ],
)
def test_devices_that_are_named_are_apart(used: dict[str, str], tried: dict[str, str], free: bool) -> None:
    lock = user(**used)
    if free:
        try_out("lib.so", tried, 0.0).release()
    else:
        with pytest.raises(DeviceBusy):
            try_out("lib.so", tried, 0.0)
    lock.release()
    try_out("lib.so", tried, 0.0).release()


def test_a_refused_lock_leaves_nothing_locked() -> None:
    lock = user()
    with pytest.raises(DeviceBusy):
        try_out("lib.so", {"device": "usb:0"}, 0.0)
    hold("lib.so", {"device": "usb:0"}, 0.0).release()
    lock.release()


def test_lock_files_can_be_read_by_every_user_and_written_by_none(own_folder: Path) -> None:
    before = os.umask(0o077)
    try:
        user().release()
    finally:
        os.umask(before)
    modes = {file.stat().st_mode & 0o777 for file in own_folder.iterdir()}
    assert modes == {0o444}
    user().release()  # also for who did not make them: they are opened for reading


def test_a_link_or_pipe_in_its_place_is_not_followed(own_folder: Path) -> None:
    user().release()
    target = own_folder / "target"
    for file in list(own_folder.iterdir()):
        file.unlink()
        file.symlink_to(target)
    with pytest.raises(DeviceBusy, match="cannot be used"):
        user()
    assert not target.exists()
    for file in own_folder.iterdir():
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(DeviceBusy, match="it is not a plain file"):
        user()
