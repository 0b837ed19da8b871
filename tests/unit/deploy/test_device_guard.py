"""`upwell-device guard`: a version on trial that never stays up is abandoned, one that does is not, whatever boots."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from upwell.tools.wheelhouse import device_installer

TRIAL_S = 60.0


class Device:
    """The version in use, of which `b` is on trial, and what systemd was asked to do later in this boot."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.up_s, self.ready_s, self.state = 1000.0, 0.0, "inactive"
        self.starts_asked_for = 0
        self.later: list[tuple[float, int]] = []
        self._current, self._trial = folder / "current", folder / "trial.json"
        for name, value in (("HOME", folder), ("CURRENT", self._current), ("TRIAL", self._trial)):
            patch.setattr(device_installer, name, value)
        patch.setattr(device_installer, "time", SimpleNamespace(monotonic=lambda: self.up_s))
        patch.setattr(device_installer, "run", self._run)
        for slot in ("a", "b"):
            (folder / slot).mkdir()
        self._current.symlink_to(folder / "b")
        self._trial.write_text(json.dumps({"from": "a", "to": "b", "starts": 0, "trial_s": TRIAL_S}))

    def _run(self, *words: object, **_: object) -> subprocess.CompletedProcess[str]:
        if words[0] == "systemd-run":
            (wait,) = [str(one) for one in words if str(one).startswith("--on-active=")]
            self.later.append((self.up_s + float(wait.partition("=")[2]), int(str(words[-1]))))
        self.starts_asked_for += words[:2] == ("systemctl", "start")
        asked = {"ActiveState": self.state, "ActiveEnterTimestampMonotonic": str(int(self.ready_s * 1e6))}
        return subprocess.CompletedProcess([], 0, asked.get(str(words[3]), "") + "\n", "")

    @property
    def slot(self) -> str:
        """The version in use."""
        return self._current.resolve().name

    @property
    def is_on_trial(self) -> bool:
        """Whether the trial goes on."""
        return self._trial.exists()

    def boot(self) -> None:
        """The power had failed."""
        self.up_s, self.later, self.state = 20.0, [], "inactive"

    def start(self, times: int = 1, *, up_s: float = 3.0, ready_after_s: float = 0.5) -> None:
        """The agent is started so often; it is ready after a time, and ends or goes on after `up_s`."""
        for _ in range(times):
            device_installer.guard()
            self.state, self.ready_s, until_s = "activating", self.up_s + ready_after_s, self.up_s + up_s
            while self.later and min(self.later)[0] <= until_s:
                self.up_s, start = min(self.later)
                self.later.remove((self.up_s, start))
                self.state = "active" if self.up_s >= self.ready_s else "activating"
                device_installer.end_trial(start)
            self.up_s, self.state = until_s, "failed"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(tmp_path, monkeypatch)


def test_a_version_that_keeps_restarting_is_abandoned(device: Device) -> None:
    device.start(3)
    assert (device.slot, device.is_on_trial) == ("b", True)
    device.start()
    assert (device.slot, device.is_on_trial) == ("a", False)


def test_after_power_failures_too(device: Device) -> None:
    for _ in range(4):
        device.boot()
        device.start(up_s=TRIAL_S - 1)
    assert (device.slot, device.is_on_trial) == ("a", False)


@pytest.mark.parametrize("state", ["failed", "inactive"])
def test_a_version_that_systemd_does_not_start_again_is_abandoned_and_a_stopped_one_stays(
    device: Device, state: str
) -> None:
    """As after an exit with status 2, where the upgrade was cut short and watches no more."""
    device.start()
    ((device.up_s, start),) = device.later
    device.state = state
    device_installer.end_trial(start)
    slot, is_on_trial, starts = ("a", False, 1) if state == "failed" else ("b", True, 0)
    assert (device.slot, device.is_on_trial, device.starts_asked_for) == (slot, is_on_trial, starts)


def test_a_version_that_has_stayed_up_once_stays_however_often_it_boots(device: Device) -> None:
    device.start(2)
    device.boot()
    device.start(up_s=TRIAL_S + 5)
    assert not device.is_on_trial
    for _ in range(5):
        device.boot()
        device.start()
    assert device.slot == "b"


def test_the_time_until_it_is_ready_does_not_count(device: Device) -> None:
    device.start(up_s=4 * TRIAL_S, ready_after_s=3.5 * TRIAL_S)
    assert device.is_on_trial
    device.start(up_s=5 * TRIAL_S, ready_after_s=3.5 * TRIAL_S)
    assert not device.is_on_trial


