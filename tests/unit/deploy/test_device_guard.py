"""`upwell-device guard`: a version on trial that keeps restarting is abandoned, whatever the clock says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from upwell.tools.wheelhouse import device_installer

DAY_S = 86400.0


class Device:
    """Its clocks, its boots, and the version in use: `b` is on trial."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.unix_s, self.up_s, self.boot = 1.8e9, 1000.0, "first"
        self._current, self._trial = folder / "current", folder / "trial.json"
        for name, value in (("HOME", folder), ("CURRENT", self._current), ("TRIAL", self._trial)):
            patch.setattr(device_installer, name, value)
        patch.setattr(device_installer, "time", SimpleNamespace(time=lambda: self.unix_s, monotonic=lambda: self.up_s))
        patch.setattr(device_installer, "boot_id", lambda: self.boot)
        for slot in ("a", "b"):
            (folder / slot).mkdir()
        self._current.symlink_to(folder / "b")
        self._trial.write_text(json.dumps({"from": "a", "to": "b", "starts": 0, "began_unix_s": self.unix_s}))

    @property
    def slot(self) -> str:
        """The version in use."""
        return self._current.resolve().name

    @property
    def is_on_trial(self) -> bool:
        """Whether the trial goes on."""
        return self._trial.exists()

    def fail_power(self, unix_s: float) -> None:
        """It boots anew, and its clock shows that time."""
        self.unix_s, self.up_s, self.boot = unix_s, 20.0, self.boot + "+"

    def start(self, times: int = 1, pause_s: float = 3.0) -> None:
        """The agent is started, each time after a pause."""
        for _ in range(times):
            self.unix_s, self.up_s = self.unix_s + pause_s, self.up_s + pause_s
            device_installer.guard()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(tmp_path, monkeypatch)


def test_a_version_that_keeps_restarting_is_abandoned(device: Device) -> None:
    device.start(3)
    assert (device.slot, device.is_on_trial) == ("b", True)
    device.start()
    assert (device.slot, device.is_on_trial) == ("a", False)


@pytest.mark.parametrize("unix_s", [0.0, 1.8e9 - 3600, 1.8e9 + 60])
def test_after_a_power_failure_too_with_a_clock_that_stands_and_is_set_meanwhile(device: Device, unix_s: float) -> None:
    device.fail_power(unix_s)
    device.start(2)
    device.unix_s = 1.9e9  # the network's time
    device.start(2)
    assert (device.slot, device.is_on_trial) == ("a", False)


def test_a_version_that_stays_up_for_a_day_is_no_longer_on_trial(device: Device) -> None:
    device.start()
    device.unix_s = 0.0
    device.start(pause_s=DAY_S + 1)
    assert (device.slot, device.is_on_trial) == ("b", False)


def test_nor_is_one_that_is_started_days_later_by_another_boot(device: Device) -> None:
    device.fail_power(1.8e9 + 3 * DAY_S)
    device.start(5)
    assert (device.slot, device.is_on_trial) == ("b", False)