def test_what_was_asked_for_an_earlier_start_says_nothing_of_this_one(device: Device) -> None:
    device.start(up_s=TRIAL_S - 2)
    ((_, start),) = device.later
    device.start(up_s=1.0)
    device.state, device.ready_s = "active", 0.0
    device_installer.end_trial(start)
    assert device.is_on_trial


def test_a_torn_file_ends_the_trial(device: Device) -> None:
    device._trial.write_text('{"from": "a"')
    device.start()
    assert (device.slot, device.is_on_trial) == ("b", False)


@pytest.fixture
def system_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, which can be made read-only."""
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk here")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("is_on_trial", [False, True])
def test_a_read_only_disk_is_one_line_and_keeps_no_agent_from_starting(
    system_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_on_trial: bool
) -> None:
    """There even a file that is missing cannot be removed."""
    device = Device(system_disk, monkeypatch)
    if not is_on_trial:
        device._trial.unlink()
    subprocess.run(["mount", "-o", "remount,ro", system_disk], check=True)
    assert device_installer.main(["guard"]) == 0
    assert (device.slot, device.is_on_trial) == ("b", is_on_trial)
    assert capsys.readouterr().err.splitlines()[-1].startswith("upwell-device: [Errno 30] Read-only file system")


def test_what_a_trial_needs_to_know_is_on_the_disk_before_its_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure an empty file would end the trial of a version that never stays up."""
    path, synced = tmp_path / "trial.json", []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_size, path.exists())))
    device_installer.write(path, "{}")
    assert (synced, path.read_text()) == ([(2, False)], "{}")


def test_an_upgrade_during_a_trial_leaves_the_version_to_go_back_to(device: Device, tmp_path: Path) -> None:
    kept = tmp_path / "a" / "python"
    kept.touch()
    with pytest.raises(device_installer.InstallFailed, match="still on trial"):
        device_installer.upgrade(tmp_path, TRIAL_S)
    assert kept.exists()
    device.start(4)
    with pytest.raises(device_installer.InstallFailed, match="no wheels for this machine"):
        device_installer.upgrade(tmp_path, TRIAL_S)


def test_a_second_upgrade_leaves_the_slot_to_the_first(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device._trial.unlink()
    made: list[Path] = []

    def make(slot: Path, _: Path) -> str:
        made.append(slot)
        if len(made) == 1:
            with pytest.raises(device_installer.InstallFailed, match="another `upgrade` is running"):
                device_installer.upgrade(tmp_path, TRIAL_S)
        raise device_installer.InstallFailed("it cannot be made")

    monkeypatch.setattr(device_installer, "make_environment", make)
    for _ in range(2):  # and the first one lets go of it
        with pytest.raises(device_installer.InstallFailed, match="it cannot be made"):
            device_installer.upgrade(tmp_path, TRIAL_S)
    assert made == [tmp_path / "a"] * 2


def test_a_start_that_a_full_disk_leaves_uncounted_goes_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(device_installer, "write", full)
    device.start()
    assert (device.slot, device.is_on_trial) == ("a", False)


def test_the_script_that_every_start_runs_is_never_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "upwell-device"
    script.write_text("the former one")
    monkeypatch.setattr(device_installer, "SCRIPT", script)

    def cut(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as power:
        power.setattr(os, "fsync", cut)
        with pytest.raises(OSError, match="Input/output"):
            device_installer.keep_script()
    assert script.read_text() == "the former one"
    device_installer.keep_script()
    assert script.read_text() == Path(device_installer.__file__).read_text()
    assert script.stat().st_mode & 0o777 == 0o755


def test_an_installation_that_was_cut_short_is_told_from_a_folder_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.yaml").touch()
    for name, path in (("CURRENT", "current"), ("HOME", "home"), ("MADE", "home/made.json")):
        monkeypatch.setattr(device_installer, name, tmp_path / path)
    (tmp_path / "home").mkdir()
    with pytest.raises(device_installer.InstallFailed, match="was not made by this script"):
        device_installer.install(tmp_path, tmp_path, TRIAL_S)
    (tmp_path / "home" / "made.json").touch()
    with pytest.raises(device_installer.InstallFailed, match="was cut short; expected `remove` first"):
        device_installer.install(tmp_path, tmp_path, TRIAL_S)


@pytest.mark.parametrize("trial", ["nan", "inf", "-1", "a minute"])
def test_a_trial_that_would_never_end_is_refused(trial: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        device_installer.main(["upgrade", f"--trial={trial}"])
    assert ended.value.code == 2
    assert f"--trial: invalid seconds value: '{trial}'" in capsys.readouterr().err
